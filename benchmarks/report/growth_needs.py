"""What 100,000 requests a second need, by the model of growth_model: arithmetic, not a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report.growth_model import Model, crowd
from benchmarks.report.growth_points import Place
from benchmarks.report.markdown import table

RATE, LATENCY_S = 100_000.0, 0.02
# As kubernetes/chart has the autoscalers: of the one processor that a worker asks for, and of what
# a Triton can do.
WORKER_BUSY, TRITON_BUSY = 0.65, 0.7
_SPARE = 0.1
_ENDPOINTS = (1, 10, 50)
_ROUNDS = 100


@dataclass(frozen=True)
class CpuEngine:
    """An engine's processor time a text as a run of `command` has it, of another date than the
    study's and maybe of another processor."""

    us: float
    title: str
    command: str
    date: str
    processor: str


@dataclass(frozen=True)
class Needs:
    """What a rate needs: workers at WORKER_BUSY with a tenth to spare, Tritons' own processors.

    `worker_cores` and `triton_cores` are busy ones, the latter without the engine itself.
    """

    endpoints: int
    in_flight: float
    texts: float
    worker_us: float
    triton_us: float
    worker_cores: float
    triton_cores: float
    workers: int
    most_workers: int
    calls_a_triton: int
    in_flight_a_worker: float


def needs(model: Model, rate: float, latency_s: float, endpoints: int, calls: int = 2) -> Needs:
    """For `rate` requests a second, each answered after `latency_s`, evenly over the endpoints,
    by workers that have a processor each and are not full.

    `calls` are those that a worker may have under way for an endpoint at each Triton. More workers
    have smaller crowds each, whose requests cost more: looked for until their number stays.
    """
    in_flight, workers = rate * latency_s, 1
    for _ in range(_ROUNDS):
        at = crowd(Place(endpoints=endpoints, workers=workers), in_flight)
        cores = rate * model.us("worker", at, is_paced=True) / 1e6
        wanted = math.ceil(cores / WORKER_BUSY)
        if wanted <= workers:
            break
        workers = wanted
    triton_us = sum(model.us(part, at, is_paced=True) for part in ("triton", "engine"))
    most = math.ceil(workers * (1 + _SPARE))
    return Needs(
        endpoints, in_flight, model.texts(at, is_paced=True),
        model.us("worker", at, is_paced=True), triton_us,
        cores, rate * triton_us / 1e6, workers, most, most * endpoints * calls,
        in_flight / workers,
    )  # fmt: skip


def text(model: Model, found: Mapping[str, Any], engine: CpuEngine | None) -> str:
    """Tables; `found` is what the study stored."""
    tritons = gpus(found["texts_a_second"])
    rows = [needs(model, RATE, LATENCY_S, count) for count in _ENDPOINTS]
    few, many = rows[0], rows[-1]
    memory = _worker_mb(found)
    lines = [
        ("requests under way", f"{RATE:,.0f} a second, {1e3 * LATENCY_S:g} ms each",
         f"{few.in_flight:,.0f}: as many connections of callers at least, "
         f"{few.in_flight_a_worker:.0f} a worker"),
        ("Tritons on GPU", f"{found['texts_a_second']:,} texts a second each, at "
         f"{TRITON_BUSY:.0%}", f"{tritons}"),
        ("Tritons on CPU", *_on_cpu(engine)),
        ("workers' memory", _each(memory),
         f"{_gb(few, memory)} to {_gb(many, memory)} GB; at 512 MiB requested each "
         f"{few.most_workers / 2:.0f} to {many.most_workers / 2:.0f} GiB"),
        ("a million requests", "the rows above", f"{_core_hours(few):.2f} to "
         f"{_core_hours(many):.2f} core hours of workers at {WORKER_BUSY:.0%}"
         f"{_other_hours(engine, tritons)}"),
    ]  # fmt: skip
    about = (
        f"By the model as open loops have it, a processor a worker, before {tritons} Tritons on "
        "GPUs. Extrapolation: rate, Tritons and machines are beyond what was measured."
    )
    return (
        f"### {RATE:,.0f} requests a second\n\n{about}\n\n{_by_endpoints(rows)}\n\n"
        f"{table(('what', 'from', 'gives'), lines)}"
    )


def _by_endpoints(rows: Sequence[Needs]) -> str:
    head = (
        "endpoints", "texts a call", "gateway, µs a request", "Triton and the engine's process, µs",
        "workers' cores, busy", f"workers at {WORKER_BUSY:.0%}", "a tenth to spare",
        "Tritons' own cores, busy", "connections to each Triton, at most",
    )  # fmt: skip
    return table(
        head,
        [
            (
                str(row.endpoints), f"{row.texts:.2f}", f"{row.worker_us:.0f}",
                f"{row.triton_us:.0f}", f"{row.worker_cores:.0f}", str(row.workers),
                str(row.most_workers), f"{row.triton_cores:.0f}", f"{row.calls_a_triton:,}",
            )
            for row in rows
        ],
    )  # fmt: skip


def gpus(texts_a_second: float) -> int:
    """Tritons of so many texts a second each that RATE keeps busy at TRITON_BUSY."""
    return round(RATE / texts_a_second / TRITON_BUSY)


def _on_cpu(engine: CpuEngine | None) -> tuple[str, str]:
    if engine is None:
        return "no stored `make bench`", "-"
    cores = RATE * engine.us / 1e6
    wanted = cores / TRITON_BUSY
    return (
        f"{engine.us:,.0f} µs of processor a text in the engine, {engine.title} on "
        f"{engine.processor}, by `{engine.command}` of {engine.date}",
        f"{cores:.0f} cores busy; at {TRITON_BUSY:.0%}: {wanted:.0f}, such as "
        f"{math.ceil(wanted / 8)} pods of 8",
    )


def _worker_mb(found: Mapping[str, Any]) -> dict[int, float]:
    """A worker's memory by how many endpoints it serves: the largest of its gateways."""
    memory: dict[int, float] = {}
    for row in found["memory"]:
        memory[row["served"]] = max(memory.get(row["served"], 0.0), row["worker_mb"])
    return memory


def _each(memory: Mapping[int, float]) -> str:
    rows = [f"{mb:.0f} MB a worker with {count} endpoints" for count, mb in memory.items()]
    return ", ".join(rows).replace("with 1 endpoints", "with one endpoint")


def _gb(row: Needs, memory: Mapping[int, float]) -> str:
    count = min(memory, key=lambda served: abs(served - row.endpoints))
    return f"{row.most_workers * memory[count] / 1e3:.0f}"


def _core_hours(row: Needs) -> float:
    return row.worker_us / WORKER_BUSY / 3600


def _other_hours(engine: CpuEngine | None, tritons: int) -> str:
    gpu_minutes = tritons * 1e6 / RATE / 60
    cpu = "" if engine is None else f", {engine.us / TRITON_BUSY / 3600:.2f} of CPU Tritons"
    return f"{cpu} or {gpu_minutes:.1f} GPU minutes, times your price"
