"""Rows that are too long, cut as the tokenizers library's truncation cuts them.

The library makes a window of all that it cuts off as well, and for a pair each window of the one
text beside each of the other: of two long texts as much memory as the product of their lengths.
Here the row is made whole, and what is too much of its texts left out: the same tokens.

Tested by tests/preprocess/test_longest_first.py.
"""

from __future__ import annotations

import tokenizers

from transformer_serving.contract.endpoint import Tokens


def cut_columns(row: tokenizers.Encoding, tokens: Tokens) -> tuple[list[int], list[int]]:
    """The ids and type ids that are left of a row of one text or two, special tokens and all."""
    ids, type_ids, texts = row.ids, row.type_ids, row.sequence_ids
    sizes = (texts.count(0), texts.count(1))
    room = max(0, tokens.max_length - (len(ids) - sum(sizes)))
    for text, (size, kept) in enumerate(zip(sizes, _kept(*sizes, room), strict=True)):
        if kept < size:
            begin = texts.index(text) + (kept if tokens.truncation_side == "right" else 0)
            for column in (ids, type_ids, texts):
                del column[begin : begin + size - kept]
    return ids, type_ids


def _kept(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text there is room for: the longer one is cut first, and both where
    either has more than half. The one more of an odd room is the longer one's, of equal texts the
    second's.
    """
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)
