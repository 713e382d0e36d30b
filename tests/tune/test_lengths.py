"""A distribution of text lengths, read and spread."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.lengths import Part, read_lengths, spread_evenly

PARTS = some.builds(
    lambda least, more, weight: Part(least, least + more, weight),
    some.integers(1, 1000), some.integers(0, 1000), some.integers(1, 1000),
)  # fmt: skip
LENGTHS = some.lists(PARTS, min_size=1, max_size=8)


@given(LENGTHS)
def test_what_is_written_is_read_again(parts: list[Part]) -> None:
    text = ", ".join(f"{one.least}-{one.most}:{one.weight}" for one in parts)
    assert read_lengths(text) == tuple(parts)


def test_the_short_forms() -> None:
    assert read_lengths("16") == (Part(16, 16, 1),)
    assert read_lengths("16:3,4-8") == (Part(16, 16, 3), Part(4, 8, 1))


@given(some.text(max_size=40) | some.text(alphabet="019-:, ", min_size=1, max_size=9))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parts = read_lengths(text)
    except Failure:
        return
    assert all(1 <= one.least <= one.most and one.weight for one in parts)


@pytest.mark.parametrize("text", ["", "0", "8-4", "8:0", "-4", "8:", "1,,2", "100001", "\u0664"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="part"):
        read_lengths(text)


@given(LENGTHS, some.integers(1, 300))
def test_every_length_is_of_a_part_and_shares_are_kept(parts: list[Part], count: int) -> None:
    lengths = spread_evenly(parts, count)
    assert len(lengths) == count
    assert all(any(one.least <= size <= one.most for one in parts) for size in lengths)
    first = parts[0]
    share = count * first.weight / sum(one.weight for one in parts)
    inside = sum(first.least <= size <= first.most for size in lengths)
    assert inside >= int(share) - 1
