"""The first window alone is the first of all windows, of any text and from either side."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from preprocess.tokens import TokenTotal
from preprocess.windows import Windows
from tests.preprocess.answers.families import FAMILIES
from tests.preprocess.answers.served import serve
from transformer_serving.contract.errors import ServingError

WORDS = st.lists(st.sampled_from(["tea", "Zürich", "rain", "🙂", "an", "unheard"]), max_size=80)


def windows_of(side: str) -> tuple[Windows, TokenTotal]:
    served = serve(FAMILIES["bert"], "token-classification", torch.nn.Identity())
    tokens = replace(served.endpoint.tokens, truncation_side=side)
    tokenizer_json = FAMILIES["bert"].tokenizer().to_str().encode()
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
        alone, first = windows.first(piece, room), windows.cut(piece, room, 0, total)
        for mine, all_windows in (
            (windows.join(alone), windows.join(first)),
            (windows.join(alone, second), windows.join(first, second)),
        ):
            assert len(mine) == 1
            assert _fields(mine[0]) == _fields(all_windows[0])

    check()


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
