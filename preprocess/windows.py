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

from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Limits, Tokens
from transformer_serving.contract.errors import ServingError


class Windows:
    """A tokenizer for tasks that cut texts themselves.

    `library` is the tokenizers library's own object, for looking up and decoding.
    """

    def __init__(self, tokenizer_json: bytes, tokens: Tokens) -> None:
        self.library = tokenizers.Tokenizer.from_buffer(tokenizer_json)
        self.library.no_padding()
        self.library.no_truncation()
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
        self, piece: tokenizers.Encoding, room: int, stride: int, limits: Limits
    ) -> tokenizers.Encoding:
        """The piece in windows of `room` tokens, `stride` of them shared with the next one.

        Raises ServingError `too_large` before windows are made that no request may hold.
        """
        if len(piece) <= room:
            return piece
        windows = -(-(len(piece) - stride) // (room - stride))
        if windows * room > limits.max_tokens:
            raise ServingError(
                "too_large",
                "the windows of a text have too many tokens together; shorten it or let fewer "
                "tokens overlap",
                limit=limits.max_tokens,
                got=windows * room,
            )
        # A copy: truncate changes its object, and a piece may be cut in several ways.
        cut = tokenizers.Encoding.merge([piece], growing_offsets=False)
        cut.truncate(room, stride=stride, direction=self._side)
        return cut

    def join(
        self, first: tokenizers.Encoding, second: tokenizers.Encoding | None = None
    ) -> list[tokenizers.Encoding]:
        """The rows of one text or pair, special tokens included: the first and its windows."""
        whole = self._finish.process(first, second)
        return [whole, *whole.overflowing]


def rows_of(windows: Sequence[tokenizers.Encoding]) -> list[Encoded]:
    """What the engine reads of them."""
    return [Encoded(window.ids, window.type_ids) for window in windows]
