"""How often a fault is told: what fails every request must not flood.

An answer of 500 and above has one line a second for each code. A fault of the code is told with its
trace: a line of the log, or a report to ClearML, is one a second for each type of error, place in
the code and endpoint. What comes in between has the reference of that line, so that each reference
that a caller is told is in the log, with the trace that is its own, too.

Tested by tests/contract/test_fault_lines.py.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from transformer_serving.contract.worker.log_lines import trace_of
from transformer_serving.contract.worker.request_context import current_endpoint

FIRST_SERVER_FAULT = 500
_EVERY_S = 1.0
# Of places there are as many as lines of code that fail.
_MOST_PLACES = 256


class Codes:
    """Of which codes a line was written lately; from one thread."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def note(self, code: str) -> int:
        """How many answers the line stands for that is due now; 0 where none is."""
        now = time.monotonic()
        last, missed = self._told.get(code, (-_EVERY_S, 0))
        if now - last < _EVERY_S:
            self._told[code] = last, missed + 1
            return 0
        self._told[code] = now, 0
        return missed + 1

    def missed(self, code: str, times: int) -> None:
        """So many more, for which no line is due."""
        last, missed = self._told.get(code, (-_EVERY_S, 0))
        self._told[code] = last, missed + times


class _Place(NamedTuple):
    error: str
    file: str
    line: int
    endpoint: str | None


@dataclass(frozen=True)
class Fault:
    """`reference` is for the caller; `is_told`: a line is due, which stands for `count` of them."""

    reference: str
    is_told: bool
    count: int


@dataclass
class _Told:
    reference: str
    at: float
    missed: int = 0


class Faults:
    """Those that were told of lately; from any thread."""

    def __init__(self) -> None:
        self._told: OrderedDict[_Place, _Told] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, error: BaseException) -> Fault:
        place, now = _place_of(error), time.monotonic()
        with self._lock:
            last = self._told.pop(place, None)
            if last is not None and now - last.at < _EVERY_S:
                last.missed += 1
                self._told[place] = last
                return Fault(last.reference, False, 0)
            while len(self._told) >= _MOST_PLACES:
                self._told.popitem(last=False)
            new = self._told[place] = _Told(uuid.uuid4().hex[:12], now)
        return Fault(new.reference, True, 1 + (0 if last is None else last.missed))


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
