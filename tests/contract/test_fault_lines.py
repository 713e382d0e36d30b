"""Which faults of the code are told, by a clock of the test's own."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker import deferred, fault_lines
from transformer_serving.contract.worker.deferred import Deferred, do_all_now, end_all
from transformer_serving.contract.worker.fault_lines import CodeLines, Fault, Faults, tell
from transformer_serving.contract.worker.request_context import current_endpoint

LOG = logging.getLogger("transformer_serving.test")
FULL, LATE = ServingError("overloaded", "it is full"), ServingError("deadline", "it is late")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fault_lines, "time", SimpleNamespace(monotonic=lambda: clock.now))
    # What another test's loop left waiting is done at no end of this one.
    waiting: dict[Any, Any] = {}
    monkeypatch.setattr(deferred, "_waiting", lambda: waiting)
    return clock


def noted(faults: Faults, error: BaseException) -> Fault:
    try:
        raise error
    except BaseException as raised:
        return faults.note(raised)


def elsewhere(faults: Faults, error: BaseException) -> Fault:
    try:
        raise error
    except BaseException as raised:
        return faults.note(raised)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    names = ("code", "endpoint", "request_id", "count")
    lines = [tuple(vars(row).get(name) for name in names) for row in caplog.records]
    caplog.clear()
    return lines


def test_a_code_has_one_line_a_second(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    lines = CodeLines(LOG)
    for name in ("1", "2"):
        lines.write(FULL, "a", name)
    lines.write(LATE, "a", "3")
    lines.write(FULL, "b", "4")
    assert told(caplog) == [
        ("overloaded", "a", "1", 1), ("deadline", "a", "3", 1), ("overloaded", "b", "4", 1)
    ]  # fmt: skip
    lines.again(FULL, "a", 5)
    clock.now += 0.9
    lines.write(FULL, "a", "5")
    assert told(caplog) == []
    clock.now += 0.1
    lines.write(FULL, "a", "6")
    assert told(caplog) == [("overloaded", "a", "6", 8)]


async def test_the_rest_of_a_storm_has_a_line_soon_after_it(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted with the next fault of the code, hours later and of another endpoint."""
    monkeypatch.setattr(fault_lines, "_EVERY_S", 0.01)
    lines, faults = CodeLines(LOG), Faults(LOG)
    for at in range(5):
        lines.write(FULL, "a", str(at))
        last = noted(faults, KeyError())
    assert told(caplog) == [("overloaded", "a", "0", 1)]
    clock.now += 0.015
    async with asyncio.timeout(60):
        while len(caplog.records) < 2:
            await asyncio.sleep(0.01)
    assert caplog.records[1].reference == last.reference  # type: ignore[attr-defined]
    assert told(caplog) == [("overloaded", "a", None, 4), (None, None, None, 4)]
    clock.now += 21_600
    lines.write(FULL, "a", "late")
    assert told(caplog) == [("overloaded", "a", "late", 1)]
    assert noted(faults, KeyError()).count == 1


def test_each_of_many_bursts_is_told_with_an_id_and_a_trace(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """The line that closed a burst was the last one for the next, too: of all bursts but the first
    there were counts alone."""
    lines, faults, references = CodeLines(LOG), Faults(LOG), set()
    for burst in range(7):
        for at in range(3):
            lines.write(FULL, "a", f"{burst}.{at}")
            fault = noted(faults, error := KeyError())
            references.add(fault.reference)
            tell(LOG, fault, error, None)
        clock.now += 1.0
        for storms in (lines._storms, faults._storms):
            storms._closing.now()
        clock.now += 0.5
    traced = [row for row in caplog.records if "KeyError" in row.getMessage()]
    assert {row.reference for row in traced} == references  # type: ignore[attr-defined]
    assert len(traced) == 7
    codes = [line[2:] for line in told(caplog) if line[0] == "overloaded"]
    assert codes == [line for burst in range(7) for line in ((f"{burst}.0", 1), (None, 2))]


async def test_looks_at_the_figures_in_a_storm_leave_one_timer(clock: SimpleNamespace) -> None:
    """Each left one of its own, and all were set again as long as the storm went on."""
    lines, loop = CodeLines(LOG), asyncio.get_running_loop()
    set_for: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def noting(*arguments: Any) -> asyncio.TimerHandle:
        set_for.append(call_later(*arguments))
        return set_for[-1]

    loop.call_later = noting  # type: ignore[method-assign, assignment]
    for _ in range(20):
        lines.write(FULL, "a", None)
        lines.write(FULL, "a", None)
        do_all_now()
    assert len([timer for timer in set_for if not timer.cancelled()]) == 1


async def test_what_came_in_the_last_second_is_told_at_the_end(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    lines, faults = CodeLines(LOG), Faults(LOG)
    for at in range(5):
        lines.write(FULL, "a", str(at))
        noted(faults, KeyError())
    # A look at the figures is no end.
    do_all_now()
    assert told(caplog) == [("overloaded", "a", "0", 1)]
    end_all()
    assert told(caplog) == [("overloaded", "a", None, 4), (None, None, None, 4)]
    end_all()
    assert told(caplog) == []


async def test_what_is_handed_on_at_the_end_is_told_too(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """As a crowd's refusals, which are counted when they were given."""
    lines = CodeLines(LOG)
    Deferred(lambda: lines.again(FULL, "a", 7)).soon()
    lines.write(FULL, "a", "0")
    end_all()
    assert [line[2:] for line in told(caplog)] == [("0", 1), (None, 7)]


def test_a_rest_that_nobody_came_to_write_is_on_no_later_line(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no loop runs."""
    lines = CodeLines(LOG)
    for at in range(5):
        lines.write(FULL, "a", str(at))
    clock.now += 21_600
    lines.write(FULL, "a", "late")
    counted = [line[2:] for line in told(caplog)]
    assert counted == [("0", 1), (None, 4), ("late", 1)]


def test_what_came_again_is_told_without_another(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    CodeLines(LOG).again(FULL, "a", 7)
    do_all_now()
    assert told(caplog) == [("overloaded", "a", None, 7)]


def test_a_fault_that_is_told_elsewhere_has_no_line_of_its_rest(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(LOG)
    for _ in range(3):
        try:
            raise KeyError
        except KeyError as error:
            faults.note(error, is_logged=False)
    clock.now += 5
    do_all_now()
    faults._storms._close(fault_lines._EVERY_S)
    assert told(caplog) == []


def test_codes_and_endpoints_that_are_remembered_are_bounded(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    lines = CodeLines(LOG)
    for at in range(1000):
        for _ in range(2):
            lines.write(FULL, str(at), None)
    assert len(lines._storms._told) == fault_lines._MOST_PLACES
    counts = [row.count for row in caplog.records]  # type: ignore[attr-defined]
    assert sum(counts) == 2000 - fault_lines._MOST_PLACES


def test_one_a_second_stands_for_those_between(clock: SimpleNamespace) -> None:
    faults = Faults(LOG)
    first = noted(faults, KeyError())
    assert (first.is_told, first.count) == (True, 1)
    for _ in range(9):
        clock.now += 0.1
        again = noted(faults, KeyError())
        assert (again.reference, again.is_told) == (first.reference, False)
    clock.now += 0.11
    later = noted(faults, KeyError())
    assert (later.is_told, later.count) == (True, 10)
    assert later.reference != first.reference


def test_another_type_place_or_endpoint_is_another_fault(clock: SimpleNamespace) -> None:
    faults = Faults(LOG)
    seen = [noted(faults, KeyError()), noted(faults, IndexError()), elsewhere(faults, KeyError())]
    token = current_endpoint.set("texts")
    try:
        seen.append(noted(faults, KeyError()))
    finally:
        current_endpoint.reset(token)
    # Nobody raised it: it has no frames.
    seen.append(faults.note(KeyError()))
    assert all(fault.is_told for fault in seen)
    assert len({fault.reference for fault in seen}) == len(seen)
    assert not noted(faults, KeyError()).is_told


def test_places_that_are_remembered_are_bounded(clock: SimpleNamespace) -> None:
    faults = Faults(LOG)
    for at in range(1000):
        noted(faults, type(f"Error{at}", (Exception,), {})())
    assert len(faults._storms._told) == fault_lines._MOST_PLACES
