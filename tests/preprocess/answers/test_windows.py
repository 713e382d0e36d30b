"""The first window alone is the first of all windows, of any text and from either side."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tokenizers import Encoding

from preprocess.tokens import TokenTotal
from preprocess.windows import Windows
from tests.preprocess.answers.families import FAMILIES
from tests.preprocess.answers.served import serve
from transformer_serving.contract.errors import ServingError

WORDS = st.lists(st.sampled_from(["tea", "Zürich", "rain", "🙂", "an", "unheard"]), max_size=80)


def windows_of(side: str, family: str = "bert") -> tuple[Windows, TokenTotal]:
    served = serve(FAMILIES[family], "token-classification", torch.nn.Identity())
    tokens = replace(served.endpoint.tokens, truncation_side=side)
    tokenizer_json = FAMILIES[family].tokenizer().to_str().encode()
    return Windows(tokenizer_json, tokens), TokenTotal(served.endpoint.limits)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_first_window_is_that_of_all(side: str) -> None:
    windows, total = windows_of(side)

    @settings(max_examples=200, deadline=None)
    @given(WORDS, st.integers(1, 40), WORDS)
    def check(words: list[str], room: int, beside: list[str]) -> None:
        [piece], [second] = (
            windows.pieces([" ".join(words)]),
            windows.second_pieces([" ".join(beside)]),
        )
        alone, first = windows.first(piece, room), windows.cut(piece, room, 0, total)[0]
        assert _fields(windows.join(alone)) == _fields(windows.join(first))
        assert _fields(windows.join(alone, second)) == _fields(windows.join(first, second))

    check()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_windows_one_at_a_time_are_the_librarys_own(family: str, side: str) -> None:
    """Which makes all rows of a text in one call."""
    windows, total = windows_of(side, family)

    @settings(max_examples=50, deadline=None)
    @given(WORDS, st.integers(1, 40), st.integers(0, 39), WORDS)
    def check(words: list[str], room: int, stride: int, beside: list[str]) -> None:
        text, other, finish = " ".join(words), " ".join(beside), windows._finish
        stride = min(stride, room - 1)
        [first], [second] = windows.pieces([text]), windows.second_pieces([text])
        [before], [after] = windows.pieces([other]), windows.second_pieces([other])
        whole = cut_by_the_library(first, room, stride, side)
        cut = windows.cut(first, room, stride, total)
        for mine, theirs in (
            (list(map(windows.join, cut)), finish.process(whole, None)),
            ([windows.join(one, after) for one in cut], finish.process(whole, after)),
            (
                [windows.join(before, one) for one in windows.cut(second, room, stride, total)],
                finish.process(before, cut_by_the_library(second, room, stride, side)),
            ),
        ):
            found, wanted = map(_fields, mine), map(_fields, [theirs, *theirs.overflowing])
            for got, due in zip(found, wanted, strict=True):
                if not FAMILIES[family].token_types:
                    # Of a template that has one type for both texts the library knows nothing in
                    # windows after the first, and no such model reads it.
                    del got["type_ids"], due["type_ids"]
                assert got == due

    check()


def cut_by_the_library(piece: Encoding, room: int, stride: int, side: str) -> Encoding:
    whole = Encoding.merge([piece], growing_offsets=False)
    whole.truncate(room, stride=stride, direction=side)
    return whole


def _fields(encoding: Any) -> dict[str, Any]:
    found = json.loads(encoding.__getstate__())
    return {name: value for name, value in found.items() if name != "overflowing"}


def test_rows_are_counted_before_there_are_too_many() -> None:
    windows, total = windows_of("right")
    [piece] = windows.pieces(["tea " * 1000])
    windows.cut(piece, 10, 0, total, beside=5)
    most = total.limits.max_tokens
    # A thousand tokens in windows of ten, each with a thousand beside it.
    with pytest.raises(ServingError) as caught:
        windows.cut(piece, 10, 0, total, beside=1000)
    assert (caught.value.limit, caught.value.got) == (most, 99 * 1010)
