"""The best spans of two rows of logits, as the reference's pipeline finds them.

Tested by tests/preprocess/answers/test_equality.py.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from preprocess.tensors import Array

# So many spans of a window are looked at; their scores and order take 64 MB.
MOST_SPANS = 2048 * 2048


def probabilities(logits: Array, allowed: Array) -> Array:
    """Float32 [tokens] that sum to one; next to nothing where a span may not be."""
    kept = np.where(allowed, logits, np.float32(-10_000.0))
    raised = np.exp(kept - kept.max())
    scores: Array = raised / raised.sum()
    return scores


def best_spans(start: Array, end: Array, count: int, longest: int) -> list[tuple[int, int, float]]:
    """The `count` likeliest spans of at most `longest` tokens: first, last, score; best first.

    Only spans that are possible are multiplied out. Where fewer than `count` of them are likely at
    all, the reference fills up from the impossible ones, and so does this where the window is not
    too long for all pairs of its tokens.
    """
    width = min(longest, len(start))
    ends = np.concatenate([end, np.zeros(width - 1, end.dtype)])
    scores = (start[:, None] * sliding_window_view(ends, width)).ravel()
    likely = int(np.count_nonzero(scores))
    if likely >= count or len(start) ** 2 > MOST_SPANS:
        best = _largest(scores, count)[:likely]
        firsts, lengths = np.divmod(best, width)
        lasts = firsts + lengths
    else:
        scores = np.tril(np.triu(start[:, None] * end[None]), longest - 1).ravel()
        best = _largest(scores, count)
        firsts, lasts = np.divmod(best, len(end))
    return list(zip(firsts.tolist(), lasts.tolist(), scores[best].tolist(), strict=True))


def _largest(scores: Array, count: int) -> Array:
    """Where the largest are, the largest first; where one is asked for, of those that tie the
    first, as in the reference."""
    if count == 1:
        return np.array([scores.argmax()])
    if len(scores) <= count:
        return np.argsort(-scores)
    some = np.argpartition(-scores, count)[:count]
    order: Array = some[np.argsort(-scores[some])]
    return order
