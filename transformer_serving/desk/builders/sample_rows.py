"""Rows of exactly the lengths at which an engine's kernels may differ, cut out of real requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from preprocess.answers import TASKS
from preprocess.request import read_body
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.meanings import Masks

# Attention works in pieces of a head's size. Behind this length the buckets alone are asked.
_LONGEST_MULTIPLE = 512
_CANDIDATES = 4


def kept_lengths(buckets: Sequence[int]) -> tuple[int, ...]:
    """Row lengths that prove every bucket: it, one below, and one above the bucket before."""
    below = (0, *buckets)
    found = {size for pair in zip(below, buckets, strict=False) for size in (pair[0] + 1, pair[1])}
    return _real((*found, *(size - 1 for size in buckets)), buckets[-1])


def asked_lengths(buckets: Sequence[int], head_size: int | None) -> tuple[int, ...]:
    """The lengths that convert asks an engine at: buckets, multiples of the attention heads' size,
    and the neighbours of both."""
    longest = buckets[-1]
    multiples = (
        range(head_size, min(longest, _LONGEST_MULTIPLE) + 1, head_size) if head_size else ()
    )
    around = {size + step for size in (*buckets, *multiples) for step in (-1, 0, 1)}
    return _real(around, longest)


def _real(sizes: Iterable[int], longest: int) -> tuple[int, ...]:
    """None longer than a text may be, nor shorter than its special tokens, which are two."""
    return tuple(sorted({max(size, min(2, longest)) for size in sizes if size <= longest}))


def encoded_bodies(
    endpoint: Endpoint, tokenizer_json: bytes, bodies: Iterable[Mapping[str, Any]]
) -> list[Encoded]:
    """The rows that the endpoint makes of these bodies, too long texts cut."""
    task = TASKS[endpoint.task](endpoint)
    tokenizer = task.tokenizer(tokenizer_json, endpoint.tokens)
    rows: list[Encoded] = []
    for body in bodies:
        request = read_body({"truncate": True, **body}, task, endpoint.limits)
        rows += task.encode(request, tokenizer).encoded
    return rows


def rows_of(
    masks: Masks | None, sources: Sequence[Encoded], lengths: Iterable[int]
) -> tuple[Encoded, ...]:
    """One row for each length, in turn of other texts: cut behind its start, with its own end.

    Where no text is long enough the longest one goes on from its start.
    """
    longest = max(sources, key=lambda text: len(text.ids))
    rows = []
    for at, length in enumerate(lengths):
        enough = [text for text in sources if len(text.ids) >= length]
        source = enough[at % len(enough)] if enough else longest
        rows.append(_with_extras(masks, _of_length(source, length), source))
    return tuple(rows)


def _of_length(text: Encoded, length: int) -> Encoded:
    return Encoded(_cut(text.ids, length), _cut(text.type_ids, length))


def _cut(values: Sequence[int], length: int) -> list[int]:
    """The first values and the last one, `length` in all; what is between repeats."""
    first, inner, last = list(values[:1]), list(values[1:-1]), list(values[-1:])
    if length == 1:
        return last
    missing = length - 2 - len(inner)
    source = inner or first
    filler = (source * (missing // len(source) + 1))[: max(0, missing)]
    return [*first, *(inner + filler)[: length - 2], *last]


def _with_extras(masks: Masks | None, row: Encoded, source: Encoded) -> Encoded:
    """With what a head beside the tokens takes: a mask that is in the row, and some of its ids."""
    if masks is None:
        return row
    mask = masks.mask_id
    # A mask that was cut off stands at the end of the row again, in front of its last token.
    place = row.ids.index(mask) if mask in row.ids else max(0, len(row.ids) - 2)
    ids = [mask if at == place else token for at, token in enumerate(row.ids)]
    candidates = list(dict.fromkeys(token for token in source.ids if token != mask))[:_CANDIDATES]
    return Encoded(ids, row.type_ids, {"mask_positions": [place], "candidates": candidates})
