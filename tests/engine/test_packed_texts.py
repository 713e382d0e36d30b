"""Texts of calls in rows: every token once, and each answer where it belongs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from transformer_serving.engine.backends import usual_shapes
from transformer_serving.engine.backends.exported_program import Call, Outputs
from transformer_serving.engine.backends.packed.calls import PackedCalls, record
from transformer_serving.engine.backends.packed.texts import (
    BLOCK,
    SIZES,
    TEXTS,
    Row,
    blocks_of,
    joined,
    size_of,
    texts_of,
)

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=80)


def call_of(lengths: Sequence[int], seed: int) -> Call:
    """ids, which tell all tokens of a test from each other, and the mask."""
    there = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.random.default_rng(seed).permutation(there.size).reshape(there.shape) + 1
    return [(ids * there).astype(np.int32), there.astype(np.int32)]


def rows_of(lengths: Sequence[int]) -> list[Row]:
    texts = texts_of(call_of(lengths, 1), 1, ())
    assert texts is not None
    return list(joined([texts]).rows())


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


@pytest.mark.parametrize(("some", "copied"), [([7, 7, 7], False), ([7, 3], True), ([9], False)])
def test_what_needs_no_padding_is_handed_on_as_it_came(some: list[int], copied: bool) -> None:
    """The vectors of tokens are the most that a call gives."""
    given_back: list[Outputs] = []

    def run(rows: Sequence[Row]) -> list[Outputs]:
        given_back.extend(map(answered, rows))
        return given_back

    [found] = PackedCalls(1, (), (True, False), run, Padded()).run([call_of(some, 1)])
    assert not isinstance(found, Exception)
    [[sums, doubles]] = given_back
    assert np.shares_memory(found[0], sums)
    assert np.shares_memory(found[1], doubles) != copied


@settings(max_examples=150, deadline=None)
@given(lengths)
def test_rows_are_of_known_sizes_and_hold_the_texts_in_order(some: list[int]) -> None:
    rows = rows_of(some)
    assert sum(row.texts for row in rows) == len(some)
    assert sum(row.tokens for row in rows) == sum(some)
    for row in rows:
        assert row.size in SIZES
        assert row.texts <= TEXTS
        assert row.longest >= BLOCK


def test_a_text_that_is_longer_than_any_row_has_one_of_its_own() -> None:
    most = SIZES[-1]
    rows = rows_of([5, most + 1, 7])
    assert [(row.texts, row.size) for row in rows] == [(1, 16), (1, 2 * most), (1, 16)]


def _mask(rows: Sequence[Sequence[int]]) -> Call:
    mask: NDArray[np.int32] = np.array(rows, np.int32)
    return [mask, mask]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(_mask([[0, 1, 1]]), id="padding in front"),
        pytest.param(_mask([[1, 0, 1]]), id="padding within"),
        pytest.param(_mask([[1, 1, 1], [0, 0, 0]]), id="a text without a token"),
        pytest.param(_mask([[2, 1, 1]]), id="a mask of other numbers"),
    ],
)
def test_what_is_not_to_be_packed_is_padded_and_nothing_else(odd: Call) -> None:
    padded = Padded()
    packed = PackedCalls(1, (), (True, False), lambda rows: list(map(answered, rows)), padded)
    good = call_of([3, 1], 1)
    first, other, second = packed.run([good, odd, good])
    assert (other, padded.calls) == ([], 1)
    for found in (first, second):
        assert isinstance(found, list)
        np.testing.assert_array_equal(found[0], good[0].sum(axis=1, dtype=np.float32))


def test_a_row_that_fails_fails_the_call_at_fault_alone() -> None:
    def broken(rows: Sequence[Row]) -> list[Outputs]:
        if any(99 in row.numbers[: row.tokens] for row in rows):
            raise RuntimeError("out of memory")
        return list(map(answered, rows))

    packed = PackedCalls(1, (), (True, False), broken, Padded())
    [odd, mask], good = call_of([4, 5], 2), call_of([3], 1)
    odd[0, 0] = 99
    first, failed, second = packed.run([good, [odd, mask], good])
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert str(failed) == "out of memory"
    assert packed.run([]) == []


def test_what_failed_is_freed_before_the_calls_run_again() -> None:
    """Else there would be room on no device for the second time."""
    held: list[weakref.ref[Row]] = []
    left: list[bool] = []

    def broken(rows: Sequence[Row]) -> list[Outputs]:
        left.append(any(one() is not None for one in held))
        taken = rows_of([4])[0]
        held.append(weakref.ref(taken))
        raise RuntimeError("out of memory")

    packed = PackedCalls(1, (), (True, False), broken, Padded())
    found = packed.run([call_of([3], 1), call_of([4], 2)])
    assert [str(one) for one in found] == ["out of memory"] * 2
    assert left == [False] * 3


@given(st.integers(1, 3 * SIZES[-1]))
def test_sizes_grow_by_at_most_a_half(tokens: int) -> None:
    size = size_of(tokens)
    assert size >= tokens
    assert size <= max(SIZES[2], 1.5 * tokens) or tokens > SIZES[-1]


@pytest.mark.parametrize(("places", "longest"), [(40, BLOCK), (128, BLOCK), (512, 2 * BLOCK)])
def test_rows_of_most_calls_are_recorded_before_the_first(places: int, longest: int) -> None:
    seen: Counter[tuple[int, int]] = Counter()

    def collect(rows: Sequence[Row]) -> list[Outputs]:
        seen.update((row.size, row.longest) for row in rows)
        return []

    record(collect, 3, places)
    assert set(seen.values()) == {usual_shapes.TIMES}
    assert {size for size, _ in seen} == {size for size in SIZES if size <= 2048}
    assert max(longest for _, longest in seen) == longest
    for some in ([1], [16, 3], [100] * 12, [longest, 7]):
        for row in rows_of(some):
            assert (row.size, row.longest) in seen or row.longest > blocks_of(places)


def test_blocks_double() -> None:
    assert [blocks_of(one) for one in (1, 128, 129, 256, 257, 512)] == [
        128, 128, 256, 256, 512, 512,
    ]  # fmt: skip
