"""Texts of calls in rows: every token once, and each answer where it belongs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from transformer_serving.engine.backends.packed_texts import (
    BLOCK,
    SIZES,
    TEXTS,
    Call,
    Row,
    blocks_of,
    filling,
    row_of,
    size_of,
    texts_of,
)
from transformer_serving.engine.backends.torch_packed import Outputs, PackedCalls

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=80)


def call_of(lengths: Sequence[int], seed: int) -> Call:
    """ids, which tell all tokens of a test from each other, and the mask."""
    there = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.random.default_rng(seed).permutation(there.size).reshape(there.shape) + 1
    return [(ids * there).astype(np.int32), there.astype(np.int32)]


def answered(row: Row) -> Outputs:
    """Of each text the sum of its ids, of each token twice its id."""
    ids, mask, owners = (
        row.numbers[place * row.size : (place + 1) * row.size] for place in range(3)
    )
    cumulative = row.numbers[3 * row.size :]
    assert len(cumulative) == TEXTS + 1
    assert int(cumulative[-1]) == row.tokens <= row.size
    assert not ids[row.tokens :].any()
    assert not mask[row.tokens :].any()
    assert mask[: row.tokens].all()
    assert (owners[row.tokens :] == TEXTS).all()
    sums: list[int] = []
    for text in range(row.texts):
        mine = slice(int(cumulative[text]), int(cumulative[text + 1]))
        assert mine.stop > mine.start
        assert mine.stop - mine.start <= row.longest
        assert (owners[mine] == text).all()
        sums.append(int(ids[mine].sum()))
    return [np.array(sums, np.float32), 2.0 * ids[: row.tokens].astype(np.float32)]


class Padded:
    def __init__(self) -> None:
        self.calls = 0

    def run(self, calls: Sequence[Call]) -> list[Outputs | Exception]:
        self.calls += len(calls)
        return [[] for _ in calls]


@settings(max_examples=150, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=5))
def test_every_call_gets_the_answers_of_its_own_texts(all_lengths: list[list[int]]) -> None:
    calls = [call_of(some, seed) for seed, some in enumerate(all_lengths)]
    padded = Padded()
    packed = PackedCalls(1, (), (True, False), lambda rows: list(map(answered, rows)), padded)
    for call, found in zip(calls, packed.run(calls), strict=True):
        assert not isinstance(found, Exception)
        np.testing.assert_array_equal(found[0], call[0].sum(axis=1, dtype=np.float32))
        np.testing.assert_array_equal(found[1], 2.0 * call[0])
    assert not padded.calls


@settings(max_examples=150, deadline=None)
@given(lengths)
def test_rows_are_of_known_sizes_and_hold_the_texts_in_order(some: list[int]) -> None:
    texts = texts_of([call_of(some, 1)], 1, ())
    assert texts is not None
    rows = list(texts.rows())
    assert sum(row.texts for row in rows) == len(some)
    assert sum(row.tokens for row in rows) == sum(some)
    for row in rows:
        assert row.size in SIZES
        assert row.texts <= TEXTS
        assert row.longest >= BLOCK


def test_a_text_that_is_longer_than_any_row_has_one_of_its_own() -> None:
    most = SIZES[-1]
    texts = texts_of([call_of([5, most + 1, 7], 1)], 1, ())
    assert texts is not None
    assert [(row.texts, row.size) for row in texts.rows()] == [(1, 16), (1, 2 * most), (1, 16)]


def _mask(rows: Sequence[Sequence[int]]) -> Call:
    mask: NDArray[np.int32] = np.array(rows, np.int32)
    return [mask, mask]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(_mask([[0, 1, 1]]), id="padding in front"),
        pytest.param(_mask([[1, 0, 1]]), id="padding within"),
        pytest.param(_mask([[1, 1, 1], [0, 0, 0]]), id="a text without a token"),
    ],
)
def test_what_is_not_to_be_packed_is_padded_with_all_that_came_with_it(odd: Call) -> None:
    padded = Padded()
    packed = PackedCalls(1, (), (True,), lambda rows: [], padded)
    assert packed.run([call_of([3], 1), odd]) == [[], []]
    assert padded.calls == 2


def test_a_row_that_fails_fails_its_calls() -> None:
    def broken(rows: Sequence[Row]) -> list[Outputs]:
        raise RuntimeError("out of memory")

    packed = PackedCalls(1, (), (True,), broken, Padded())
    found = packed.run([call_of([3], 1), call_of([4, 5], 2)])
    assert [str(one) for one in found] == ["out of memory"] * 2
    assert packed.run([]) == []


@given(st.integers(1, 3 * SIZES[-1]))
def test_sizes_grow_by_at_most_a_half(tokens: int) -> None:
    size = size_of(tokens)
    assert size >= tokens
    assert size <= max(SIZES[1], 1.5 * tokens) or tokens > SIZES[-1]


@pytest.mark.parametrize("longest", [BLOCK, 2 * BLOCK])
def test_what_is_recorded_first_is_what_rows_are_of(longest: int) -> None:
    for size in SIZES:
        if longest // 2 < size <= 4096:
            row = row_of(filling(size, longest), 3)
            assert (row.size, row.longest, row.tokens) == (size, longest, size)
            assert row.texts <= TEXTS


def test_blocks_double() -> None:
    assert [blocks_of(one) for one in (1, 128, 129, 256, 257, 512)] == [
        128, 128, 256, 256, 512, 512,
    ]  # fmt: skip
