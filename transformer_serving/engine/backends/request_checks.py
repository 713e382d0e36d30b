"""What the arrays of a request must be for its model, and what is said of one that is not so.

Names, types and shapes are alike in most requests, so that a form is checked once; values are
checked in the batch that requests are joined to. Only where those are at fault each request is
asked by itself.

Tested by tests/engine/test_grouping.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_serving.engine.backends.grouping import TOKENS, Item, Shape, axis_of
from transformer_serving.engine.backends.model_settings import TensorSpec

# Of each array its name, type and shape.
Form = tuple[tuple[str, "np.dtype[Any]", tuple[int, ...]], ...]
Sizes = Mapping[str, tuple[int, ...]]

_POSITIONS = "mask_positions"
# Forms that are remembered: some hundred lengths, each by the rows of usual calls.
_REMEMBERED = 4096


def form_of(arrays: Mapping[str, NDArray[Any]]) -> Form:
    return tuple([(name, array.dtype, array.shape) for name, array in arrays.items()])


class RequestChecks:
    """By a model's inputs, the rows of their embedding tables, and the most tokens of a text.

    `joinable`: a request's inputs must agree in their rows; `padded`: in their tokens as well.
    """

    def __init__(
        self, inputs: Sequence[TensorSpec], id_limits: Mapping[str, int], places: int | None, *,
        joinable: bool, padded: bool,
    ) -> None:  # fmt: skip
        self._inputs, self._id_limits, self._places = inputs, id_limits, places
        self._joinable, self._padded = joinable, padded
        self._ends = {
            spec.name: end for spec in inputs if (end := _end(spec, id_limits.get(spec.name)))
        }
        self.shape = lru_cache(_REMEMBERED)(self._shape)

    def _shape(self, form: Form) -> Shape | None:
        """Of requests of this form; None where it is at fault."""
        given = {name: (dtype, shape) for name, dtype, shape in form}
        sizes = {name: shape for name, _, shape in form}
        faults = (_tensor_fault(spec, given.get(spec.name)) for spec in self._inputs)
        if any(faults) or self._sizes_fault(sizes):
            return None
        first = next(iter(sizes.values()), ())
        own = tuple(sorted((name, shape[1:]) for name, shape in sizes.items()))
        return Shape(first[0] if first else 1, max(_token_lengths(sizes), default=0), own)

    def values_hold(self, batch: Mapping[str, NDArray[Any]], items: Sequence[Item]) -> bool:
        """Whether no item's values are at fault; they are joined in the batch, padded by zeros."""
        for name, (unsigned, end) in self._ends.items():
            # As unsigned numbers those below 0 lie beyond all others.
            if np.maximum.reduce(batch[name].view(unsigned), axis=None) >= end:
                return False
        positions = batch.get(_POSITIONS)
        if positions is None:
            return True
        lengths = [item.shape.tokens for item in items]
        ends: Any = lengths[0]
        if len(set(lengths)) > 1:
            ends = np.repeat(lengths, [item.shape.rows for item in items])[:, np.newaxis]
        return bool(positions.min() >= 0 and (positions < ends).all())

    def fault(self, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """The first one of a request, its values included; None where it has none."""
        for spec in self._inputs:
            array = arrays.get(spec.name)
            reason = _tensor_fault(spec, None if array is None else (array.dtype, array.shape))
            if reason := reason or self._id_fault(spec, arrays[spec.name]):
                return reason
        sizes = {name: array.shape for name, array in arrays.items()}
        return self._sizes_fault(sizes) or _position_fault(arrays, _token_lengths(sizes))

    def _sizes_fault(self, sizes: Sizes) -> str | None:
        if self._joinable and len({shape[0] for shape in sizes.values()}) > 1:
            return "the inputs differ in their batch size"
        lengths = _token_lengths(sizes)
        if self._padded and len(lengths) > 1:
            return "the inputs differ in their number of tokens"
        longest, places = max(lengths, default=0), self._places
        if places is not None and longest > places:
            return f"the inputs have {longest} tokens, and the model has positions for {places}"
        return None

    def _id_fault(self, spec: TensorSpec, array: NDArray[Any]) -> str | None:
        """Runtimes differ on ids outside the table: an error, another row, or a wild read."""
        limit = self._id_limits.get(spec.name)
        if array.size == 0 or not spec.integer:
            return None
        if (limit is not None or spec.name.endswith("ids")) and array.min() < 0:
            return f"input '{spec.name}' has an id below 0"
        if limit is not None and array.max() >= limit:
            return f"input '{spec.name}' has an id above {limit - 1}, the model's last"
        return None


def _end(spec: TensorSpec, limit: int | None) -> tuple[np.dtype[Any], int] | None:
    """The first id beyond those that the input may have, and the type in which ids below 0 are
    beyond it as well; None where any number may come."""
    if not spec.integer or (limit is None and not spec.name.endswith("ids")):
        return None
    dtype = np.dtype(spec.dtype)
    end = int(np.iinfo(dtype).max) + 1
    return np.dtype(f"u{dtype.itemsize}"), end if limit is None else min(end, limit)


def _token_lengths(sizes: Sizes) -> set[int]:
    """The sizes of the inputs' token axes; one where they agree."""
    return {shape[1] for name, shape in sizes.items() if len(shape) > 1 and axis_of(name) == TOKENS}


def _position_fault(arrays: Mapping[str, NDArray[Any]], lengths: set[int]) -> str | None:
    positions = arrays.get(_POSITIONS)
    length = max(lengths, default=0)
    if positions is None or (positions.min() >= 0 and positions.max() < length):
        return None
    return f"input '{_POSITIONS}' has a position outside the text"


def _tensor_fault(
    spec: TensorSpec, given: tuple[np.dtype[Any], tuple[int, ...]] | None
) -> str | None:
    if given is None:
        return f"input '{spec.name}' is missing"
    dtype, shape = given
    if dtype != np.dtype(spec.dtype):
        return f"input '{spec.name}' must be {spec.dtype}, got {dtype}"
    if len(shape) != len(spec.dims):
        return f"input '{spec.name}' must have {len(spec.dims)} dimensions, got {len(shape)}"
    if 0 in shape:
        return f"input '{spec.name}' is empty"
    for axis, (size, wanted) in enumerate(zip(shape, spec.dims, strict=True)):
        if wanted not in (-1, size):
            return f"input '{spec.name}' must have {wanted} in dimension {axis}, got {size}"
    return None
