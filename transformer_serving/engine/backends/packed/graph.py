"""A program's graph for texts that lie one behind the other in one row, without padding.

The program computes [texts, tokens]. Nearly all of it looks at one token at a time, and computes
the same for a row of all texts' tokens, [1, tokens]. Three things do not, and are put in place of
what is there: attention, which gets where each text begins; indices that count a text's tokens
(positions), which come from outside; and what makes one vector of a text, a sum over its tokens,
its first or its last one. A graph with anything else across tokens is not packed.

Whether a packed graph answers as the program does is asked of it before it serves
(calls.py).

Tested by tests/engine/test_packed_graph.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch.fx import Graph, GraphModule, Node

from transformer_serving.engine.backends.exported_program import EMBEDDING, LoadedProgram
from transformer_serving.engine.backends.grouping import MASK, TOKENS, axis_of
from transformer_serving.engine.backends.packed.graph_parts import Parts
from transformer_serving.engine.backends.packed.graph_sizes import (
    Kind,
    Sizes,
    argument,
    expression,
    listed,
    rank,
)
from transformer_serving.engine.backends.packed.operators import (
    Attention,
    first_of_text,
    last_of_text,
    of_text,
    texts,
)
from transformer_serving.engine.backends.packed.token_operators import POINTWISE, VIEWS, stays

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
    [texts, tokens] of the program's inputs. `rows` are those of the smallest table.
    """

    module: GraphModule
    of_place: NDArray[Any] | None
    rows: int


@dataclass(frozen=True)
class PackedGraph:
    """`module` takes the program's inputs as [1, tokens], one [1, tokens] for each of `indices`,
    the owner of each token (its text's number), cumulative lengths [texts + 1], and the longest.

    `per_text` says of each output whether it is [texts, ...] or [1, tokens, ...]; `places` how many
    tokens a text has at most, 0 where nothing says so.
    """

    module: GraphModule
    indices: tuple[Index, ...]
    per_text: tuple[bool, ...]
    places: int


def pack(loaded: LoadedProgram, attention: Attention) -> PackedGraph:
    """Raises Unpackable."""
    return _Packing(loaded, attention).packed()


def _index(parts: Parts, source: Node, most: int, rows: int) -> Index:
    module = parts.until(source)
    if parts.given(source):
        return Index(module, None, rows)
    try:
        return Index(module, parts.of_places(module, most, rows), rows)
    except (RuntimeError, IndexError) as error:
        raise Unpackable(f"its positions are not to be had: {error}") from None


def _writes(node: Node) -> bool:
    """Into a value that it is given, which no edge of the graph shows."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


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
        if any(axis_of(name) != TOKENS for name in names):
            raise Unpackable("it has an input that is not of tokens")
        if any(map(_writes, self.nodes)):
            raise Unpackable("it writes into values that it has")
        self.inputs = dict(zip(inputs, names, strict=True))
        self.sizes = _sizes(inputs)
        for node in inputs:
            self._set(node, (self.graph.placeholder(node.name), Kind.TOKENS))
        self.parts = Parts(self.loaded.module, self.inputs)
        self.places, indices = self._indices()
        self.owners, self.cumulative, self.longest = map(
            self.graph.placeholder, ("owners", "cumulative", "longest")
        )
        for node in self.nodes:
            if node.op == "get_attr":
                self._set(node, (self.graph.node_copy(node), Kind.PLAIN))
            elif node.op == "call_function" and node not in self.kinds:
                self._set(node, _RULES.get(str(node.target), _Packing.by_table)(self, node))
        module, per_text = self._finished(self.nodes[-1].args[0])
        return PackedGraph(module, indices, per_text, self.places)

    def _finished(self, outputs: Any) -> tuple[GraphModule, tuple[bool, ...]]:
        kinds = [self.kinds.get(node, Kind.OTHER) for node in outputs]
        in_front = {Kind.TOKENS: [0, 1], Kind.TEXTS: [0]}
        if [in_front.get(kind) for kind in kinds] != list(map(self.sizes.axes, outputs)):
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
        """A placeholder for each index that is not of the tokens' own values, and the places that
        their tables leave a text."""
        tables: dict[Node, list[int]] = {}
        for node in self.nodes:
            if node.op == "call_function" and str(node.target) == EMBEDDING:
                table, source = argument(node, 0), argument(node, 1)
                if self.sizes.of_tokens(source) and not self._of_values(source):
                    tables.setdefault(source, []).append(int(table.meta["val"].shape[0]))
        fixed = [rows for source, rows in tables.items() if not self.parts.given(source)]
        # The largest table is the one of positions.
        most = max(map(max, fixed or tables.values()), default=0)
        indices = []
        for number, (source, rows) in enumerate(tables.items()):
            self._set(source, (self.graph.placeholder(f"index_{number}"), Kind.TOKENS))
            indices.append(_index(self.parts, source, most, min(rows)))
        known = [len(one.of_place) for one in indices if one.of_place is not None]
        # Of a table that texts look up themselves the first rows are for padding.
        return min(known, default=max(0, most - max(2, most // 16))), tuple(indices)

    def _of_values(self, node: Node) -> bool:
        while node.op == "call_function" and str(node.target) in POINTWISE:
            node = argument(node, 0)
        return node in self.inputs

    def by_table(self, node: Node) -> Made:
        sources = {one for one in node.all_input_nodes if self.sizes.counted(one) is None}
        known = {self.kinds.get(one, Kind.OTHER) for one in sources}
        counts = len(sources) < len(node.all_input_nodes)
        if known <= {Kind.PLAIN} and not counts and not self.sizes.axes(node):
            return self._copied(node, Kind.PLAIN), Kind.PLAIN
        kind = self.sizes.kind(node)
        if kind is None or kind not in known or not known <= {Kind.PLAIN, kind}:
            return None
        if counts and str(node.target) not in VIEWS:
            return None
        return (self._copied(node, kind), kind) if stays(node, self.sizes) else None

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

    def lookup(self, node: Node) -> Made:
        table, index = argument(node, 0), argument(node, 1)
        kind = self.kinds.get(index, Kind.OTHER)
        known = self.kinds.get(table) is Kind.PLAIN and kind in (Kind.PLAIN, Kind.TOKENS)
        return (self._copied(node, kind), kind) if known else None

    def attend(self, node: Node) -> Made:
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
        if mask not in self.proven and (fault := self.parts.mask_fault(mask, self.places)):
            raise Unpackable(fault)
        self.proven.add(mask)
        now = [self.new[one] for one in sources]
        given = (*now, self.cumulative, self.longest, node.kwargs.get("scale"))
        return self._call(self.attention, *given), Kind.TOKENS

    def sum(self, node: Node) -> Made:
        """Over a text's tokens that are no padding, or over something else."""
        source, named = argument(node, 0), argument(node, 1)
        if not self._all_tokens(source) or [one % rank(source) for one in listed(named)] != [1]:
            return self.by_table(node)
        if not self._masked(source):
            return None
        now = self.new[source]
        if (dtype := node.kwargs.get("dtype")) is not None:
            now = self._call(torch.ops.aten.to.dtype, now, dtype)
        summed = self._call(of_text, now, self.owners, self.cumulative)
        if argument(node, 2, False):
            summed = self._call(torch.ops.aten.unsqueeze.default, summed, 1)
        return summed, Kind.TEXTS

    def _masked(self, node: Node) -> bool:
        """The mask in some form, or a product with it."""
        if self.parts.given(node) == {MASK}:
            return True
        factors = node.all_input_nodes if str(node.target) == "aten.mul.Tensor" else []
        return any(self.parts.given(one) == {MASK} for one in factors)

    def _all_tokens(self, node: Node) -> bool:
        """[texts, tokens, ...], in this order."""
        return self.kinds.get(node) is Kind.TOKENS and self.sizes.axes(node) == [0, 1]

    def select(self, node: Node) -> Made:
        source = argument(node, 0)
        if not self._all_tokens(source) or (argument(node, 1), argument(node, 2)) != (1, 0):
            return self.by_table(node)
        return self._call(first_of_text, self.new[source], self.cumulative), Kind.TEXTS

    def gather(self, node: Node) -> Made:
        """A text's first or last token, found by its mask."""
        source, axis, index = (argument(node, place) for place in range(3))
        if not self._all_tokens(source) or axis != 1 or self.sizes.kind(node) is not Kind.TEXTS:
            return None
        if node.meta["val"].shape[1:] != (1, source.meta["val"].shape[2]):
            return None
        pick = {"first": first_of_text, "last": last_of_text}.get(self.parts.picked(index) or "")
        if pick is None:
            return None
        picked = self._call(pick, self.new[source], self.cumulative)
        return self._call(torch.ops.aten.unsqueeze.default, picked, 1), Kind.TEXTS

    def slice(self, node: Node) -> Made:
        source, (start, end, step) = argument(node, 0), (argument(node, at) for at in (2, 3, 4))
        no_end = end is None or (isinstance(end, int) and end > _NO_END)
        kind = self.kinds.get(source, Kind.OTHER)
        if no_end and not start and step in (None, 1) and kind is not Kind.OTHER:
            return self.new[source], kind
        return self.by_table(node)


_RULES: dict[str, Callable[[_Packing, Node], Made]] = {
    EMBEDDING: _Packing.lookup,
    "aten.scaled_dot_product_attention.default": _Packing.attend,
    "aten.sum.dim_IntList": _Packing.sum,
    "aten.select.int": _Packing.select,
    "aten.gather.default": _Packing.gather,
    "aten.slice.Tensor": _Packing.slice,
}


def _sizes(inputs: Sequence[Node]) -> Sizes:
    shapes = [tuple(map(expression, node.meta["val"].shape)) for node in inputs]
    if any(len(shape) != 2 for shape in shapes):
        raise Unpackable("an input is not [texts, tokens]")
    of_texts, of_tokens = (frozenset(sizes) for sizes in zip(*shapes, strict=True))
    if of_texts & of_tokens or any(isinstance(size, int) for size in of_texts | of_tokens):
        raise Unpackable("its inputs have sizes that are not free")
    return Sizes(of_texts, of_tokens)
