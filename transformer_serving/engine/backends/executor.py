"""Runs the requests of one execute(): checks each, groups them, isolates the one that fails.

Tested by tests/engine/test_grouping.py and tests/engine/test_backends.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from transformer_serving.engine.backends.grouping import (
    TOKENS,
    Arrays,
    Group,
    Item,
    Layout,
    axis_of,
    join,
    plan_groups,
    split,
)
from transformer_serving.engine.backends.model_settings import TensorSpec


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


class Executor:
    """One instance's way from arrays to arrays; knows nothing of Triton."""

    def __init__(self, runtime: Runtime, layout: Layout) -> None:
        self._runtime = runtime
        self._layout = layout
        self._inputs = {spec.name: spec for spec in runtime.graph.inputs}

    def answers(
        self, requests: Sequence[Mapping[str, NDArray[Any]]]
    ) -> list[Arrays | RequestFailure]:
        """One answer for each request, in order."""
        answers: list[Arrays | RequestFailure] = []
        items: list[Item] = []
        for index, arrays in enumerate(requests):
            failure = self._check(arrays)
            # The place of an item that runs; overwritten below.
            answers.append(failure or {})
            if failure is None:
                items.append(_item(index, arrays))
        groups = plan_groups(items, self._layout)
        for index, answer in self._run(groups):
            answers[index] = answer
        return answers

    def _run(self, groups: Sequence[Group]) -> list[tuple[int, Arrays | RequestFailure]]:
        if not groups:
            return []
        results = self._runtime.run([join(group) for group in groups])
        answered: list[tuple[int, Arrays | RequestFailure]] = []
        again: list[Group] = []
        for group, result in zip(groups, results, strict=True):
            if not isinstance(result, RequestFailure):
                parts = split(result, group, self._layout)
                answered += [
                    (item.index, part) for item, part in zip(group.items, parts, strict=True)
                ]
            elif len(group.items) == 1:
                answered.append((group.items[0].index, result))
            else:
                # Someone in this batch is bad: each on its own, so that only that one fails.
                again += [Group((item,), item.length) for item in group.items]
        return answered + self._run(again)

    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> RequestFailure | None:
        for name, spec in self._inputs.items():
            reason = (
                f"input '{name}' is missing"
                if name not in arrays
                else _tensor_fault(spec, arrays[name]) or self._id_fault(spec, arrays[name])
            )
            if reason:
                return RequestFailure(reason, invalid=True)
        if self._layout.joinable and len({array.shape[0] for array in arrays.values()}) > 1:
            return RequestFailure("the inputs differ in their batch size", invalid=True)
        lengths = _token_lengths(arrays)
        if self._layout.mask and len(lengths) > 1:
            return RequestFailure("the inputs differ in their number of tokens", invalid=True)
        longest, places = max(lengths, default=0), self._runtime.graph.places
        if places is not None and longest > places:
            reason = f"the inputs have {longest} tokens, and the model has positions for {places}"
            return RequestFailure(reason, invalid=True)
        return _position_fault(arrays, longest)

    def _id_fault(self, spec: TensorSpec, array: NDArray[Any]) -> str | None:
        """Runtimes differ on ids outside the table: an error, another row, or a wild read."""
        limit = self._runtime.graph.id_limits.get(spec.name)
        if array.size == 0 or not spec.integer:
            return None
        if (limit is not None or spec.name.endswith("ids")) and array.min() < 0:
            return f"input '{spec.name}' has an id below 0"
        if limit is not None and array.max() >= limit:
            return f"input '{spec.name}' has an id above {limit - 1}, the model's last"
        return None


def _item(index: int, arrays: Mapping[str, NDArray[Any]]) -> Item:
    shapes = [array.shape for array in arrays.values()]
    rows = shapes[0][0] if shapes and shapes[0] else 1
    return Item(index, dict(arrays), rows, max(_token_lengths(arrays), default=0))


def _token_lengths(arrays: Mapping[str, NDArray[Any]]) -> set[int]:
    """The sizes of the inputs' token axes; one where they agree."""
    return {
        array.shape[1]
        for name, array in arrays.items()
        if array.ndim > 1 and axis_of(name) == TOKENS
    }


def _position_fault(arrays: Mapping[str, NDArray[Any]], length: int) -> RequestFailure | None:
    positions = arrays.get("mask_positions")
    if positions is None or (positions.min() >= 0 and positions.max() < length):
        return None
    return RequestFailure("input 'mask_positions' has a position outside the text", invalid=True)


def _tensor_fault(spec: TensorSpec, array: NDArray[Any]) -> str | None:
    if array.dtype != np.dtype(spec.dtype):
        return f"input '{spec.name}' must be {spec.dtype}, got {array.dtype}"
    if array.ndim != len(spec.dims):
        return f"input '{spec.name}' must have {len(spec.dims)} dimensions, got {array.ndim}"
    if array.size == 0:
        return f"input '{spec.name}' is empty"
    for axis, (size, wanted) in enumerate(zip(array.shape, spec.dims, strict=True)):
        if wanted not in (-1, size):
            return f"input '{spec.name}' must have {wanted} in dimension {axis}, got {size}"
    return None
