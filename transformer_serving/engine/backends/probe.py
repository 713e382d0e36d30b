"""Learns a graph's axes by asking it: may requests be joined, may they be padded, what is cut.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_serving.engine.backends.executor import Graph, RequestFailure, Runtime
from transformer_serving.engine.backends.grouping import (
    EXTRA_INPUTS,
    MASK,
    TOKENS,
    Arrays,
    Layout,
    axis_of,
)

_IDS = "input_ids"
_SHORT, _LONG = 5, 8
# What each axis counts in the short and in the long run; no pair is like another.
_SIZES = {TOKENS: (_SHORT, _LONG), **{name: (2 + i, 3 + i) for i, name in enumerate(EXTRA_INPUTS)}}
# Of padding that is to change nothing: no id of a text of _SHORT tokens, and no usual special one.
_FILLER = 7
# Reduced precision may move an answer by this share of its size; a pooling that reads padding
# moves it far more.
_TOLERANCE = 0.05

# Of each output the axes of a text's own size, and what they count.
Axes = dict[str, dict[int, str]]


def probe(runtime: Runtime) -> Layout:
    """The layout of a text model; an empty one when the graph is not of that kind."""
    graph = runtime.graph
    if not all(spec.integer and spec.dims == (-1, -1) for spec in graph.inputs):
        return Layout()
    short, longer, padded = (
        runtime.run([_batch(graph, rows, tokens, length)])[0]
        for rows, tokens, length in ((2, _SHORT, _SHORT), (1, _LONG, _LONG), (2, _SHORT, _LONG))
    )
    if isinstance(short, RequestFailure) or isinstance(longer, RequestFailure):
        return Layout()
    if not all(_rows(short[name]) == 2 and _rows(longer[name]) == 1 for name in short):
        return Layout()
    axes = {name: _own_axes(short[name], longer[name]) for name in short}
    layout = Layout(joinable=True, own_axes=axes)
    has_mask = any(spec.name == MASK for spec in graph.inputs)
    if not has_mask or isinstance(padded, RequestFailure) or not _equal(short, padded, axes):
        return layout
    if _reads_padding(runtime, padded, axes):
        return layout
    return Layout(joinable=True, mask=MASK, own_axes=axes)


def _reads_padding(runtime: Runtime, padded: Arrays, axes: Axes) -> bool:
    """Whether other ids behind the second text change its answer at all. A decoder's classifier
    looks for the last id that is not its padding's, and what it reads may be near to the text's.

    Where they change the first text's as well, a batch is quantized as a whole (dynamic int8), and
    nothing can be told by it.
    """
    batch = _batch(runtime.graph, 2, _SHORT, _LONG)
    if _IDS not in batch:
        return False
    batch[_IDS][1, _SHORT:] = _FILLER % (runtime.graph.id_limits.get(_IDS) or _LONG)
    other = runtime.run([batch])[0]
    if isinstance(other, RequestFailure):
        return True
    pairs = [(_own(padded, axes, name), _own(other, axes, name)) for name in padded]
    first, second = (all(np.array_equal(a[row], b[row]) for a, b in pairs) for row in (0, 1))
    return first and not second


def _batch(graph: Graph, rows: int, tokens: int, length: int) -> Arrays:
    """`rows` texts of `tokens` different small ids, padded to `length` with zeros."""
    return {
        spec.name: _matrix(spec.name, graph.id_limits.get(spec.name), rows, tokens, length).astype(
            spec.dtype
        )
        for spec in graph.inputs
    }


def _matrix(name: str, limit: int | None, rows: int, tokens: int, length: int) -> NDArray[Any]:
    axis = axis_of(name)
    if axis != TOKENS:
        own, width = (_SIZES[axis][size > _SHORT] for size in (tokens, length))
        matrix = np.zeros((rows, width), dtype=np.int64)
        matrix[:, :own] = np.arange(own)
        return matrix
    matrix = np.zeros((rows, length), dtype=np.int64)
    if name == MASK:
        matrix[:, :tokens] = 1
    elif name == _IDS:
        # Different ids, so that reading the wrong position shows; all in any real vocabulary.
        matrix[:, :tokens] = (np.arange(tokens) + 1) % (limit or _LONG)
    return matrix


def _rows(array: NDArray[Any]) -> int:
    return int(array.shape[0]) if array.ndim else 0


def _own_axes(short: NDArray[Any], longer: NDArray[Any]) -> dict[int, str]:
    names = {sizes: name for name, sizes in _SIZES.items()}
    sizes = zip(short.shape, longer.shape, strict=True)
    return {axis: names[pair] for axis, pair in enumerate(sizes) if axis and pair in names}


def _own(padded: Arrays, axes: Axes, name: str) -> NDArray[Any]:
    """The output, cut to what the short text has of its own."""
    array = padded[name]
    index: list[slice] = [slice(None)] * array.ndim
    for axis, counted in axes[name].items():
        index[axis] = slice(_SIZES[counted][0])
    return array[tuple(index)]


def _equal(short: Arrays, padded: Arrays, axes: Axes) -> bool:
    for name, expected in short.items():
        got = _own(padded, axes, name)
        if got.shape != expected.shape:
            return False
        if np.issubdtype(expected.dtype, np.integer):
            # Ids in the order of their scores: reduced precision may swap two near ones.
            continue
        scale = max(1e-3, float(np.abs(expected).max(initial=0.0)))
        if not np.allclose(got, expected, rtol=0.0, atol=_TOLERANCE * scale):
            return False
    return True
