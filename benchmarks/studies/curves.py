"""Cost curves and what else only `make bench-all` measures."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.runs.loads import shares
from benchmarks.runs.session import Part, Session
from benchmarks.servers import many_endpoints, texts, tritons
from benchmarks.servers.process import Unusable, tree, use
from benchmarks.servers.site import OURS, OURS_AGAIN, deploy
from benchmarks.servers.table import gateway
from benchmarks.studies.overload import Overload
from transformer_serving.desk.bench import bounds, load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import figures
from transformer_serving.desk.step_report import StepReport

_ROUNDS = 3
_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_LENGTHS = (8, 16, 32, 64, 128, 256, 512)
_ENDPOINTS = (1, 2, 5, 10, 20, 50)
_COUNTS = ("requests", "not_200")


@dataclass(frozen=True)
class Point:
    """What is sent at one place of a curve: to these paths, these bodies, by so many clients in
    all."""

    at: int
    paths: tuple[str, ...]
    payloads: tuple[generator.Payload, ...]
    clients: int


@dataclass(frozen=True)
class Curve:
    """A curve over one quantity; `server` is the running server that answers it."""

    name: str
    title: str
    axis: str
    points: tuple[Point, ...]


def measure_curves(session: Session, report: StepReport) -> dict[str, Any]:
    """The curves of the gateway, by name."""
    base = session.servers["gateway"].base
    processes = _serving_processes(session)
    seconds = session.runner.plan.seconds
    curves = {
        curve.name: _measured(curve, base, processes, seconds, report)
        for curve in _curves(session.runner.texts_by_length())
    }
    return {**curves, "endpoints": _endpoints_curve(session, report)}


def _curves(lengths: texts.Lengths) -> list[Curve]:
    path = (f"/serve/{OURS}",)
    source = random.Random(3)
    return [
        Curve(
            "concurrency", "One text a request, kept connections", "clients",
            tuple(Point(n, path, (_payload([texts.SEED]),), n) for n in _CLIENTS),
        ),
        Curve(
            "batch", "Texts a request, 4 clients", "texts a request",
            tuple(Point(n, path, (_payload([texts.SEED] * n),), 4) for n in _BATCHES),
        ),
        Curve(
            "length", "Tokens a text, 32 clients", "tokens",
            tuple(Point(n, path, (_payload([lengths.text(n, source)]),), 32) for n in _LENGTHS),
        ),
    ]  # fmt: skip


def _payload(content: Sequence[str]) -> generator.Payload:
    return generator.Payload("text", texts.json_text(content), len(content))


def _serving_processes(session: Session) -> Callable[[], list[psutil.Process]]:
    """The gateway's and Triton's processes: what an operator pays for."""
    triton = session.site.triton_pid()

    def processes() -> list[psutil.Process]:
        children = session.servers["gateway"].children
        return [*(p for child in children for p in child.tree()), *tree(triton)]

    return processes


def _measured(
    curve: Curve, base: str, processes: Callable[[], list[psutil.Process]], seconds: float,
    report: StepReport,
) -> dict[str, Any]:  # fmt: skip
    """Rounds over all points, so that a bad moment does not bend the curve at one place."""
    rounds: dict[int, list[dict[str, float]]] = {point.at: [] for point in curve.points}
    for number in range(_ROUNDS):
        report(f"curve {curve.name}, round {number + 1} of {_ROUNDS}")
        for point in curve.points:
            rounds[point.at].append(_point(point, base, processes, seconds))
    points = [{"at": at, **_together(rows)} for at, rows in rounds.items()]
    return {"title": curve.title, "axis": curve.axis, "points": points}


def _together(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of all rounds: counts as sums, of which no refusal may vanish, all else as medians."""
    return {
        key: sum(row[key] for row in rows)
        if key in _COUNTS
        else bounds.spread([row[key] for row in rows]).median
        for key in rows[0]
    }


def _point(
    point: Point, base: str, processes: Callable[[], list[psutil.Process]], seconds: float
) -> dict[str, float]:
    before = use(processes())
    runs = generator.run_together(
        [
            (Address.of(f"{base}{path}"), point.payloads, generator.Closed(clients, seconds))
            for path, clients in zip(
                point.paths, shares(point.clients, len(point.paths)), strict=True
            )
        ]
    )
    after = use(processes())
    # The percentiles of all requests: each path's own would make the worst one's look like theirs.
    exchanges = tuple(exchange for run in runs for exchange in run.exchanges)
    found = figures(generator.Run(exchanges, max(run.elapsed_s for run in runs), runs[0].cpu_s))
    return {
        "texts": found.texts,
        "p50": found.latency.p50 if found.latency else 0.0,
        "p99": found.latency.p99 if found.latency else 0.0,
        "cpu_ms": 1e3 * (after.cpu_s - before.cpu_s) / max(found.texts * found.elapsed_s, 1.0),
        "memory_mib": after.memory / 2**20,
        "requests": float(found.requests),
        "not_200": float(found.requests - found.statuses.get("200", 0)),
    }


def two_endpoints(session: Session, report: StepReport) -> dict[str, Any]:
    """One endpoint with 64 clients beside two endpoints with 32 each, in turns.

    On a gateway that is started when both are there: one that runs finds a new one by and by.
    Raises Unusable where not everything is answered with 200.
    """
    report("two endpoints")
    deploy(session.site, session.site.models.bundles["openvino"].folder, OURS_AGAIN)
    payload = (_payload([texts.SEED]),)
    points = {
        "one": Point(1, (f"/serve/{OURS}",), payload, 64),
        "two": Point(2, (f"/serve/{OURS}", f"/serve/{OURS_AGAIN}"), payload, 64),
    }
    found: dict[str, list[float]] = {name: [] for name in points}
    server = gateway(first=OURS_AGAIN, name="two-endpoints")(session.site, report)
    try:
        for _ in range(session.runner.plan.rounds):
            for name, point in points.items():
                row = _point(point, server.base, server.processes, session.runner.plan.seconds)
                if row["not_200"]:
                    raise Unusable(f"{row['not_200']:.0f} answers of {name} were not 200")
                found[name].append(row["texts"])
    finally:
        server.stop()
    return found


def _endpoints_curve(session: Session, report: StepReport) -> dict[str, Any]:
    """1 to 50 endpoints before the null engine, in a serving service of their own.

    The real Triton would hold 50 engines; what is asked here is what endpoints cost the app.
    """
    site = session.site
    most = max(_ENDPOINTS)
    report(f"adding {most} endpoints")
    names = [f"endpoint_{number:02d}" for number in range(most)]
    service = many_endpoints.service(site, "benchmark of endpoints", names)
    work = site.work / "endpoints"
    many_endpoints.repository(site, work, names)
    triton = tritons.start_triton("Triton of many endpoints", work, null=True)
    try:
        start = gateway(
            environment={**service, **triton.variables()},
            first=names[0],
            name="endpoints",
        )
        server = start(site, report)
        try:
            return _endpoint_points(server.base, server.children[0].tree, names, session, report)
        finally:
            server.stop()
    finally:
        triton.child.stop()


def _endpoint_points(
    base: str, processes: Callable[[], list[psutil.Process]], names: Sequence[str],
    session: Session, report: StepReport,
) -> dict[str, Any]:  # fmt: skip
    payload = (_payload([texts.SEED]),)
    curve = Curve(
        "endpoints", "Endpoints that are asked at the same time, 64 clients in all, null engine",
        "endpoints",
        tuple(
            Point(n, tuple(f"/serve/{name}" for name in names[:n]), payload, 64)
            for n in _ENDPOINTS
        ),
    )  # fmt: skip
    return _measured(curve, base, processes, session.runner.plan.seconds, report)


# What `make bench-all` measures after its rounds, by the name under which it is stored.
PARTS: dict[str, Part] = {
    "two_endpoints": two_endpoints,
    "overload": Overload(),
    "curves": measure_curves,
}
