"""--seq-len, --batch and --max-length as the buckets, the longest text and the texts of a call."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.desk.failure import ConversionRefused

Range = tuple[int, int, int]


def _steps(start: int, end: int, in_a_doubling: int) -> tuple[int, ...]:
    """From `start` to `end`, both of them, evenly spaced within each doubling."""
    found = [start]
    while (at := found[-1]) < end:
        found += [at + at * step // in_a_doubling for step in range(1, in_a_doubling + 1)]
    return tuple(found)


# The lengths that calls are padded to. Padding is paid with every text: 18 tokens take a CPU engine
# 1.6 times as long in 32 as they are. A length that an engine meets for the first time costs it
# some milliseconds, once. TensorRT has a profile, so memory, for each.
NARROW = (
    *range(4, 16, 2),
    *_steps(16, 64, 8),
    *_steps(64, 512, 4)[1:],
    *_steps(512, 16384, 2)[1:],
)
DOUBLING = _steps(16, 16384, 1)

# Fewest, usual and most texts of one engine call.
BATCH: Range = (1, 8, 64)
_MOST_TEXTS = 65_536


@dataclass(frozen=True)
class CallSizes:
    """`buckets` below and at `max_length`, which is None for the model's own; `batch` as BATCH."""

    buckets: tuple[int, ...]
    max_length: int | None
    batch: Range


def call_sizes(
    ladder: tuple[int, ...],
    seq_len: Range | None = None,
    batch: Range | None = None,
    max_length: int | None = None,
) -> CallSizes:
    """The sizes that the options ask for; of `ladder` the steps that fit.

    Raises ConversionRefused for ranges that do not rise or contradict each other.
    """
    _check_range("--batch", batch)
    _check_range("--seq-len", seq_len)
    if batch is not None and batch[0] != 1:
        raise ConversionRefused(
            f"--batch: MIN must be 1, got {batch[0]}: a text may come alone; a call of one text "
            "cannot be made of others"
        )
    if batch is not None and batch[2] > _MOST_TEXTS:
        raise ConversionRefused(f"--batch: MAX must be at most {_MOST_TEXTS}, got {batch[2]}")
    if seq_len is None:
        return CallSizes(ladder, max_length, batch or BATCH)
    least, usual, most = seq_len
    if max_length not in (None, most):
        raise ConversionRefused(
            f"--max-length {max_length} and the MAX of --seq-len, {most}, must be equal; give one"
        )
    found = {least, usual, most, *(size for size in ladder if least < size < most)}
    # A text has two special tokens: nothing would be padded to 1, and no request could prove it.
    buckets = tuple(size for size in sorted(found) if size > 1 or size == most)
    return CallSizes(buckets, most, batch or BATCH)


def _check_range(option: str, sizes: Range | None) -> None:
    if sizes is not None and not 1 <= sizes[0] <= sizes[1] <= sizes[2]:
        raise ConversionRefused(
            f"{option}: MIN, OPT and MAX must rise from 1, got {' '.join(map(str, sizes))}"
        )
