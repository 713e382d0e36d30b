"""What a request's times become."""

from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from preprocess.passage import Departures, Passage, internal_error
from preprocess.queue.ticket import Stay
from preprocess.stats import STAGES
from transformer_serving.contract.errors import ServingError, caller_left
from transformer_serving.contract.worker import fault_lines
from transformer_serving.contract.worker.request_context import current_arrival, current_request


@given(reached=st.integers(0, 3), steps=st.lists(st.floats(0.001, 9), min_size=3, max_size=3))
def test_stages_are_told_as_far_as_the_request_came(reached: int, steps: list[float]) -> None:
    passage = Passage({})
    passage.arrived -= 100
    if reached:
        ends = [passage.arrived + at for at in itertools.accumulate(steps)][:reached]
        came, left, answered = (*ends, 0.0, 0.0)[:3]
        passage.note(Stay(9, came, left, answered, [], None))
        assert passage.tokens == 9
    stages = passage.stages()
    assert tuple(stages) == STAGES[: reached + 1]
    assert list(stages.values())[:reached] == pytest.approx(steps[:reached])
    assert sum(stages.values()) == pytest.approx(100, abs=1)


def test_the_gateways_id_is_taken_over() -> None:
    token = current_request.set(("mine", "00-trace"))
    try:
        passage = Passage({})
    finally:
        current_request.reset(token)
    assert (passage.request_id, passage.traceparent, passage.from_gateway) == (
        "mine",
        "00-trace",
        True,
    )
    alone = Passage({})
    assert (len(alone.request_id), alone.from_gateway) == (32, False)


def test_a_request_has_arrived_when_the_gateway_had_read_it() -> None:
    """Not when clearml-serving hands it on, which may be long after that."""
    token = current_arrival.set(5.0)
    try:
        assert Passage({}).arrived == 5.0
    finally:
        current_arrival.reset(token)
    assert Passage({}).arrived > 5.0


def test_a_fault_of_the_code_has_one_trace_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fault_lines, "time", SimpleNamespace(monotonic=lambda: clock.now))
    told = []

    def fail(error: Exception) -> None:
        try:
            raise error
        except Exception as raised:
            told.append(internal_error(raised, Passage({})).message)

    with caplog.at_level(logging.ERROR):
        for _ in range(500):
            fail(KeyError("a"))
        clock.now += 1
        fail(KeyError("a"))
    counts = [line.count for line in caplog.records]  # type: ignore[attr-defined]
    assert counts == [1, 500]
    assert all("Traceback" not in line.message and "in fail" in line.message
               for line in caplog.records)  # fmt: skip
    for line in caplog.records:
        assert any(line.reference in message for message in told)  # type: ignore[attr-defined]
    assert len(set(told)) == 2


def test_a_stream_that_breaks_is_on_the_line_a_second_of_its_code(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fault_lines, "time", SimpleNamespace(monotonic=lambda: clock.now))
    departures, fault = Departures("text", 7), ServingError("engine_failed", "it failed")

    def broken() -> str:
        stream = Passage({})
        departures.headers(stream, goes_on=True)
        departures.ended(stream, fault)
        return stream.request_id

    with caplog.at_level(logging.WARNING):
        first = broken()
        departures.headers(Passage({}), fault)
        broken()
        clock.now += 1
        last = broken()
    lines = [vars(row) for row in caplog.records]
    assert [(row["request_id"], row["count"]) for row in lines] == [(first, 1), (last, 3)]
    assert {(row["endpoint"], row["status"], row["code"]) for row in lines} == {
        ("text", 502, "engine_failed")
    }


@pytest.mark.parametrize(
    ("golden", "error"),
    [(False, None), (False, caller_left()), (True, ServingError("engine_failed", "it failed"))],
    ids=["whole", "left", "golden"],
)
def test_of_these_streams_no_line_is_written(
    caplog: pytest.LogCaptureFixture, golden: bool, error: ServingError | None
) -> None:
    with caplog.at_level(logging.WARNING):
        Departures("text", 7).ended(Passage(SimpleNamespace(is_golden=golden)), error)
    assert not caplog.records
