"""What a task gives the engine, and what it must remember of it to render the answer.

Tested by tests/preprocess/answers/test_equality.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from preprocess.parameters import CHARACTERS_A_TEXT
from preprocess.request import Request
from preprocess.tokens import Encoded

# As JSON so many of an answer's texts take about as long as one of its pieces.
CHARACTERS_A_PIECE = 256
# To put so many tokens into a row that are there already takes at most as long as to tokenize one
# character: 0.2 to 0.4 microseconds a token, where a text of short ones takes 2 to 3 a character.
_TOKENS_A_CHARACTER = 4
# A row has no more special tokens.
_SPECIAL = 4


class Work(NamedTuple):
    """The rows of one request; `context` is the task's own: offsets, whose row is whose.

    `pieces` is how many tokens, spans or fillings its answer is made of one by one, or what takes
    as long.
    """

    request: Request
    encoded: Sequence[Encoded]
    context: Any = None
    pieces: int = 0


def tokens_at_most(text: str) -> int:
    """How many a text may have, before it is tokenized: each has a byte of its own."""
    return len(text) if text.isascii() else len(text.encode())


def rows_cost(rows: int, tokens: int) -> int:
    """Of making so many rows with so many tokens in all, in characters to be tokenized."""
    return tokens // _TOKENS_A_CHARACTER + CHARACTERS_A_TEXT * rows


def windows_cost(size: int, window: int, overlap: int, most: int, beside: int = 0) -> int:
    """Of a text in windows of `window` tokens that share `overlap`, another text `beside` it in
    each; in characters to be tokenized. More than `most` tokens are refused before they are made.

    `size` and `beside` are the most tokens that the texts may have: how many they have shows only
    when they are tokenized.
    """
    room = max(1, window - _SPECIAL - beside)
    if size <= room:
        return 0
    windows = min(1 + -(-(size - room) // max(1, room - overlap)), most // window)
    return rows_cost(windows, windows * window)
