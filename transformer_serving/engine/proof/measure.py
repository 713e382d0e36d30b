"""How far an engine's outputs are from the reference's, by what the outputs are.

Tested by tests/engine/proof/test_verdict.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_serving.engine.proof.arrays import Array
from transformer_serving.engine.proof.parity_set import ParitySet
from transformer_serving.engine.proof.rows import KINDS, ParityRow

# Of so few columns a direction says nothing that their difference does not.
_COLUMNS = 3


@dataclass(frozen=True)
class Distance:
    """`difference` of an answer's elements, relative where they are larger than 1; `cosine` of the
    vectors, the lowest of all; `raw` of the logits, as a part of the largest logit of the set.

    `cosine` and `raw` are None where an output has no such thing.
    """

    difference: float
    cosine: float | None = None
    raw: float | None = None


_FAR = Distance(float("inf"), -1.0)


def scale_of(parity_set: ParitySet) -> float:
    """The largest number of the reference's first output: the size that logits have there."""
    name = parity_set.outputs[0]
    return max(float(np.abs(row.outputs[name]).max()) for row in parity_set.rows) or 1.0


def distance(
    parity_set: ParitySet, row: ParityRow, got: Mapping[str, Array], length: int, scale: float
) -> Distance:
    """How far one text's outputs, padded to `length`, are; infinitely for another shape or for what
    is no number. `scale` is that of scale_of."""
    wanted = [np.asarray(row.outputs[name], np.float64) for name in parity_set.outputs]
    found = _own_part(parity_set, row, got, length)
    if found is None or [one.shape for one in found] != [one.shape for one in wanted]:
        return _FAR
    if not all(np.isfinite(one).all() for one in found):
        return _FAR
    return _MEASURES[parity_set.kind](wanted, found, scale)


def _own_part(
    parity_set: ParitySet, row: ParityRow, got: Mapping[str, Array], length: int
) -> list[Array] | None:
    """The row's own values as float64, without padding; None where they are not all there."""
    start = length - row.tokens if parity_set.padding_side == "left" else 0
    places = np.arange(row.tokens) if row.positions is None else row.positions
    found = []
    for name, (axes, has_tokens) in zip(parity_set.outputs, KINDS[parity_set.kind], strict=True):
        array = got.get(name)
        if array is None or array.ndim != axes or (has_tokens and len(array) != length):
            return None
        if has_tokens:
            array = array[start + places]
        elif axes > 1:
            # Of masks and candidates a batch has as many as its richest text.
            array = array[tuple(slice(size) for size in row.outputs[name].shape)]
        found.append(np.asarray(array, np.float64))
    return found


def _logits(
    probabilities: Callable[[Array], Array], axis: int
) -> Callable[[Sequence[Array], Sequence[Array], float], Distance]:
    """Compared as the answers that are made of them, and as they are: a softmax that is near its
    end hides a wrong engine. `axis` is the one along which they are one decision."""

    def measure(wanted: Sequence[Array], found: Sequence[Array], scale: float) -> Distance:
        ours, theirs = wanted[0], found[0]
        return Distance(
            _largest(probabilities(ours), probabilities(theirs)),
            _centred_cosine(ours, theirs, axis),
            float(np.abs(ours - theirs).max()) / scale,
        )

    return measure


def _largest(wanted: Array, found: Array) -> float:
    scale = max(1.0, float(np.abs(wanted).max()))
    return float(np.abs(wanted - found).max()) / scale


def _centred_cosine(wanted: Array, found: Array, axis: int) -> float | None:
    """Of what differs between the columns; None where there are too few of them to say."""
    if wanted.shape[axis] < _COLUMNS:
        return None
    return _cosine(
        np.moveaxis(wanted - wanted.mean(axis=axis, keepdims=True), axis, -1),
        np.moveaxis(found - found.mean(axis=axis, keepdims=True), axis, -1),
    )


def _cosine(wanted: Array, found: Array) -> float:
    """The lowest of the vectors of the last axis; 1 for two that are nothing."""
    sizes = np.linalg.norm(wanted, axis=-1) * np.linalg.norm(found, axis=-1)
    empty = (np.linalg.norm(wanted, axis=-1) < 1e-12) & (np.linalg.norm(found, axis=-1) < 1e-12)
    cosines = np.where(empty, 1.0, (wanted * found).sum(axis=-1) / np.maximum(sizes, 1e-30))
    return float(cosines.min())


def _softmax(axis: int) -> Callable[[Array], Array]:
    def softmax(logits: Array) -> Array:
        exponents = np.exp(logits - logits.max(axis=axis, keepdims=True))
        result: Array = exponents / exponents.sum(axis=axis, keepdims=True)
        return result

    return softmax


def _sigmoid(logits: Array) -> Array:
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return result


def _vectors(wanted: Sequence[Array], found: Sequence[Array], scale: float) -> Distance:
    return Distance(_largest(wanted[0], found[0]), _cosine(wanted[0], found[0]))


def _masks(wanted: Sequence[Array], found: Sequence[Array], scale: float) -> Distance:
    """Best fillings by token id: another order is none, and the last of the list may be others."""
    candidates = _largest(wanted[2], found[2])
    masks = zip(wanted[0], wanted[1], found[0], found[1], strict=True)
    parts = [_fillings(*mask) for mask in masks]
    return Distance(
        max(candidates, *(part.difference for part in parts)),
        min(part.cosine or 0.0 for part in parts),
    )


def _fillings(scores: Array, ids: Array, found: Array, found_ids: Array) -> Distance:
    theirs: dict[Any, float] = dict(zip(found_ids.tolist(), found.tolist(), strict=True))
    # An id that is left out scored no more than the last that is in.
    last = float(found.min())
    filled = np.array([theirs.get(key, min(score, last)) for key, score in _pairs(ids, scores)])
    # The better half of the expected ids is there, wherever the list ends; square roots, so that
    # one sure filling does not hide all others.
    best = scores >= np.median(scores)
    present = np.array([theirs.get(key, 0.0) for key in ids[best].tolist()])
    direction = _cosine(np.sqrt(np.maximum(scores[best], 0)), np.sqrt(np.maximum(present, 0)))
    return Distance(_largest(scores, filled), direction)


def _pairs(ids: Array, scores: Array) -> list[tuple[Any, float]]:
    return list(zip(ids.tolist(), scores.tolist(), strict=True))


_MEASURES: dict[str, Callable[[Sequence[Array], Sequence[Array], float], Distance]] = {
    "softmax": _logits(_softmax(-1), axis=-1),
    "sigmoid": _logits(_sigmoid, axis=-1),
    "scores": _logits(lambda logits: logits, axis=-1),
    "token_softmax": _logits(_softmax(-1), axis=-1),
    "spans": _logits(_softmax(0), axis=0),
    "vector": _vectors,
    "token_vectors": _vectors,
    "masks": _masks,
}
