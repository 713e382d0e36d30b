"""How often a fault is told: what fails every request must not flood.

An answer of 500 and above has one line a second for each code and endpoint. A fault of the code is
told with its trace: a line of the log, or a report to ClearML, is one a second for each type of
error, place in the code and endpoint. What comes in between has the reference of that line, so that
each reference that a caller is told is in the log, with the trace that is its own, too.

A line counts those since the line before it. What comes after the last line of a storm has one of
its own a second later, so that none is counted with a fault of hours after, or when the worker
ends. The fault after that line is told as a first one.

Tested by tests/contract/test_fault_lines.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.deferred import Deferred
from transformer_serving.contract.worker.log_lines import trace_of
from transformer_serving.contract.worker.request_context import current_endpoint

FIRST_SERVER_FAULT = 500
_EVERY_S = 1.0
# Of places there are as many as lines of code that fail.
_MOST_PLACES = 256

Key = TypeVar("Key", bound=Hashable)
What = TypeVar("What")


@dataclass
class _Told(Generic[What]):
    """A line that was written; `missed` came since and stand on none."""

    what: What
    at: float
    missed: int = 0


class _Storms(Generic[Key, What]):
    """Of what a line was written lately; from any thread.

    `tell_rest` writes what came after a line and before the storm's end.
    """

    def __init__(self, tell_rest: Callable[[Key, What, int], None]) -> None:
        self._tell_rest = tell_rest
        self._told: OrderedDict[Key, _Told[What]] = OrderedDict()
        self._lock = threading.Lock()
        self._closing = Deferred(
            lambda: self._close(_EVERY_S), _EVERY_S, last=lambda: self._close(0.0)
        )

    def note(self, key: Key, what: What) -> tuple[What, int]:
        """What the newest line is about; how many a line that is due now stands for, 0: none is."""
        now = time.monotonic()
        rest: list[tuple[Key, _Told[What]]] = []
        with self._lock:
            last = self._told.pop(key, None)
            is_due = last is None or now - last.at >= _EVERY_S
            while is_due and len(self._told) >= _MOST_PLACES:
                rest.append(self._told.popitem(last=False))
            if last is not None and now - last.at >= 2 * _EVERY_S:
                rest.append((key, last))
                last = None
            missed = 0 if last is None else last.missed
            told = last if last is not None and not is_due else _Told(what, now)
            told.missed = 0 if is_due else missed + 1
            self._told[key] = told
        self._tell(rest)
        if not is_due:
            self._closing.soon()
        return told.what, missed + 1 if is_due else 0

    def again(self, key: Key, what: What, times: int) -> None:
        """So many more, for which no line is due."""
        with self._lock:
            at = time.monotonic() - _EVERY_S
            self._told.setdefault(key, _Told(what, at)).missed += times
        self._closing.soon()

    def _close(self, after_s: float) -> None:
        now = time.monotonic()
        with self._lock:
            waits = [(key, told) for key, told in self._told.items() if told.missed]
            over = [(key, told) for key, told in waits if now - told.at >= after_s]
            for key, _ in over:
                # This line has neither an id nor a trace: the next one is due at once.
                del self._told[key]
        self._tell(over)
        if len(over) < len(waits) and _in_a_loop():
            self._closing.soon()

    def _tell(self, rest: list[tuple[Key, _Told[What]]]) -> None:
        for key, told in rest:
            if told.missed:
                self._tell_rest(key, told.what, told.missed)


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class CodeLines:
    """The lines of one log of answers with 500 and above."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # What it was about is its message and status: an error's frames would keep a body.
        self._storms: _Storms[tuple[str, str | None], tuple[str, int]] = _Storms(self._write)

    def write(
        self, error: ServingError, endpoint: str | None, request_id: str | None,
        trace_id: str | None = None,
    ) -> None:  # fmt: skip
        """One that was answered so: now, or counted on the next line of its code and endpoint."""
        key, what = (error.kind.code, endpoint), (error.message, error.kind.status)
        _, count = self._storms.note(key, what)
        if count:
            self._write(key, what, count, request_id, trace_id)

    def again(self, error: ServingError, endpoint: str | None, times: int) -> None:
        """So many more, whose ids nobody has."""
        what = error.message, error.kind.status
        self._storms.again((error.kind.code, endpoint), what, times)

    def _write(
        self, key: tuple[str, str | None], what: tuple[str, int], count: int,
        request_id: str | None = None, trace_id: str | None = None,
    ) -> None:  # fmt: skip
        (code, endpoint), (message, status) = key, what
        self._log.warning(
            message,
            extra={
                "request_id": request_id,
                "endpoint": endpoint,
                "status": status,
                "code": code,
                "count": count,
                "trace_id": trace_id,
            },
        )


class _Place(NamedTuple):
    error: str
    file: str
    line: int
    endpoint: str | None
    is_logged: bool = True


@dataclass(frozen=True)
class Fault:
    """`reference` is for the caller; `is_told`: a line is due, which stands for `count` of them."""

    reference: str
    is_told: bool
    count: int


class Faults:
    """Those that were told of lately; from any thread. Their lines are those of `log`."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._storms: _Storms[_Place, str] = _Storms(self._tell_rest)

    def note(self, error: BaseException, *, is_logged: bool = True) -> Fault:
        """`is_logged`: it is told in the log, and not elsewhere alone."""
        place = _place_of(error)._replace(is_logged=is_logged)
        reference, count = self._storms.note(place, uuid.uuid4().hex[:12])
        return Fault(reference, count > 0, count)

    def _tell_rest(self, place: _Place, reference: str, count: int) -> None:
        if place.is_logged:
            self._log.error(
                "more requests failed, reference %s", reference,
                extra={"reference": reference, "endpoint": place.endpoint, "count": count},
            )  # fmt: skip


def tell(log: logging.Logger, fault: Fault, error: BaseException, request_id: str | None) -> None:
    """Write the fault's line where one is due, with the error's trace."""
    if fault.is_told:
        log.error(
            "request failed, reference %s: %s", fault.reference, trace_of(error),
            extra={"reference": fault.reference, "request_id": request_id, "count": fault.count},
        )  # fmt: skip


def _place_of(error: BaseException) -> _Place:
    """Where it was raised: the last of its frames."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    name, endpoint = type(error).__name__, current_endpoint.get()
    if frame is None:
        return _Place(name, "", 0, endpoint)
    return _Place(name, frame.tb_frame.f_code.co_filename, frame.tb_lineno, endpoint)
