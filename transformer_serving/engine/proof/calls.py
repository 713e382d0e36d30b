"""The calls of a proof: every length alone and by two, a bucket's in the largest batch that serves
there as well.

A row is asked in as few of them as its comparison needs: a proof keeps others off the processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_serving.contract.heads import TOKEN_ROLES
from transformer_serving.engine.proof.arrays import Array
from transformer_serving.engine.proof.parity_set import ParitySet
from transformer_serving.engine.proof.rows import ProofInput

# A plan for a GPU has no limit of its own; what a call holds is still to be bounded.
_MOST_CALL_TOKENS = 1 << 18
_NEAREST = 3


@dataclass(frozen=True)
class Call:
    """`tensors` are [batch, length], or [batch, n] for an extra role; `rows` are indices of the
    set's rows, one for each text of the batch."""

    length: int
    batch: int
    rows: tuple[int, ...]
    tensors: Mapping[str, Array]


def largest_batch(parity_set: ParitySet, length: int) -> int:
    """The most texts of `length` tokens that one call of the endpoint has."""
    most = min(parity_set.max_call_tokens or _MOST_CALL_TOKENS, _MOST_CALL_TOKENS)
    return max(1, min(parity_set.max_batch_size, most // length))


def calls(parity_set: ParitySet, lengths: Sequence[int] | None = None) -> Iterator[Call]:
    """The calls at each of `lengths`, the buckets unless given.

    The longest row near a length is asked alone; then a batch of two and, at a bucket, the largest
    are made of all that are near, the longest first, so that texts of different lengths are padded
    to one. Beside buckets nothing serves. At a bucket, what no batch has room for is asked alone
    too: every row near its edge is compared.
    """
    for length in parity_set.buckets if lengths is None else lengths:
        near, largest = _near(parity_set, length), largest_batch(parity_set, length)
        serves = length in parity_set.buckets
        for row in (*near[:1], *(near[largest:] if serves else ())):
            yield make_call(parity_set, length, (row,))
        for batch in sorted({2, largest} if serves else {2}):
            if 1 < batch <= largest:
                mixed = tuple(near[at % len(near)] for at in range(batch))
                yield make_call(parity_set, length, mixed)


def _near(parity_set: ParitySet, length: int) -> list[int]:
    """Rows that are padded to `length`, at most three: the longest, the shortest, and between.

    Where there is only one, the next shorter ones too.
    """
    below = max((size for size in parity_set.buckets if size < length), default=0)
    order = sorted(
        (at for at, row in enumerate(parity_set.rows) if row.tokens <= length),
        key=lambda at: -parity_set.rows[at].tokens,
    )
    own = [at for at in order if parity_set.rows[at].tokens > below]
    if len(own) < 2:
        return order[:_NEAREST]
    return list(dict.fromkeys((own[0], own[-1], own[1])))


def make_call(parity_set: ParitySet, length: int, rows: Sequence[int]) -> Call:
    """One call of these rows, padded as preprocess pads an endpoint's."""
    tensors = {
        tensor.name: _tensor(parity_set, length, rows, tensor) for tensor in parity_set.inputs
    }
    return Call(length, len(rows), tuple(rows), tensors)


def _tensor(parity_set: ParitySet, length: int, rows: Sequence[int], tensor: ProofInput) -> Array:
    own = [parity_set.rows[at].inputs[tensor.name] for at in rows]
    left = parity_set.padding_side == "left"
    has_tokens = tensor.role in TOKEN_ROLES
    width = length if has_tokens else max(map(len, own))
    array = np.full((len(rows), width), tensor.pad, tensor.numpy)
    for at, values in enumerate(own):
        start = width - len(values) if has_tokens and left else 0
        array[at, start : start + len(values)] = values
        if tensor.role == "mask_positions" and left:
            array[at, : len(values)] += length - parity_set.rows[rows[at]].tokens
    return array
