"""Processor time a request as clients, endpoints, workers and Tritons grow: `python -m benchmarks
growth`.

The engine sleeps as long as one of _TEXTS_A_SECOND would compute: none of the cores is its own, as
with a GPU. All gateways and Tritons are up at the same time and every round measures every place.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.report import growth_points as points
from benchmarks.report.growth_points import MANY, PLACES, Place
from benchmarks.runs.loads import shares
from benchmarks.runs.processor_samples import ProcessorSamples
from benchmarks.runs.stages import read_sums, texts_a_call
from benchmarks.servers import many_endpoints, texts, tritons
from benchmarks.servers.process import Unusable
from benchmarks.servers.running import Running
from benchmarks.servers.site import Site
from benchmarks.servers.table import gateway
from benchmarks.servers.tritons import Triton
from benchmarks.studies.idle import use_of
from benchmarks.studies.overload import Opened
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import percentile
from transformer_serving.desk.step_report import StepReport
from transformer_serving.engine.orphans import SERVER

# Of 128 tokens, published of BERT-base on one A100: what docs/growth.md takes for a GPU.
_TEXTS_A_SECOND = 8400
_NAMES = [f"endpoint_{number:02d}" for number in range(MANY)]
_TEXT = texts.json_text([texts.SEED])
# Before a stretch is measured, and the length of a load of the round that only warms up.
_SETTLE_S, _WARM_S = 0.2, 0.6
_IDLE_S = 5.0


@dataclass(frozen=True)
class Served:
    """A gateway that runs, and its Tritons."""

    running: Running
    tritons: Sequence[Triton]

    def processes(self) -> dict[str, list[int]]:
        """Their ids, and this process's, which sends, by the parts of growth_points."""
        found = {part: list[int]() for part in points.PARTS}
        found["worker"] = [process.pid for process in self.running.processes()]
        for process in (one for triton in self.tritons for one in triton.child.tree()):
            found["triton" if process.name() == SERVER else "engine"].append(process.pid)
        found["load"] = [os.getpid()]
        return found


@dataclass(frozen=True)
class Growth:
    """A run's part `growth`; `seconds` is the length of one load. Raises Unusable."""

    rounds: int = 7
    seconds: float = 1.5
    places: Sequence[Place] = PLACES

    def __call__(self, session: Opened, report: StepReport) -> dict[str, Any]:
        places = self.places
        rounds: dict[Place, list[dict[str, float]]] = {place: [] for place in places}
        loads = []
        with _gateways(session.site, places, report) as served:
            report("a round to warm up")
            rates: dict[Place, float] = {}
            _round(places, served, _WARM_S, rates, report)
            idle = _idle(served, report)
            for number in range(self.rounds):
                loads.append(round(os.getloadavg()[0], 2))
                session.time_loop()
                report(f"round {number + 1} of {self.rounds}, load {loads[-1]}")
                # Who begins changes from round to round.
                turn = places if number % 2 else places[::-1]
                for place, row in _round(turn, served, self.seconds, rates, report).items():
                    rounds[place].append(row)
            memory = [_memory(key, one) for key, one in served.items()]
        return {
            "texts_a_second": _TEXTS_A_SECOND,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "most_texts": _most_texts(session.site),
            "loads": loads,
            "points": [points.stored(place, rows) for place, rows in rounds.items()],
            "idle": idle,
            "memory": memory,
        }


def _round(
    places: Sequence[Place], served: Mapping[tuple[int, int, int], Served], seconds: float,
    rates: dict[Place, float], report: StepReport,
) -> dict[Place, dict[str, float]]:  # fmt: skip
    """Each place once; what cannot be measured in this round is told and left out of it.

    `rates` are answers a second of the closed loops so far, which open ones take a share of.
    """
    found = {}
    for place in places:
        pace = place.busy * rates.get(closed(place), 0.0) if place.busy else None
        if pace == 0.0:
            continue
        try:
            found[place] = measured(place, served[place.gateway], seconds, pace)
        except Unusable as error:
            report(str(error))
            continue
        if pace is None:
            rates[place] = found[place]["per_s"]
    return found


def closed(place: Place) -> Place:
    """The closed loop whose rate an open one takes a share of."""
    return Place(place.clients, place.endpoints, place.workers, place.tritons, place.served)


def measured(
    place: Place, served: Served, seconds: float, pace: float | None = None
) -> dict[str, float]:
    """One load: processor microseconds a request by part, and what was answered meanwhile.

    With `pace` requests come at random moments, so many a second. Raises Unusable where a load of
    so many seconds had no answers.
    """
    before = read_sums(served.running.base)
    with ProcessorSamples(served.processes()) as samples:
        runs = generator.run_together(list(_jobs(place, served.running.base, seconds, pace)))
    calls = texts_a_call(before, read_sums(served.running.base))
    exchanges = [exchange for run in runs for exchange in run.exchanges]
    begun = min((exchange.due for exchange in exchanges), default=0.0)
    stretch = samples.between(begun + min(_SETTLE_S, seconds / 4), begun + seconds)
    if stretch is None or calls is None:
        raise Unusable(f"{place} had no answers in {seconds:g} s")
    (first, spent), (last, ended) = stretch
    inside = [exchange for exchange in exchanges if first <= exchange.done < last]
    answered = sorted(1e3 * (one.done - one.due) for one in inside if one.status == 200)
    if not answered:
        raise Unusable(f"{place} had no answers with status 200 in {seconds:g} s")
    return {
        **{
            f"{part}_us": 1e6 * (ended[part] - spent[part]) / len(answered) for part in points.PARTS
        },
        "per_s": len(answered) / (last - first),
        "texts_a_call": calls,
        "mean_ms": fmean(answered),
        "p50_ms": percentile(answered, 50.0),
        "p99_ms": percentile(answered, 99.0),
        "not_200": float(len(inside) - len(answered)),
    }


def _jobs(place: Place, base: str, seconds: float, pace: float | None) -> Iterator[generator.Job]:
    """The clients in equal parts over the endpoints; an open loop asks one alone."""
    for number, clients in enumerate(shares(place.clients, place.endpoints)):
        load: generator.Closed | generator.Open = generator.Closed(clients, seconds)
        if pace is not None:
            load = generator.Open(pace, seconds, connections=place.clients)
        address = Address.of(f"{base}/serve/{_NAMES[number]}")
        yield address, [generator.Payload("text", _TEXT)], load


@contextlib.contextmanager
def _gateways(
    site: Site, places: Iterable[Place], report: StepReport
) -> Iterator[dict[tuple[int, int, int], Served]]:
    """Each gateway that the places name, before Tritons that sleep, once its workers serve."""
    keys = list(dict.fromkeys(place.gateway for place in places))
    with contextlib.ExitStack() as stack:
        found = {}
        variables: dict[int, dict[str, str]] = {}
        up: dict[int, list[Triton]] = {}
        for workers, served, count in keys:
            names = _NAMES[:served]
            if served not in variables:
                report(f"a service of {served} endpoints")
                variables[served] = many_endpoints.service(site, f"growth of {served}", names)
            there = up.setdefault(served, [])
            while len(there) < count:
                there.append(_sleeping(site, f"sleeping-{served}-{len(there)}", names, report))
                stack.callback(there[-1].child.stop)
            report(f"{workers} workers, {served} endpoints, {count} Tritons")
            start = gateway(
                workers, first=names[0], name=f"growth-{workers}-{served}-{count}",
                environment={**variables[served], **_addresses(there[:count])},
            )  # fmt: skip
            running = start(site, report)
            stack.callback(running.stop)
            found[workers, served, count] = Served(running, there[:count])
        yield found


def _sleeping(site: Site, name: str, names: Sequence[str], report: StepReport) -> Triton:
    report(f"a Triton with {len(names)} sleeping engines")
    work = site.work / name
    many_endpoints.repository(site, work, names)
    return tritons.start_triton(
        name, work, sleeping=True, environment={"BENCH_TEXTS_A_SECOND": str(_TEXTS_A_SECOND)}
    )


def _addresses(found: Sequence[Triton]) -> dict[str, str]:
    """What points an app at all of them by HTTP; texts take no other way."""
    together = ",".join(triton.http for triton in found)
    return {**found[0].variables(), "TRANSFORMER_SERVING_TRITON_HTTP": together}


def _idle(
    served: Mapping[tuple[int, int, int], Served], report: StepReport
) -> list[dict[str, float]]:
    """Milliseconds of processor a second that each part takes while nobody asks."""
    report(f"nobody asks for {_IDLE_S:g} s")
    with contextlib.ExitStack() as stack:
        watched = {
            key: stack.enter_context(ProcessorSamples(one.processes(), every_s=1.0))
            for key, one in served.items()
        }
        time.sleep(_IDLE_S)
    rows = []
    for (workers, endpoints, count), samples in watched.items():
        (first, spent), (last, ended) = samples.taken[0], samples.taken[-1]
        row: dict[str, float] = {"workers": workers, "served": endpoints, "tritons": count}
        for part in points.SERVING:
            row[f"{part}_ms"] = round(1e3 * (ended[part] - spent[part]) / (last - first), 2)
        rows.append(row)
    return rows


def _memory(key: tuple[int, int, int], served: Served) -> dict[str, float]:
    """Megabytes resident of a worker, after all rounds: the median of the gateway's."""
    workers, endpoints, count = key
    # The supervisor is the first, and has no workers' memory.
    each = [use_of([process]).rss / 1e6 for process in served.running.processes()[1:]]
    return {
        "workers": workers, "served": endpoints, "tritons": count,
        "worker_mb": round(median(each), 1),
    }  # fmt: skip


def _most_texts(site: Site) -> int:
    """Texts like ours that one call may hold."""
    endpoint = site.models.bundles["openvino"].endpoint
    tokens = texts.Lengths(site.models.tokenizer_json).count(texts.SEED)
    length = min(bucket for bucket in endpoint.tokens.buckets if bucket >= tokens)
    limits = endpoint.limits
    if limits.max_call_tokens is None:
        return limits.max_batch_size
    return min(limits.max_batch_size, limits.max_call_tokens // length)
