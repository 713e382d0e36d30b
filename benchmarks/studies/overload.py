"""More than the engine can do, and callers that leave: `python -m benchmarks overload`.

With an engine that sleeps, capacity is known and none of its time is the processor's; with the real
one, engine, server and load generator share the cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.servers import texts, tritons
from benchmarks.servers.process import cpu_s
from benchmarks.servers.running import Running
from benchmarks.servers.site import OURS, Site
from benchmarks.servers.table import gateway
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import LoadFigures, figures, percentile
from transformer_serving.desk.deploy.golden import ask
from transformer_serving.desk.step_report import StepReport

TIMES = 4.0
SLEEPING = (80, 300, 800)
WINDOW_S = 5.0
# Callers that leave: of how many texts a second the engine is, and how long they wait.
_MIDDLE = 300
_LEAVE_S, _GIVE_UP_S = 0.02, 1.0
_CALLERS = 64
_ABANDONED_S = 15.0
_ALONE_S = 20.0
# Who comes when the load has ended asks again after so long a pause, and gives up at last.
_PAUSE_S, _SERVED_WITHIN_S = 0.02, 60.0
_TEXT = texts.json_text([texts.SEED])
# By what a table says of them, members of the request.
_DEADLINES: dict[str, dict[str, int]] = {"none": {}, "2 s": {"timeout_ms": 2000}}
_WARM_S = 3.0


class Opened(Protocol):
    """What is needed of a session: a stack with our endpoint, and the loop before each load."""

    @property
    def site(self) -> Site: ...

    def time_loop(self) -> None: ...


@dataclass(frozen=True)
class Overload:
    """A part of `make bench-all`; `seconds` is the length of each load, `text` what the real engine
    is asked, and `workers` the gateway's before it.

    Raises Unusable where a server does not start.
    """

    seconds: float = 60.0
    engines: Sequence[int] = SLEEPING
    real: bool = True
    workers: int = 1
    text: str = texts.SEED

    def __call__(self, session: Opened, report: StepReport) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        found: dict[str, Any] = {"times": TIMES, "seconds": self.seconds, "rows": rows}
        for rate in self.engines:
            with sleeping(session.site, rate, report) as server:
                for deadline in _DEADLINES:
                    report(f"{TIMES:g} times {rate} texts/s, deadline: {deadline}")
                    session.time_loop()
                    rows.append(self._row(server, deadline, report, float(rate)))
        if self.engines:
            found |= self._left(session, report)
        if self.real:
            start = gateway(self.workers, name="overload")
            with _running(start(session.site, report)) as server:
                for deadline in _DEADLINES:
                    report(f"{TIMES:g} times the real engine, deadline: {deadline}")
                    session.time_loop()
                    rows.append(self._row(server, deadline, report, None))
        return found

    def _left(self, session: Opened, report: StepReport) -> dict[str, Any]:
        """Callers that leave, before an engine that sleeps."""
        found: dict[str, Any] = {}
        with sleeping(session.site, _MIDDLE, report) as server:
            found["leaving"] = leaving(server, min(self.seconds, 15.0), report)
            found["abandoned"] = [
                abandoned(server, times, min(self.seconds, _ABANDONED_S), report)
                for times in (1.5, TIMES)
            ]
        return found

    def _row(
        self, server: Running, deadline: str, report: StepReport, rate: float | None
    ) -> dict[str, Any]:
        row = overloaded(server, deadline, self.seconds, rate, self.text)
        report(json.dumps(row))
        return row


@contextlib.contextmanager
def _running(server: Running) -> Iterator[Running]:
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def sleeping(site: Site, rate: int, report: StepReport, workers: int = 1) -> Iterator[Running]:
    """A gateway before an engine that takes a second for so many texts."""
    name = f"sleeping-{rate}-{workers}"
    work = site.work / name
    tritons.copy_repository(site.repository, work)
    triton = tritons.start_triton(
        f"sleeping Triton, {rate}", work, sleeping=True,
        environment={"BENCH_TEXTS_A_SECOND": str(rate)},
    )  # fmt: skip
    try:
        start = gateway(workers, environment=triton.variables(), name=name)
        with _running(start(site, report)) as server:
            yield server
    finally:
        triton.child.stop()


def _load(server: Running, body: bytes, kind: generator.Closed | generator.Open) -> generator.Run:
    address = Address.of(f"{server.base}/serve/{OURS}")
    return generator.run(address, [generator.Payload("text", body)], kind)


def overloaded(
    server: Running, deadline: str, seconds: float, capacity: float | None, text: str = texts.SEED
) -> dict[str, Any]:
    """TIMES the capacity at random moments; without one given, what 128 clients get.

    `refusal_us` is the server's processor time of a refusal: what is left of it when each answer
    is taken to cost what it does without overload, and no more than a refusal does at least.
    """
    computed, body = capacity is None, texts.json_text([text])
    _load(server, body, generator.Closed(16, _WARM_S))
    before = cpu_s(server.processes())
    calm = figures(_load(server, body, generator.Closed(128 if computed else 16, _WARM_S)))
    answer_s = (cpu_s(server.processes()) - before) / max(calm.goodput * calm.elapsed_s, 1)
    wanted = capacity or calm.goodput
    alone = _alone_ms(server, text)
    before = cpu_s(server.processes())
    offered = generator.Open(TIMES * wanted, seconds, connections=16_384)
    run = _load(server, json.dumps({"text": text, **_DEADLINES[deadline]}).encode(), offered)
    ended = time.monotonic()
    spent = cpu_s(server.processes()) - before
    found = figures(run)
    refused = found.statuses.get("503", 0)
    answered = found.statuses.get("200", 0)
    answer_s = min(answer_s, spent / max(found.requests, 1))
    refusal_s = (spent - answered * answer_s) / max(found.requests - answered, 1)
    begun = min(exchange.due for exchange in run.exchanges)
    windows = goodput_windows(run, begun, seconds)
    # What refusals and generator take of the cores, an engine on the same cores does not have.
    taken = (refused * refusal_s + run.cpu_s) / (run.elapsed_s * (os.cpu_count() or 1))
    return {
        "engine": "real" if computed else f"sleeps, {capacity:.0f} texts/s",
        "deadline": deadline,
        "capacity": wanted,
        "offered": offered.rate,
        "windows": windows,
        "least": min(windows[1:] or windows) / wanted,
        "wanted": 0.9 * (1 - taken) if computed else 0.9,
        "statuses": found.statuses,
        "p50": found.latency.p50 if found.latency else None,
        "p99": found.latency.p99 if found.latency else None,
        "refused_p99": _refused_p99(run),
        "drained_s": ended - begun - seconds,
        "alone_ms": alone,
        "after_ms": _alone_ms(server, text),
        "answer_us": 1e6 * answer_s,
        "refusal_us": 1e6 * refusal_s,
        "generator_cpu": found.generator_cpu,
        "calm_generator_cpu": calm.generator_cpu,
        "server_cpu": spent / run.elapsed_s,
        "late_ms": found.late_ms,
    }


def _alone_ms(server: Running, text: str = texts.SEED) -> float | None:
    """The shortest of three requests, one after the other; None where none got a 200."""
    times = [_answered_s(server, _ALONE_S, text) for _ in range(3)]
    return min((1e3 * took for took in times if took is not None), default=None)


def _answered_s(server: Running, patience_s: float, text: str = texts.SEED) -> float | None:
    """Seconds of one request; None where it was not answered with 200, as when it was refused."""
    began = time.monotonic()
    reply = ask(f"{server.base}/serve/{OURS}", {"text": text}, patience_s)
    return time.monotonic() - began if reply.status == 200 else None


def _served_s(server: Running, limit_s: float = _SERVED_WITHIN_S) -> float | None:
    """Seconds until one who comes now has an answer with 200, and asks again at each refusal; None
    where that takes longer than the limit."""
    began = time.monotonic()
    while (left := began + limit_s - time.monotonic()) > 0:
        if _answered_s(server, left) is not None:
            return time.monotonic() - began
        time.sleep(_PAUSE_S)
    return None


def goodput_windows(run: generator.Run, begun: float, seconds: float) -> list[float]:
    """Answers with status 200 a second, in each whole window of the load."""
    counts = [0] * max(1, int(seconds / WINDOW_S))
    length = min(WINDOW_S, seconds)
    for exchange in run.exchanges:
        at = int((exchange.done - begun) / length)
        if exchange.status == 200 and at < len(counts):
            counts[at] += 1
    return [count / length for count in counts]


def _refused_p99(run: generator.Run) -> float | None:
    """Milliseconds from sending to a 503."""
    times = sorted(1e3 * (e.done - e.sent) for e in run.exchanges if e.status == 503)
    return percentile(times, 99.0) if times else None


def leaving(server: Running, seconds: float, report: StepReport) -> dict[str, Any]:
    """Half of the callers leave after 20 ms and come again at once, or when a caller that stays
    would have been answered; the texts a second of the others, and what they are without them.
    """
    stay = generator.Closed(_CALLERS // 2, seconds)
    pace = _MIDDLE / 2
    beside = {
        "nobody": None,
        "come again at once": generator.Closed(_CALLERS // 2, seconds, leave_s=_LEAVE_S),
        "come at the others' pace": generator.Open(pace, seconds, leave_s=_LEAVE_S),
    }
    found: dict[str, Any] = {"capacity": float(_MIDDLE)}
    for name, load in beside.items():
        report(f"half of {_CALLERS} callers leave after {_LEAVE_S * 1e3:g} ms: {name}")
        with ThreadPoolExecutor(2) as pool:
            others = pool.submit(_load, server, _TEXT, load) if load else None
            stayed = figures(pool.submit(_load, server, _TEXT, stay).result())
            left = figures(others.result()) if others else None
        found[name] = {
            "texts": stayed.texts,
            "refused": stayed.statuses.get("503", 0),
            "leavers": left.statuses if left else {},
        }
        report(json.dumps(found[name]))
        time.sleep(1)
    return found


def abandoned(server: Running, times: float, seconds: float, report: StepReport) -> dict[str, Any]:
    """Callers that give up after 1 s, and how long the next one waits for an answer then."""
    load = generator.Open(times * _MIDDLE, seconds, connections=16_384, leave_s=_GIVE_UP_S)
    report(f"callers that give up after {_GIVE_UP_S:g} s, {times:g} times capacity")
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        running = pool.submit(_load, server, _TEXT, load)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        next_s = _served_s(server)
        found: LoadFigures = figures(running.result())
    row = {"times": times, "seconds": seconds, "next_s": next_s, "statuses": found.statuses}
    report(json.dumps(row))
    return row
