"""The fixed texts of the parity check: many lengths, and the characters tokenizers trip over.

Tested by tests/parity/test_check.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformer_serving.contract.endpoint import Tokens

_STORY = (
    "the train left early because of snow and we waited in a small warm room where someone "
    "played an old piano while children drew ships on paper later the clerk brought tea said "
    "sorry twice and gave us new tickets which was more than anyone had hoped for that evening"
)
_ODD = (
    "!",
    "Ok",
    "I do not like it at all.",
    "Best purchase of the year, I would buy it again tomorrow!",
    "naïve façade, crème brûlée – 12,50 €",
    "電車は早く出発しました。",
    'so good 😀👍🏽 <b>really</b> & "quoted"\ttabbed\nnew line',
    "ALL CAPITALS and mIxEd CaSe with e-mail@example.com and 3.14159",
)
# Around each power of two lies a bucket's edge.
_LENGTHS = (3, 4, 5, 7, 8, 11, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65, 95, 127, 128, 129)
# Models for chats have hundreds, the end of a text and of a turn first.
_MOST_SPECIAL = 8
_LONG_LENGTHS = (191, 255, 256, 257, 383, 511, 512, 1024, 2048, 4096)


def parity_texts(count_tokens: Callable[[str], int], max_length: int) -> tuple[str, ...]:
    """Texts of every length class up to `max_length` tokens and one that must be cut.

    `count_tokens` gives a text's tokens with special ones, without truncation.
    """
    lengths = {size for size in (*_LENGTHS, *_LONG_LENGTHS) if size < max_length}
    lengths |= {max_length - 1, max_length, max_length + 9}
    return _ODD + tuple(_text_of(size, count_tokens) for size in sorted(lengths))


def with_special(library: Any, tokens: Tokens) -> str:
    """A text that writes out special tokens of the tokenizer, which it may take for words or for
    what they are; the padding token, which nobody writes, is none of them, nor are those that the
    model does not know."""
    names = [
        str(one.content)
        for at, one in sorted(library.get_added_tokens_decoder().items())
        if one.special and (tokens.known_ids is None or at < tokens.known_ids)
    ]
    shown = [name for name in names if name != tokens.pad_token][:_MOST_SPECIAL]
    return f"the train {' left '.join(shown)} early"


def _text_of(tokens: int, count_tokens: Callable[[str], int]) -> str:
    """The shortest text of whole words with at least `tokens` tokens."""
    low, high = 1, tokens
    while low < high:
        middle = (low + high) // 2
        if count_tokens(_words(middle, tokens)) < tokens:
            low = middle + 1
        else:
            high = middle
    return _words(low, tokens)


def _words(count: int, start: int) -> str:
    words = _STORY.split()
    return " ".join(words[(start + index) % len(words)] for index in range(count))
