"""Which faults of the code are told, by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from transformer_serving.contract.worker import fault_lines
from transformer_serving.contract.worker.fault_lines import Codes, Fault, Faults
from transformer_serving.contract.worker.request_context import current_endpoint


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fault_lines, "time", SimpleNamespace(monotonic=lambda: clock.now))
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


def test_a_code_has_one_line_a_second(clock: SimpleNamespace) -> None:
    codes = Codes()
    codes.missed("overloaded", 3)
    assert [codes.note("overloaded"), codes.note("overloaded"), codes.note("deadline")] == [4, 0, 1]
    codes.missed("overloaded", 5)
    clock.now += 0.9
    assert codes.note("overloaded") == 0
    clock.now += 0.1
    assert codes.note("overloaded") == 8


def test_one_a_second_stands_for_those_between(clock: SimpleNamespace) -> None:
    faults = Faults()
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
    faults = Faults()
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
    faults = Faults()
    for at in range(1000):
        noted(faults, type(f"Error{at}", (Exception,), {})())
    assert len(faults._told) == fault_lines._MOST_PLACES
