"""Tokens to text, one by one: what was given out never changes, and no character is broken.

Byte-level tokens and SentencePiece's byte tokens make a character of several; decoded before they
are all there, they are replacement characters, which are held back until the rest has come.

Tested by tests/preprocess/generation/test_detokenizer.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

BROKEN = "\ufffd"
# Tokens before the newest that are decoded with it: a decoder may strip the space of the first.
_CONTEXT = 6
# Tokens without a whole character after which the broken ones are given out as they are: bytes
# that are no text, which a model may go on with for ever.
_PATIENCE = 32
# SentencePiece's name of a byte.
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Detokenizer:
    """The text that follows a prompt, whose last tokens it is decoded behind.

    `library` is the tokenizers library's own object. Special tokens have no text, as with
    transformers' skip_special_tokens.
    """

    def __init__(self, library: Any, prompt: Sequence[int]) -> None:
        self._library = library
        self._silent = silent_tokens(library)
        # From its end on: a prompt may be long, and have many sequences.
        said = (token for token in reversed(prompt) if token not in self._silent)
        self._window = self._tail([*islice(said, 2 * _CONTEXT)][::-1])
        # Where in the window nothing was held back last, and the characters of it that are given.
        self._mark = 0
        self._given = len(self._decode())
        self._held = 0

    def step(self, token: int) -> str:
        """The text that is certain now and was not before."""
        if token in self._silent or self._library.id_to_token(token) is None:
            return ""
        self._window.append(token)
        text = self._decode()
        whole = len(text.rstrip(BROKEN))
        self._held += 1
        if whole < len(text) and self._held < _PATIENCE:
            return self._give(text, whole)
        piece = self._give(text, len(text))
        self._held = 0
        self._slide()
        return piece

    def rest(self) -> str:
        """What is still held back, once no token will follow."""
        text = self._decode()
        return self._give(text, len(text))

    def _give(self, text: str, end: int) -> str:
        piece = text[self._given : end]
        self._given = max(self._given, end)
        return piece

    def _slide(self) -> None:
        """Drop what is long decoded, at a place where no character was open."""
        if len(self._window) - self._mark < _CONTEXT:
            return
        if self._mark:
            del self._window[: self._mark]
            self._given = len(self._decode())
        self._mark = len(self._window)

    def _tail(self, tokens: list[int]) -> list[int]:
        """The last tokens, from the beginning of a character on where that is near."""
        for size in range(_CONTEXT, 2 * _CONTEXT):
            tail = tokens[-size:]
            if not self._text(tail).startswith(BROKEN):
                return tail
        return tokens[-_CONTEXT:]

    def _decode(self) -> str:
        return self._text(self._window)

    def _text(self, tokens: list[int]) -> str:
        text: str = self._library.decode(tokens, skip_special_tokens=False)
        return text


def token_text(library: Any, token: int) -> str:
    """A token alone, as it continues a text: decoded as the first one it may lose its space."""
    before, said = _anchor(library)
    text: str = library.decode([*before, token], skip_special_tokens=False)
    return text[len(said) :]


@lru_cache(maxsize=8)
def _anchor(library: Any) -> tuple[tuple[int, ...], str]:
    """A token that others can be decoded behind, and its text; none where there is no such token.

    A byte token is none: what follows it may be decoded as more of its character. Special tokens
    are looked at first, which are none of bytes.
    """
    for token in (*sorted(silent_tokens(library)), *range(library.get_vocab_size())):
        said: str = library.decode([token], skip_special_tokens=False)
        is_byte = _BYTE.fullmatch(library.id_to_token(token) or "")
        if said.strip() and BROKEN not in said and not is_byte:
            return (token,), said
    return (), ""


@lru_cache(maxsize=8)
def silent_tokens(library: Any) -> frozenset[int]:
    """The special tokens' ids."""
    added = library.get_added_tokens_decoder()
    return frozenset(number for number, token in added.items() if token.special)
