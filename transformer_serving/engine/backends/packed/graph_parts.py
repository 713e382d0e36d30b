"""Parts of a program's graph, run by themselves: what some value in it is.

Tested by tests/engine/test_packed_graph.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Graph, GraphModule, Node

from transformer_serving.engine.backends.grouping import MASK

# Masks are tried with so many tokens, or as many as a text has at most: no window is wider.
_LEAST_TOKENS = 2048
# Of texts by which it is seen which of their tokens are picked.
_LENGTHS = (1, 2, 3, 5, 64, 100, 1023, _LEAST_TOKENS)
# What a mask adds to the score of a token that may not be looked at, at least.
_BLOCKED = -1e4
_SIZE = "aten.sym_size.int"


class Parts:
    """`inputs` are the graph's placeholders, by their names in the program."""

    def __init__(self, module: GraphModule, inputs: Mapping[Node, str]) -> None:
        self._module, self._inputs = module, inputs
        first = next(module.parameters(), None)
        self._device = torch.device("cpu") if first is None else first.device

    def until(self, wanted: Node) -> GraphModule:
        """The program as far as this value."""
        graph = Graph()
        made: dict[Node, Node] = {}
        needed = set(_behind([wanted], lambda one: one.all_input_nodes))
        for node in self._module.graph.nodes:
            if node in needed or node in self._inputs:
                made[node] = graph.node_copy(node, lambda one: made[one])
        graph.output((made[wanted],))
        return GraphModule(self._module, graph)

    def given(self, node: Node) -> set[str]:
        """The inputs whose values, not only sizes, the value depends on."""
        nodes = _behind([node], lambda one: [] if str(one.target) == _SIZE else one.all_input_nodes)
        return {self._inputs[one] for one in nodes if one in self._inputs}

    def of_places(self, module: GraphModule, places: int, rows: int) -> NDArray[Any]:
        """What a part gives for the places of a text, as far as a table of `rows` has them."""
        ones = torch.ones((1, places), dtype=torch.int32, device=self._device)
        [found] = self._of(module, ones)
        row: NDArray[Any] = found.reshape(-1, found.shape[-1])[0].cpu().numpy()
        outside = np.flatnonzero((row < 0) | (row >= rows))
        return row[: outside[0]] if len(outside) else row

    def row_of(self, module: GraphModule, places: int, value: int) -> torch.Tensor | None:
        """What a part gives for the places of a text without padding whose inputs are all `value`;
        None where that is not one number a place."""
        filled = torch.full((1, places), value, dtype=torch.int32, device=self._device)
        ones = torch.ones_like(filled)
        with torch.inference_mode():
            [found] = module(*[ones if name == MASK else filled for name in self._inputs.values()])
        fits = isinstance(found, torch.Tensor) and found.ndim in (1, 2)
        return found.reshape(-1, places)[0] if fits and found.shape[-1] == places else None

    def mask_fault(self, node: Node, places: int) -> str | None:
        """None for a mask of attention that lets a token look at all of its text's and at nothing
        else; else what it does. `places` is the most tokens of a text, 0 where it is not known."""
        if self.given(node) != {MASK}:
            return "its attention depends on more than which tokens are padding"
        tokens = max(_LEAST_TOKENS, places)
        there = self._there((tokens // 3, tokens))
        [found] = self._of(self.until(node), there)
        seen = found if found.dtype == torch.bool else found > _BLOCKED
        if found.dtype != torch.bool and bool((found[seen] != 0).any()):
            return "its attention is weighed by more than padding"
        if not torch.equal(seen, there.bool()[:, None, None, :].expand_as(seen)):
            return "its attention looks at some tokens of a text only"
        return None

    def picked(self, node: Node) -> str | None:
        """Which token of each text the index [texts, 1, width] is of, 'first' or 'last'."""
        if self.given(node) != {MASK}:
            return None
        [places] = self._of(self.until(node), self._there(_LENGTHS))
        last = torch.tensor(_LENGTHS, device=self._device)[:, None, None] - 1
        for name, wanted in (("first", 0 * last), ("last", last)):
            if torch.equal(places.long(), wanted.expand_as(places)):
                return name
        return None

    def _there(self, lengths: Sequence[int]) -> torch.Tensor:
        """The mask of texts of these lengths."""
        ends = torch.tensor(lengths, device=self._device)[:, None]
        return (torch.arange(max(lengths), device=self._device) < ends).int()

    def _of(self, module: GraphModule, value: torch.Tensor) -> Any:
        with torch.inference_mode():
            return module(*[value for _ in self._inputs])


def _behind(nodes: Sequence[Node], come_from: Callable[[Node], Sequence[Node]]) -> Iterator[Node]:
    """These nodes, and all that they come from."""
    left, seen = list(nodes), set(nodes)
    while left:
        one = left.pop()
        yield one
        new = [source for source in come_from(one) if source not in seen]
        seen.update(new)
        left += new
