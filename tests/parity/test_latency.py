"""The latency table: its calls, its figures, and its parity; no time is asserted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from transformer_serving.desk.parity.latency import (
    CPU,
    GPU,
    Contender,
    Latency,
    call_of,
    measure,
    parity_cell,
    percentile,
    shapes_of,
)

FEEDS = [
    {
        "input_ids": np.array([[2, 7, 8, 3]], np.int32),
        "attention_mask": np.array([[1, 1, 1, 1]], np.int32),
        "mask_positions": np.array([[2, 900]], np.int32),
    },
    {"input_ids": np.array([[2]], np.int32), "attention_mask": np.array([[1]], np.int32)},
]


def test_a_call_has_the_shape_asked_for_and_no_padding() -> None:
    call = call_of(FEEDS, texts=3, tokens=6)
    assert call["input_ids"].shape == (3, 6)
    assert (call["input_ids"] == [2, 7, 8, 3, 2, 7]).all()
    assert (call["attention_mask"] == 1).all()
    # A position stays inside the text, however short that is.
    assert call["mask_positions"].tolist() == [[2, 5]] * 3


@given(
    values=st.lists(st.floats(0, 1e6), min_size=1, max_size=60),
    part=st.sampled_from([1, 50, 95, 99]),
)
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(
    values: list[float], part: int
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, part)
    assert sum(value <= found for value in values) * 100 >= part * len(values)
    below = [value for value in values if value < found]
    assert len(below) * 100 < part * len(values)


def test_every_contender_runs_every_shape_in_turns() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []
    rounds: list[tuple[str, int, int]] = []

    def contender(name: str) -> Contender:
        return Contender(
            name, "fp32", lambda feed: seen.append((name, feed["input_ids"].shape)), 0.5, False
        )

    rows = measure(
        [contender("a"), contender("b")],
        FEEDS,
        shapes=((1, 16), (1, 40), (32, 40)),
        report=lambda shape, done, total: rounds.append((shape, done, total)),
    )
    assert [(row.name, row.texts, row.tokens) for row in rows] == [
        ("a", 1, 16), ("b", 1, 16), ("a", 1, 40), ("b", 1, 40), ("a", 32, 40), ("b", 32, 40)
    ]  # fmt: skip
    assert all(row.min <= row.median <= row.p95 <= row.p99 <= row.max for row in rows)
    assert rounds[-1] == ("32x40", 20, 21)
    # In turns: the first contender is asked again after the second.
    names = [name for name, _ in seen]
    assert names.index("b") < len(names) - 1 - names[::-1].index("a")


def test_a_row_says_whether_it_is_the_reference_or_over() -> None:
    figures: dict[str, Any] = dict.fromkeys(
        ("mean", "sd", "min", "max", "median", "p95", "p99"), 1.0
    )
    rows = [
        Latency("PyTorch", "fp32", 1, 16, 9, **figures, difference=None, passes=None),
        Latency("openvino", "int8", 1, 16, 9, **figures, difference=0.2, passes=False),
        Latency("PyTorch", "fp16", 1, 16, 9, **figures, difference=None, passes=None, device=GPU),
    ]
    cells = ["the reference", "2.0e-01 over", "not asked"]
    assert [parity_cell(row) for row in rows] == cells
    assert [row.device for row in rows] == [CPU, CPU, GPU]


@pytest.mark.parametrize(
    ("lengths", "batch", "most_texts", "call_tokens", "shapes"),
    [
        (None, None, 64, 1024, [(1, 16), (1, 128), (32, 128)]),
        (None, None, 8, None, [(1, 16), (1, 128), (8, 128)]),
        # As transformer-deploy asks it.
        ((16, 128, 384), (1, 16, 16), 16, None,
         [(1, 16), (1, 128), (1, 384), (16, 128), (16, 384)]),
        ((16, 128, 384), (1, 16, 16), 16, 1024,
         [(1, 16), (1, 128), (1, 384), (8, 128), (2, 384)]),
        ((16, 128, 384), (1, 4, 16), 16, None,
         [(1, 16), (1, 128), (1, 384), (4, 128), (16, 128), (16, 384)]),
        (None, (1, 8, 16), 16, 1024, [(1, 16), (1, 128), (8, 128)]),
        ((128, 128, 128), None, 64, None, [(1, 128), (32, 128)]),
        # No call is shorter than the endpoint's own.
        ((1, 2, 512), (1, 1, 1), 1, None, [(1, 4), (1, 512)]),
    ],
    ids=["unasked", "few-texts", "asked", "calls-of-1024", "three-batches", "batch-alone",
         "lengths-alone", "shorter"],
)  # fmt: skip
def test_what_is_measured_are_calls_that_the_endpoint_makes(
    lengths: tuple[int, int, int] | None,
    batch: tuple[int, int, int] | None,
    most_texts: int,
    call_tokens: int | None,
    shapes: list[tuple[int, int]],
) -> None:
    endpoint: Any = SimpleNamespace(
        tokens=SimpleNamespace(buckets=(4, 16, 128, 512), max_length=512),
        limits=SimpleNamespace(max_batch_size=most_texts, max_call_tokens=call_tokens),
    )
    assert list(shapes_of(endpoint, lengths, batch)) == shapes
