"""A window of a context beside its question, and how long its answers may be.

Tested by tests/preprocess/answers/test_equality.py and
tests/preprocess/answers/test_long_answers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers

from transformer_serving.contract.endpoint import Tokens
from transformer_serving.contract.errors import ServingError

# The most characters of so many answers a window, where a word of any length is one token: they are
# read to tell which answers are the same, and no answer to a request is longer.
MOST_CHARACTERS = 1 << 25


@dataclass(frozen=True)
class Window:
    """A row's encoding; `context` is the context's place in the pair, 0 or 1."""

    encoding: tokenizers.Encoding
    context: int

    def in_context(self) -> list[bool]:
        """For each token whether it is the context's."""
        return [
            not special and (sequence == 1) == (self.context == 1)
            for sequence, special in zip(
                self.encoding.sequence_ids, self.encoding.special_tokens_mask, strict=True
            )
        ]

    def words(self) -> dict[int, tuple[int, int]]:
        """First and last character of each of the context's words that is in the window."""
        columns = zip(self.in_context(), self.encoding.word_ids, self.encoding.offsets, strict=True)
        return _places((word, place) for inside, word, place in columns if inside)


class LongestAnswers:
    """How many characters a window's answers may have, of `tokens` tokens at the most.

    Of each window `spans` are looked at. `model` says what its tokens are.
    """

    def __init__(self, tokens: int, spans: int, model: Tokens) -> None:
        self._tokens = tokens
        self._spans = spans
        self._cls_id = model.cls_id
        # Many questions share a context.
        self._runs: dict[str, int] = {}

    def check(
        self,
        top_k: int,
        contexts: Sequence[str],
        pairs: Sequence[Sequence[tokenizers.Encoding]],
        examples: Sequence[Sequence[Window]],
    ) -> int:
        """Characters of top_k answers a window. Raises ServingError `too_large`; the best answer to
        one question always has room.

        `pairs` are context and question, in the order of their windows, which are `examples`, and
        not cut.
        """
        # None is longer than its context, which is mostly short enough.
        columns = zip(contexts, examples, strict=True)
        characters = top_k * sum(len(context) * len(windows) for context, windows in columns)
        if characters > MOST_CHARACTERS:
            characters = top_k * sum(map(self._characters, contexts, pairs, examples))
        if characters > MOST_CHARACTERS and (top_k, len(contexts)) != (1, 1):
            raise ServingError(
                "too_large",
                "top_k answers a window may have too many characters together; lower top_k or "
                "max_answer_len, or ask fewer questions in a request",
                field="top_k",
                limit=MOST_CHARACTERS,
                got=characters,
            )
        return characters

    def _characters(
        self, context: str, pair: Sequence[tokenizers.Encoding], windows: Sequence[Window]
    ) -> int:
        """Those of the longest answer of each window, together."""
        place = windows[0].context
        asked = pair[1 - place]
        run = self._runs.get(context)
        if run is None:
            run = self._runs[context] = _longest_run(pair[place], self._tokens)
        if place == 0:
            # Every token may be touched there, also the question's, at whose places a span is read.
            asked_to: int = max((end for _, end in asked.offsets), default=0)
            return len(windows) * max(run, asked_to)
        if self._tokens <= len(asked) + 1 and self._cls_id not in asked.ids:
            return len(windows) * run
        # Where a window has few spans, those from the token of no answer on are looked at too, and
        # that one stands where the context begins.
        beside = len(asked) + sum(windows[0].encoding.special_tokens_mask)
        return sum(
            len(context) if self._has_few(len(window.encoding) - beside) else run
            for window in windows
        )

    def _has_few(self, tokens: int) -> bool:
        longest = min(self._tokens, tokens)
        return longest * tokens - longest * (longest - 1) // 2 < self._spans


def _places(tokens: Iterable[tuple[int | None, tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    """First and last character of each word, from the tokens' words and places."""
    found: dict[int, tuple[int, int]] = {}
    for word, (start, end) in tokens:
        if word is not None:
            found[word] = (found.get(word, (start, end))[0], end)
    return found


def _longest_run(context: tokenizers.Encoding, tokens: int) -> int:
    """Characters of the context's longest run of so many tokens, widened to whole words."""
    words = _places(zip(context.word_ids, context.offsets, strict=True))
    places = [
        offsets if word is None else words[word]
        for word, offsets in zip(context.word_ids, context.offsets, strict=True)
    ]
    if not places:
        return 0
    starts, ends = np.array(places).T
    firsts = np.minimum.accumulate(starts[::-1])[::-1]
    lasts = np.maximum.accumulate(ends)
    width = min(tokens, len(places))
    longest: int = np.max(lasts[width - 1 :] - firsts[: len(places) - width + 1]).item()
    return longest
