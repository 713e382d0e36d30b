"""Rows of exact lengths: real tokens, special ones at both ends, a mask that stays inside."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from preprocess.tokens import Encoded
from transformer_serving.contract.meanings import Masks
from transformer_serving.desk.builders.call_sizes import call_sizes
from transformer_serving.desk.builders.sample_rows import asked_lengths, kept_lengths, rows_of

FIRST, LAST, MASK = 101, 102, 103
LADDERS = st.sets(st.integers(1, 600), min_size=3, max_size=8).map(
    lambda found: (
        call_sizes(tuple(sorted(found)), seq_len=(min(found), sorted(found)[1], max(found))).buckets
    )
)


def text(size: int, mask_at: int | None = None) -> Encoded:
    inner = [MASK if at == mask_at else at for at in range(size - 2)]
    types = [0] * (size // 2) + [1] * (size - size // 2)
    return Encoded([FIRST, *inner, LAST], types)


@given(
    st.lists(st.integers(3, 60), min_size=1, max_size=5), st.sets(st.integers(1, 90), min_size=1)
)
def test_rows_have_exactly_the_lengths_and_both_ends(sizes: list[int], lengths: set[int]) -> None:
    rows = rows_of(None, [text(size) for size in sizes], sorted(lengths))
    assert [len(row.ids) for row in rows] == sorted(lengths)
    for row in rows:
        assert len(row.type_ids) == len(row.ids)
        assert row.ids[-1] == LAST
        assert len(row.ids) == 1 or row.ids[0] == FIRST
        assert set(row.ids[1:-1]) <= {*range(60), FIRST}


@given(st.integers(0, 30), st.sets(st.integers(1, 60), min_size=1))
def test_a_mask_stays_inside(mask_at: int, lengths: set[int]) -> None:
    masks = Masks("[MASK]", MASK, best=5)
    for row in rows_of(masks, [text(34, mask_at)], sorted(lengths)):
        (place,) = row.extras["mask_positions"]
        assert row.ids[place] == MASK
        assert 0 < len(row.extras["candidates"]) <= 4
        assert MASK not in row.extras["candidates"]
        if len(row.ids) > 2:
            assert 0 < place < len(row.ids) - 1


@given(LADDERS, st.none() | st.integers(1, 130))
def test_lengths_are_the_buckets_the_heads_and_their_neighbours(
    buckets: tuple[int, ...], head_size: int | None
) -> None:
    longest = buckets[-1]
    asked, kept = asked_lengths(buckets, head_size), kept_lengths(buckets)
    least = min(2, longest)
    assert set(buckets) <= set(asked) & set(kept)
    assert all(least <= size <= longest for size in (*asked, *kept))
    if head_size is not None and 2 <= head_size < longest:
        assert {head_size, head_size + 1} <= set(asked)
    for below, bucket in zip((0, *buckets), buckets, strict=False):
        assert any(below < size <= bucket for size in kept)


@pytest.mark.parametrize(
    ("buckets", "asked", "kept"),
    [
        ((8, 16), (3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16), (2, 7, 8, 9, 15, 16)),
        ((1,), (1,), (1,)),
        ((3,), (2, 3), (2, 3)),
    ],
)
def test_what_they_are(
    buckets: tuple[int, ...], asked: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert (asked_lengths(buckets, 4), kept_lengths(buckets)) == (asked, kept)


def test_an_endpoint_without_masks_has_no_extras() -> None:
    assert rows_of(None, [text(9)], (5,))[0].extras == {}
