"""Runs the requests of one execute(): groups them, checks them, isolates the one that fails.

Tested by tests/engine/test_grouping.py and tests/engine/test_backends.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from transformer_serving.engine.backends.grouping import (
    Arrays,
    Group,
    Item,
    Layout,
    join,
    plan_groups,
    split,
)
from transformer_serving.engine.backends.model_settings import TensorSpec
from transformer_serving.engine.backends.request_checks import RequestChecks, form_of


@dataclass(frozen=True)
class RequestFailure:
    """Why a request failed; `invalid` when the request itself is at fault."""

    reason: str
    invalid: bool


@dataclass(frozen=True)
class Graph:
    """Inputs and outputs of a loaded model; `id_limits` holds sizes of embedding tables, `places`
    the most tokens that it has positions for, None where nothing says so."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    id_limits: Mapping[str, int] = field(default_factory=dict)
    places: int | None = None


class Runtime(Protocol):
    """A model that runs batches; a batch that fails gives its RequestFailure, the others arrays."""

    @property
    def graph(self) -> Graph: ...

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]: ...


# A request by its index, and what it gets.
Answered = tuple[int, Arrays | RequestFailure]


class Executor:
    """One instance's way from arrays to arrays; knows nothing of Triton."""

    def __init__(self, runtime: Runtime, layout: Layout) -> None:
        self._runtime = runtime
        self._layout = layout
        graph = runtime.graph
        self._checks = RequestChecks(
            graph.inputs, graph.id_limits, graph.places, joinable=layout.joinable,
            padded=bool(layout.mask),
        )  # fmt: skip

    def answers(
        self, requests: Sequence[Mapping[str, NDArray[Any]]]
    ) -> list[Arrays | RequestFailure]:
        """One answer for each request, in order."""
        # The places of those that run; overwritten below.
        answers: list[Arrays | RequestFailure] = [{} for _ in requests]
        items: list[Item] = []
        for index, arrays in enumerate(requests):
            shape = self._checks.shape(form_of(arrays))
            if shape is None:
                answers[index] = self._refusal(arrays) or {}
            else:
                items.append(Item(index, arrays, shape))
        for index, answer in self._checked(items):
            answers[index] = answer
        return answers

    def _checked(self, items: Sequence[Item]) -> list[Answered]:
        """Of requests whose form holds: those whose values do run together, as if alone here."""
        groups = plan_groups(items, self._layout)
        batches = list(map(join, groups))
        doubtful = [
            item
            for group, batch in zip(groups, batches, strict=True)
            if not self._checks.values_hold(batch, group.items)
            for item in group.items
        ]
        if not doubtful:
            return self._run(groups, batches)
        refused = {
            item.index: refusal
            for item in doubtful
            if not self._checks.values_hold(item.arrays, (item,))
            and (refusal := self._refusal(item.arrays))
        }
        groups = plan_groups([item for item in items if item.index not in refused], self._layout)
        return [*refused.items(), *self._run(groups, list(map(join, groups)))]

    def _refusal(self, arrays: Mapping[str, NDArray[Any]]) -> RequestFailure | None:
        reason = self._checks.fault(arrays)
        return RequestFailure(reason, invalid=True) if reason else None

    def _run(self, groups: Sequence[Group], batches: Sequence[Arrays]) -> list[Answered]:
        if not groups:
            return []
        answered: list[Answered] = []
        again: list[Group] = []
        for group, result in zip(groups, self._runtime.run(batches), strict=True):
            if not isinstance(result, RequestFailure):
                parts = split(result, group, self._layout)
                answered += [
                    (item.index, part) for item, part in zip(group.items, parts, strict=True)
                ]
            elif len(group.items) == 1:
                answered.append((group.items[0].index, result))
            else:
                # Someone in this batch is bad: each on its own, so that only that one fails.
                again += [Group((item,), item.shape.tokens) for item in group.items]
        return answered + self._run(again, list(map(join, again)))
