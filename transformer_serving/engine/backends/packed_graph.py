"""A program's graph for texts that lie one behind the other in one row, without padding.

The program computes [texts, tokens]. Nearly all of it looks at one token at a time, and computes
the same for a row of all texts' tokens, [1, tokens]. Three things do not, and are put in place of
what is there: attention, which gets where each text begins; indices that count a text's tokens
(positions), which come from outside; and what makes one vector of a text, a sum over its tokens,
its first or its last one. A graph with anything else across tokens is not packed.

Whether a packed graph answers as the program does is asked of it before it serves
(torch_packed.py).

Tested by tests/engine/test_packed_graph.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch.fx import Graph, GraphModule, Node

from transformer_serving.engine.backends.exported_program import LoadedProgram
from transformer_serving.engine.backends.graph_parts import MASK, Parts
from transformer_serving.engine.backends.graph_sizes import (
    Kind,
    Sizes,
    argument,
    expression,
    listed,
    rank,
)
from transformer_serving.engine.backends.packed_operators import (
    Attention,
    first_of_text,
    last_of_text,
    of_text,
    texts,
)

# The end of a slice that has none.
_NO_END = 2**31

# An operator's value in the packed graph and what it is over; None for what is not known.
Made = tuple[Node, Kind] | None


class Unpackable(Exception):
    """The graph has something across a text's tokens that is not known."""


@dataclass(frozen=True)
class Index:
    """Rows of a table that a text's tokens look up by their places in it.

    `of_place` holds the row of each place, None where it depends on the text; `module` gives
    [texts, tokens] of the program's inputs.
    """

    module: GraphModule
    of_place: NDArray[Any] | None


@dataclass(frozen=True)
class PackedGraph:
    """`module` takes the program's inputs as [1, tokens], one [1, tokens] for each of `indices`,
    the owner of each token (its text's number), cumulative lengths [texts + 1], and the longest.

    `per_text` says of each output whether it is [texts, ...] or [1, tokens, ...]; `places` how many
    rows the largest of the tables has, 0 without any.
    """

    module: GraphModule
    indices: tuple[Index, ...]
    per_text: tuple[bool, ...]
    places: int


def pack(loaded: LoadedProgram, attention: Attention) -> PackedGraph:
    """Raises Unpackable."""
    return _Packing(loaded, attention).packed()


def _names(*names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names)


# Each value by itself.
_POINTWISE = _names(
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "neg.default", "gelu.default",
    "relu.default", "tanh.default", "sigmoid.default", "silu.default", "erf.default",
    "to.dtype", "to.dtype_layout", "to.device", "_to_copy.default", "clone.default",
    "contiguous.default", "alias.default", "pow.Tensor_Scalar", "sqrt.default", "rsqrt.default",
    "clamp.default", "clamp_min.default", "expand_as.default", "dropout.default",
)  # fmt: skip
# Over the last axis, which is neither the texts' nor the tokens'.
_LAST = _names("linear.default", "layer_norm.default", "matmul.default")
# By the place of the argument that names its axes.
_AXES = {
    f"aten.{name}": place
    for name, place in {
        "softmax.int": 1, "cat.default": 1, "stack.default": 1, "select.int": 1, "slice.Tensor": 1,
        "squeeze.dim": 1, "split.Tensor": 2, "chunk.default": 2, "mean.dim": 1,
        "sum.dim_IntList": 1, "linalg_vector_norm.default": 2,
    }.items()
}  # fmt: skip
_MOVES = _names("transpose.int", "permute.default", "unsqueeze.default")
_VIEWS = _names("view.default", "reshape.default", "expand.default", "_unsafe_view.default")
_ITEM = "<built-in function getitem>"
# Whose axis is one of the result.
_MAKES_AXIS = _names("stack.default")
_EMBEDDING = "aten.embedding.default"


@dataclass
class _Packing:
    loaded: LoadedProgram
    attention: Attention
    graph: Graph = field(default_factory=Graph)
    new: dict[Node, Node] = field(default_factory=dict)
    kinds: dict[Node, Kind] = field(default_factory=dict)
    # Masks that were seen to block padding and nothing else.
    proven: set[Node] = field(default_factory=set)

    def packed(self) -> PackedGraph:
        self.nodes = list(self.loaded.module.graph.nodes)
        inputs = [node for node in self.nodes if node.op == "placeholder"]
        names = [tensor.name for tensor in self.loaded.program.inputs]
        if len(inputs) != len(names) or MASK not in names:
            raise Unpackable(f"it has no input '{MASK}'")
        self.inputs = dict(zip(inputs, names, strict=True))
        self.parts = Parts(self.loaded.module, self.inputs)
        self.sizes = _sizes(inputs)
        for node in inputs:
            self._set(node, (self.graph.placeholder(node.name), Kind.TOKENS))
        places, indices = self._indices()
        self.owners, self.cumulative, self.longest = map(
            self.graph.placeholder, ("owners", "cumulative", "longest")
        )
        for node in self.nodes:
            if node.op == "get_attr":
                self._set(node, (self.graph.node_copy(node), Kind.PLAIN))
            elif node.op == "call_function" and node not in self.kinds:
                self._set(node, _RULES.get(str(node.target), _Packing._by_table)(self, node))
        module, per_text = self._finished(self.nodes[-1].args[0])
        return PackedGraph(module, indices, per_text, places)

    def _finished(self, outputs: Any) -> tuple[GraphModule, tuple[bool, ...]]:
        kinds = [self.kinds.get(node, Kind.OTHER) for node in outputs]
        if not set(kinds) <= {Kind.TOKENS, Kind.TEXTS}:
            raise Unpackable("it computes across a text's tokens in a way that is not known")
        self.graph.output(tuple(self.new[node] for node in outputs))
        module = GraphModule(self.loaded.module, self.graph)
        module.graph.eliminate_dead_code()
        module.recompile()
        return module, tuple(kind is Kind.TEXTS for kind in kinds)

    def _set(self, node: Node, made: Made) -> None:
        self.kinds[node] = made[1] if made else Kind.OTHER
        if made:
            self.new[node] = made[0]

    def _indices(self) -> tuple[int, tuple[Index, ...]]:
        """A placeholder for each index that is not of the tokens' own values.

        The largest table is the one of positions, and has as many places as a text has at most.
        """
        tables: dict[Node, int] = {}
        for node in self.nodes:
            if node.op != "call_function" or str(node.target) != _EMBEDDING:
                continue
            table, source = argument(node, 0), argument(node, 1)
            if not self._of_values(source):
                tables[source] = max(tables.get(source, 0), int(table.meta["val"].shape[0]))
        for number, source in enumerate(tables):
            self._set(source, (self.graph.placeholder(f"index_{number}"), Kind.TOKENS))
        places = max(tables.values(), default=0)
        return places, tuple(self._index(source, places) for source in tables)

    def _of_values(self, node: Node) -> bool:
        while node.op == "call_function" and str(node.target) in _POINTWISE:
            node = argument(node, 0)
        return node in self.inputs

    def _index(self, source: Node, places: int) -> Index:
        module = self.parts.until(source)
        if self.parts.given(source):
            return Index(module, None)
        try:
            return Index(module, self.parts.of_ones(module, (1, places)))
        except (RuntimeError, IndexError) as error:
            raise Unpackable(f"its positions are not to be had: {error}") from None

    def _by_table(self, node: Node) -> Made:
        sources = {one for one in node.all_input_nodes if self.sizes.counted(one) is None}
        known = {self.kinds.get(one, Kind.OTHER) for one in sources}
        counts = len(sources) < len(node.all_input_nodes)
        if known <= {Kind.PLAIN} and not counts and not self.sizes.axes(node):
            return self._copied(node, Kind.PLAIN), Kind.PLAIN
        kind = self.sizes.kind(node)
        if kind is None or kind not in known or not known <= {Kind.PLAIN, kind}:
            return None
        if counts and str(node.target) not in _VIEWS:
            return None
        return (self._copied(node, kind), kind) if self._stays(node) else None

    def _stays(self, node: Node) -> bool:
        """Whether the operator leaves texts and tokens where they are, and mixes none."""
        name, first, axes = str(node.target), node.all_input_nodes[0], self.sizes.axes
        if name in _POINTWISE or name in _MOVES or name == _ITEM:
            return True
        if name in _LAST:
            return all(axis < rank(first) - 1 for axis in axes(first))
        if name in _VIEWS:
            return all(axes(one) in ([0, 1], [0]) for one in (first, node))
        if name not in _AXES:
            return False
        of = node if name in _MAKES_AXIS else first
        named = listed(argument(node, _AXES[name], 0))
        return not {axis % rank(of) for axis in named} & set(axes(of))

    def _copied(self, node: Node, kind: Kind) -> Node:
        return self.graph.node_copy(node, lambda one: self._now(one, kind))

    def _now(self, node: Node, kind: Kind) -> Any:
        """What stands for the value in the packed graph, for a result of `kind`."""
        size = self.sizes.counted(node)
        if size is None:
            return self.new[node]
        if size == "t":
            return self._call(torch.ops.aten.sym_size.int, self.owners, 0)
        return 1 if kind is Kind.TOKENS else self._call(texts, self.cumulative)

    def _call(self, function: Callable[..., Any], *given: Any) -> Node:
        return self.graph.call_function(function, given)

    def _lookup(self, node: Node) -> Made:
        table, index = argument(node, 0), argument(node, 1)
        known = self.kinds.get(table) is Kind.PLAIN and self.kinds.get(index) is Kind.TOKENS
        return (self._copied(node, Kind.TOKENS), Kind.TOKENS) if known else None

    def _attend(self, node: Node) -> Made:
        sources = [argument(node, place) for place in range(3)]
        mask = argument(node, 3, node.kwargs.get("attn_mask"))
        dropout, causal = (
            argument(node, place, node.kwargs.get(name))
            for place, name in ((4, "dropout_p"), (5, "is_causal"))
        )
        if mask is None or dropout or causal or node.kwargs.get("enable_gqa"):
            return None
        for one in sources:
            if self.kinds.get(one) is not Kind.TOKENS or self.sizes.axes(one) != [0, 2]:
                return None
        if mask not in self.proven and (fault := self.parts.mask_fault(mask)):
            raise Unpackable(fault)
        self.proven.add(mask)
        now = [self.new[one] for one in sources]
        given = (*now, self.cumulative, self.longest, node.kwargs.get("scale"))
        return self._call(self.attention, *given), Kind.TOKENS

    def _sum(self, node: Node) -> Made:
        """Over a text's tokens, or over something else."""
        source, named = argument(node, 0), argument(node, 1)
        if not self._all_tokens(source) or [one % rank(source) for one in listed(named)] != [1]:
            return self._by_table(node)
        now = self.new[source]
        if (dtype := node.kwargs.get("dtype")) is not None:
            now = self._call(torch.ops.aten.to.dtype, now, dtype)
        summed = self._call(of_text, now, self.owners, self.cumulative)
        if argument(node, 2, False):
            summed = self._call(torch.ops.aten.unsqueeze.default, summed, 1)
        return summed, Kind.TEXTS

    def _all_tokens(self, node: Node) -> bool:
        """[texts, tokens, ...], in this order."""
        return self.kinds.get(node) is Kind.TOKENS and self.sizes.axes(node) == [0, 1]

    def _select(self, node: Node) -> Made:
        source = argument(node, 0)
        if not self._all_tokens(source) or (argument(node, 1), argument(node, 2)) != (1, 0):
            return self._by_table(node)
        return self._call(first_of_text, self.new[source], self.cumulative), Kind.TEXTS

    def _gather(self, node: Node) -> Made:
        """A text's first or last token, found by its mask."""
        source, axis, index = (argument(node, place) for place in range(3))
        per_text = self.sizes.kind(node) is Kind.TEXTS and rank(node) == 3
        if not (self._all_tokens(source) and axis == 1 and per_text):
            return None
        pick = {"first": first_of_text, "last": last_of_text}.get(self.parts.picked(index) or "")
        if pick is None:
            return None
        picked = self._call(pick, self.new[source], self.cumulative)
        return self._call(torch.ops.aten.unsqueeze.default, picked, 1), Kind.TEXTS

    def _slice(self, node: Node) -> Made:
        source, (start, end, step) = argument(node, 0), (argument(node, at) for at in (2, 3, 4))
        no_end = end is None or (isinstance(end, int) and end > _NO_END)
        kind = self.kinds.get(source, Kind.OTHER)
        if no_end and not start and step in (None, 1) and kind is not Kind.OTHER:
            return self.new[source], kind
        return self._by_table(node)


_RULES: dict[str, Callable[[_Packing, Node], Made]] = {
    _EMBEDDING: _Packing._lookup,
    "aten.scaled_dot_product_attention.default": _Packing._attend,
    "aten.sum.dim_IntList": _Packing._sum,
    "aten.select.int": _Packing._select,
    "aten.gather.default": _Packing._gather,
    "aten.slice.Tensor": _Packing._slice,
}


def _sizes(inputs: Sequence[Node]) -> Sizes:
    shapes = [tuple(map(expression, node.meta["val"].shape)) for node in inputs]
    if any(len(shape) != 2 for shape in shapes):
        raise Unpackable("an input is not [texts, tokens]")
    of_texts, of_tokens = (frozenset(sizes) for sizes in zip(*shapes, strict=True))
    if of_texts & of_tokens or any(isinstance(size, int) for size in of_texts | of_tokens):
        raise Unpackable("its inputs have sizes that are not free")
    return Sizes(of_texts, of_tokens)
