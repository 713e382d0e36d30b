"""The engine calls of a parity check: every row alone, then padded beside others.

None is one that the endpoint would not make: a long text's attention takes the square of its
length, and eight such in a call more memory than serving it ever does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preprocess.answers.work import Work
from preprocess.rows import Row
from preprocess.tokens import Encoded
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint

_BATCH = 8
# A prime step through the rows mixes short and long ones in each batch, the same way every time.
_STRIDE = 13


def answers(local: LocalEndpoint, works: Sequence[Work]) -> Iterator[tuple[int, Any, int]]:
    """A work's index, its answer, and the rows of the largest call for it: of each work where its
    rows go alone, then of those with a row that may share a call."""
    rows = [text for work in works for text in work.encoded]
    alone = {at: local.run([text])[0] for at, text in enumerate(rows)}
    yield from _rendered(local, works, alone, {})
    together, sizes = dict(alone), dict[int, int]()
    for batch in _mixed(local, rows):
        found = local.run([rows[at] for at in batch])
        together.update(zip(batch, found, strict=True))
        sizes.update(dict.fromkeys(batch, len(batch)))
    for at, answer, size in _rendered(local, works, together, sizes):
        if size > 1:
            yield at, answer, size


def _rendered(
    local: LocalEndpoint,
    works: Sequence[Work],
    rows: Mapping[int, Row],
    sizes: Mapping[int, int],
) -> Iterator[tuple[int, Any, int]]:
    start = 0
    for at, work in enumerate(works):
        own = range(start, start + len(work.encoded))
        start = own.stop
        size = max(sizes.get(row, 1) for row in own)
        yield at, local.render([rows[row] for row in own], work), size


def _mixed(local: LocalEndpoint, rows: Sequence[Encoded]) -> list[list[int]]:
    """Batches of rows by their indices, without those too long to share a call."""
    count = len(rows)
    step = _STRIDE if count % _STRIDE else _STRIDE + 4
    batches: list[list[int]] = []
    for at in (index * step % count for index in range(count)):
        if not local.holds([rows[at]] * 2):
            continue
        for batch in batches:
            if len(batch) < _BATCH and local.holds([rows[other] for other in (*batch, at)]):
                batch.append(at)
                break
        else:
            batches.append([at])
    return batches
