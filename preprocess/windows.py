"""Long texts as several windows, and pairs of which only one text is cut.

The library cuts a text before it adds special tokens, by a state of the tokenizer that all threads
share. Here a text is tokenized without special tokens, the encoding, which is the request's own, is
cut, and the special tokens come last: the library's own steps in its own order.

Tested by tests/preprocess/answers/test_equality.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers.processors import TemplateProcessing

from preprocess.tokens import Encoded, TokenTotal, library_of
from transformer_serving.contract.endpoint import Tokens
from transformer_serving.contract.errors import ServingError

_OTHER_SIDE = {"left": "right", "right": "left"}


class Windows:
    """A tokenizer for tasks that cut texts themselves.

    `library` is the tokenizers library's own object, for looking up and decoding.
    """

    def __init__(self, tokenizer_json: bytes, tokens: Tokens) -> None:
        self.library = library_of(tokenizer_json, tokens)
        self._finish = self.library.post_processor or TemplateProcessing(
            single="$A", pair="$A:0 $B:1", special_tokens=[]
        )
        self.library.post_processor = None
        self._side = tokens.truncation_side

    def special_tokens(self, *, pair: bool) -> int:
        """How many of a row's tokens are special ones."""
        count: int = self._finish.num_special_tokens_to_add(pair)
        return count

    def pieces(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Each text without special tokens, to stand alone or first in a pair."""
        encodings: list[tokenizers.Encoding] = self.library.encode_batch(list(texts))
        return encodings

    def whole(self, texts: Sequence[str], *, special: bool) -> list[tokenizers.Encoding]:
        """Each text uncut, with special tokens around it or without."""
        return [self._finish.process(piece, None, special) for piece in self.pieces(texts)]

    def second_pieces(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Each text without special tokens, to stand second in a pair: with its type ids."""
        inputs = [("", text) for text in texts]
        encodings: list[tokenizers.Encoding] = self.library.encode_batch(inputs)
        return encodings

    def cut(
        self, piece: tokenizers.Encoding, room: int, stride: int, total: TokenTotal, beside: int = 0
    ) -> list[tokenizers.Encoding]:
        """The piece in windows of `room` tokens, `stride` of them shared with the next one.

        `beside` are the tokens that stand beside it in each of them. Raises ServingError
        `too_large` before windows are made that no request may hold.
        """
        if len(piece) <= room:
            return [piece]
        windows = -(-(len(piece) - stride) // (room - stride))
        if windows * room > total.limits.max_tokens:
            raise ServingError(
                "too_large",
                "the windows of a text have too many tokens together; shorten it or let fewer "
                "tokens overlap",
                limit=total.limits.max_tokens,
                got=windows * room,
            )
        # Without the last one, which may be short.
        total.check((windows - 1) * (room + beside))
        cut = _copy(piece)
        cut.truncate(room, stride=stride, direction=self._side)
        # The first one still holds all others, and would take them along wherever it goes.
        return [self.first(piece, room), *cut.overflowing]

    def first(self, piece: tokenizers.Encoding, room: int) -> tokenizers.Encoding:
        """The first window alone, whatever comes after it: the piece's `room` first tokens or,
        where texts are cut on their left, its last ones.
        """
        left = len(piece) - room
        if left <= 0:
            return piece
        # Cut from the other side, so that the second of two windows is the one: a window that
        # stands among the overflowing ones has none of its own.
        length = max(left, room)
        cut = _copy(piece)
        cut.truncate(length, stride=length - left, direction=_OTHER_SIDE[self._side])
        first: tokenizers.Encoding = cut.overflowing[0]
        return first

    def join(
        self, first: tokenizers.Encoding, second: tokenizers.Encoding | None = None
    ) -> tokenizers.Encoding:
        """The row of one text or pair, special tokens included; of windows one at a time, as cut
        gives them, since the library holds the interpreter's lock while it makes what it is given.
        """
        row: tokenizers.Encoding = self._finish.process(first, second)
        return row


def _copy(piece: tokenizers.Encoding) -> tokenizers.Encoding:
    """For truncate, which changes its object, while a piece may be cut in several ways."""
    return tokenizers.Encoding.merge([piece], growing_offsets=False)


def rows_of(windows: Sequence[tokenizers.Encoding]) -> list[Encoded]:
    """What the engine reads of them."""
    return [Encoded(window.ids, window.type_ids) for window in windows]
