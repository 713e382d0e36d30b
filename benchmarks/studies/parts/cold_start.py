"""From the start of a server to its first answer, beside the same app with an empty Preprocess."""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.report.budgets import PAUSE_S
from benchmarks.runs.session import Session
from benchmarks.servers.process import Unusable
from benchmarks.servers.running import Start
from benchmarks.servers.site import EMPTY, EMPTY_ARGUMENTS, OURS, ours_arguments, service_of_one
from benchmarks.servers.table import app, gateway
from benchmarks.servers.texts import SEED, json_text
from transformer_serving.desk.step_report import StepReport

_LATER = 5


@dataclass(frozen=True)
class Way:
    """A server with one endpoint. `ready` is what it answers before anybody asked the endpoint."""

    name: str
    make: Callable[..., Start]
    ready: str
    endpoint: str


WAYS = (
    Way("app, empty", app, "/docs", EMPTY),
    Way("app, ours", app, "/docs", OURS),
    Way("gateway, empty", gateway, "/health/ready", EMPTY),
    Way("gateway, ours", gateway, "/health/ready", OURS),
)


def measure(session: Session, report: StepReport) -> dict[str, list[dict[str, float]]]:
    """Every way in turns; by way, a row a round."""
    site = session.site
    services = {
        EMPTY: service_of_one(site, "cold start, empty", EMPTY_ARGUMENTS),
        OURS: service_of_one(site, "cold start, ours", ours_arguments(site)),
    }
    found: dict[str, list[dict[str, float]]] = {way.name: [] for way in WAYS}
    rounds = session.runner.plan.rounds
    for number in range(rounds):
        report(f"cold starts, round {number + 1} of {rounds}")
        for way in WAYS if number % 2 else reversed(WAYS):
            start = way.make(
                environment=services[way.endpoint], name=f"cold-{way.endpoint}", ready=way.ready
            )
            found[way.name].append(_start(start, way.endpoint, session, report))
    return found


def _start(start: Start, endpoint: str, session: Session, report: StepReport) -> dict[str, float]:
    """Seconds to the first answer; milliseconds of the first answer and of the next ones."""
    began = time.perf_counter()
    server = start(session.site, report)
    try:
        times = _asked(server.base, endpoint)
        pauses = PAUSE_S * len(times)
        first = time.perf_counter() - began - pauses - sum(times[1:])
    finally:
        server.stop()
    return {
        "first_answer_s": first,
        "first_ms": 1e3 * times[0],
        "later_ms": 1e3 * statistics.median(times[1:]),
    }


def _asked(base: str, endpoint: str) -> list[float]:
    """Seconds of the first answers over one connection, with a pause before each request."""
    connection = http.client.HTTPConnection(str(urlsplit(base).netloc), timeout=120)
    connection.connect()
    times = []
    try:
        for _ in range(1 + _LATER):
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            connection.request("POST", f"/serve/{endpoint}", json_text([SEED]), _JSON)
            answer = connection.getresponse()
            answer.read()
            times.append(time.perf_counter() - began)
            if answer.status != 200:
                raise Unusable(f"{endpoint} answered {answer.status} after its start")
    finally:
        connection.close()
    return times


_JSON: dict[str, Any] = {"Content-Type": "application/json"}
