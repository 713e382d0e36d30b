"""One request's way through: its id and times, and what is told of it when it leaves."""

from __future__ import annotations

import logging
import time
import uuid
from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from preprocess.queue.ticket import Stay
from preprocess.stats import GIVEN_UP, STAGES, EndpointFigures, durations
from preprocess.tracing import PassageTrace
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.contract.worker.durations import OK
from transformer_serving.contract.worker.fault_lines import (
    FIRST_SERVER_FAULT,
    CodeLines,
    Faults,
    tell,
)
from transformer_serving.contract.worker.request_context import (
    current_arrival,
    current_caller,
    current_request,
)
from transformer_serving.contract.worker.tracing import Tracing
from transformer_serving.contract.worker.watched_answers import watched_answers

log = logging.getLogger("transformer_serving.preprocess")

_internal = Faults(log)


class Asker(Protocol):
    """What threads and queue may know of a request; its record is not theirs to write.

    `goes_first` is set where it stands before whoever waits; `texts` is how many the caller sent.
    `caller` is done when the caller has left, None where nobody would know; `own_deadline` is set
    where the request brought one; `trace` is None where it is not traced.
    """

    @property
    def golden(self) -> bool: ...
    @property
    def goes_first(self) -> bool: ...
    @property
    def texts(self) -> int: ...
    @property
    def own_deadline(self) -> bool: ...
    @property
    def caller(self) -> Future[None] | None: ...
    @property
    def trace(self) -> PassageTrace | None: ...


class Passage:
    """An Asker. Times are time.monotonic's; those after `arrived` are 0.0 until `note`.

    `fault` is the error that ended a stream.
    """

    __slots__ = (
        "answered", "arrived", "caller", "fault", "from_gateway", "goes_first", "golden", "left",
        "own_deadline", "request_id", "texts", "tokenized", "tokens", "trace", "traceparent",
    )  # fmt: skip

    def __init__(self, body: Any, tracing: Tracing | None = None) -> None:
        arrived = current_arrival.get()
        self.arrived = time.monotonic() if arrived is None else arrived
        self.tokenized = self.left = self.answered = 0.0
        self.texts = self.tokens = 0
        self.golden: bool = getattr(body, "is_golden", False)
        self.goes_first: bool = getattr(body, "goes_first", False)
        self.own_deadline = False
        self.fault: ServingError | None = None
        self.caller = current_caller.get()
        context = current_request.get()
        self.from_gateway = context is not None
        self.request_id, self.traceparent = context or (uuid.uuid4().hex, None)
        self.trace: PassageTrace | None = None
        if tracing is not None and not self.golden and (trace := tracing.inside(context)):
            self.trace = PassageTrace(trace)

    def note(self, stay: Stay) -> None:
        """What the queue tells of it."""
        self.tokens = stay.tokens
        self.tokenized, self.left, self.answered = stay.came, stay.left, stay.answered

    def stages(self) -> dict[str, float]:
        """Seconds in each stage, in order, up to the one in which it is now."""
        seconds: dict[str, float] = {}
        before, now = self.arrived, time.monotonic()
        for stage, end in zip(STAGES, (self.tokenized, self.left, self.answered, 0.0), strict=True):
            if not end:
                seconds[stage] = now - before
                break
            seconds[stage] = end - before
            before = end
        return seconds


class Departures:
    """What is told of each request of one endpoint: headers, figures, spans, and log lines."""

    def __init__(self, endpoint: str, bundle_version: int) -> None:
        self._endpoint = endpoint
        self._bundle_version = str(bundle_version)
        self.figures = EndpointFigures(endpoint)
        self._lines = CodeLines(log)
        # In a rollout the gateway has lists of both bundles' endpoints here.
        self._watched = watched_answers()

    def headers(
        self, passage: Passage, error: ServingError | None = None, *, goes_on: bool = False
    ) -> dict[str, str]:
        """Count the answer, log and trace it; the headers it leaves with.

        Of one that `goes_on` after them, a stream, fault and trace are told when it has `ended`,
        and only then a rollout hears of it.
        """
        status = error.kind.status if error else 200
        stages = passage.stages()
        if passage.trace is not None and not goes_on:
            self._trace(passage.trace, passage, status, stages)
        if not passage.golden:
            self.figures.request(status, passage.texts, passage.tokens, stages)
            if not goes_on:
                self._watch(status, passage, stages)
            if not passage.from_gateway:
                code = error.kind.code if error else OK
                durations.took(
                    self._endpoint, code, status, sum(stages.values()), _trace_id(passage)
                )
            if error is not None and status >= FIRST_SERVER_FAULT:
                self._log(passage, error)
        headers = {
            "server-timing": ", ".join(
                [f"{stage};dur={1000 * seconds:.3f}" for stage, seconds in stages.items()]
            )
        }
        if not passage.from_gateway:
            headers["x-request-id"] = passage.request_id
        headers[VERSION_HEADER] = self._bundle_version
        return headers

    @contextmanager
    def given_up(self, passage: Passage) -> Iterator[None]:
        """Count the texts of a request that its caller or its deadline takes out meanwhile."""
        try:
            yield
        except ServingError as error:
            reason = GIVEN_UP.get(error.kind.code)
            if reason and not passage.golden:
                self.figures.abandoned(reason, passage.texts)
            raise

    def ended(self, passage: Passage, error: ServingError | None) -> None:
        """A stream, to be called once: it left with 200, and `error` is what it ended with."""
        status, stages = 200 if error is None else error.kind.status, passage.stages()
        failed = status >= FIRST_SERVER_FAULT
        if passage.trace is not None:
            self._trace(passage.trace, passage, 200, stages, failed=failed)
        if passage.golden:
            return
        self._watch(status, passage, stages)
        if error is not None and failed:
            self._log(passage, error)

    def _watch(self, status: int, passage: Passage, stages: dict[str, float]) -> None:
        """Of both bundles in a rollout, what became of each request."""
        if (watched := self._watched.get(self._endpoint)) is not None:
            watched.append((status, passage.tokens, sum(stages.values())))

    def again(self, error: ServingError, times: int) -> None:
        """So many more were answered with the error, by the gateway."""
        status = error.kind.status
        self.figures.request(status, 0, 0, {}, times)
        if status >= FIRST_SERVER_FAULT:
            self._lines.again(error, self._endpoint, times)

    def _log(self, passage: Passage, error: ServingError) -> None:
        """A line a second for each code at most: an engine that is gone fails every request."""
        self._lines.write(error, self._endpoint, passage.request_id, _trace_id(passage))

    def _trace(
        self, trace: PassageTrace, passage: Passage, status: int, stages: dict[str, float], *,
        failed: bool = False,
    ) -> None:  # fmt: skip
        attributes: dict[str, str | int] = {
            "http.response.status_code": status,
            "transformer_serving.endpoint": self._endpoint,
            "transformer_serving.bundle": self._bundle_version,
            "transformer_serving.request_id": passage.request_id,
            "transformer_serving.texts": passage.texts,
            "transformer_serving.tokens": passage.tokens,
        }
        kind = "internal" if passage.from_gateway else "server"
        trace.ended(
            f"serve {self._endpoint}", kind, passage.arrived, stages, attributes,
            failed=failed or status >= FIRST_SERVER_FAULT,
        )  # fmt: skip


def _trace_id(passage: Passage) -> str | None:
    return None if passage.trace is None else passage.trace.trace.trace_id


def internal_error(error: BaseException, passage: Passage) -> ServingError:
    """The last line of defence: the caller gets a reference, the log has the trace."""
    fault = _internal.note(error)
    tell(log, fault, error, passage.request_id)
    told = f"a fault of the serving code, reference {fault.reference}; see the worker's log"
    return ServingError("internal", told)
