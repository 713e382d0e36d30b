"""--seq-len, --batch and --max-length, and what contradicts itself."""

from __future__ import annotations

import pytest

from transformer_serving.desk.builders.call_sizes import BATCH, call_sizes
from transformer_serving.desk.failure import ConversionRefused

LADDER = (16, 32, 64, 128, 256)


def test_without_options_the_model_decides_the_longest_text() -> None:
    sizes = call_sizes(LADDER)
    assert (sizes.buckets, sizes.max_length, sizes.batch) == (LADDER, None, BATCH)


def test_a_range_gives_its_own_lengths_and_the_steps_between() -> None:
    sizes = call_sizes(LADDER, seq_len=(10, 100, 200), batch=(1, 4, 12))
    assert sizes.buckets == (10, 16, 32, 64, 100, 128, 200)
    assert sizes.max_length == 200
    assert sizes.batch == (1, 4, 12)


def test_one_length_is_one_bucket() -> None:
    assert call_sizes(LADDER, seq_len=(128, 128, 128), max_length=128).buckets == (128,)


def test_one_token_is_no_length_of_its_own_where_longer_ones_follow() -> None:
    assert call_sizes(LADDER, seq_len=(1, 16, 40)).buckets == (16, 32, 40)
    assert call_sizes(LADDER, seq_len=(1, 1, 1)).buckets == (1,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seq_len": (32, 16, 64)}, r"--seq-len: MIN, OPT and MAX must rise from 1, got 32 16 64"),
        ({"batch": (1, 9, 8)}, "--batch: MIN, OPT and MAX must rise"),
        ({"batch": (2, 4, 8)}, "--batch: MIN must be 1, got 2"),
        ({"batch": (1, 4, 100_000)}, "--batch: MAX must be at most 65536"),
        ({"seq_len": (8, 8, 64), "max_length": 32}, "--max-length 32 and the MAX of --seq-len, 64"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConversionRefused, match=said):
        call_sizes(LADDER, **options)  # type: ignore[arg-type]
