"""Measuring one peer under one load, once: by ab, wrk, an open loop, or the engine alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.runs import processor_time
from benchmarks.runs.ab import LEAST, ToolRun, ab
from benchmarks.runs.engine_process import RawEngine
from benchmarks.runs.loads import LEAST_TURNS, Load
from benchmarks.runs.processor_time import is_tritons, process_seconds
from benchmarks.runs.stages import Sums, padding_share, read_sums, stage_ms, texts_a_call
from benchmarks.runs.wrk import wrk
from benchmarks.servers import texts
from benchmarks.servers.models import Models
from benchmarks.servers.peers import Peer
from benchmarks.servers.process import Unusable
from benchmarks.servers.running import Running
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import figures, percentile

_OPEN_SHARE = 0.7
# A measurement lasts at most so many times the plan's seconds, of a slow peer too.
_LONGEST_TIMES = 10
# A server that falls behind its pace shows it by and by.
_PACED_TIMES = 5
_LONGEST = 512
_SHARES = ("p50", "p90", "p99")

Measurement = dict[str, Any]


@dataclass
class Plan:
    """How long one measurement takes; tests make everything smaller.

    The first round waits `idle_within_s` at most for an idle machine; at 0 nobody looks.
    """

    seconds: float = 2.0
    rounds: int = 7
    warm_up_s: float = 1.0
    idle_within_s: float = 120.0


@dataclass
class Runner:
    """Measures; keeps what it learned of each peer's speed, so that runs last `plan.seconds`."""

    models: Models
    servers: dict[str, Running]
    scratch: Path
    plan: Plan
    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    engines: dict[str, RawEngine] = field(default_factory=dict)
    lengths: texts.Lengths | None = None

    def measure(self, peer: Peer, load: Load) -> Measurement:
        """One measurement. The first one of a pair warms up and finds the number of requests.

        Raises Unusable when the peer broke off or did not answer.
        """
        if peer.server is None:
            return self._raw(peer, load)
        key = (peer.name, load.name)
        if key not in self.rates:
            # What is cold answers slowly: only a second load tells how fast the peer is.
            self._clients(peer, load, self.plan.warm_up_s)
            self.rates[key] = self._rate(peer, load, self.plan.warm_up_s)
        return _TOOLS[load.tool](self, peer, load)

    def url(self, peer: Peer) -> str:
        assert peer.server is not None
        return f"{self.servers[peer.server].base}{peer.path}"

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def _rate(self, peer: Peer, load: Load, seconds: float) -> float:
        """Requests a second that `load.clients` get answered, each waiting for its answer."""
        found = self._clients(peer, load, seconds)
        answered = sum(exchange.status == 200 for exchange in found.exchanges)
        if not answered:
            raise Unusable(f"{peer.name} answered nothing with 200 under load '{load.name}'")
        return answered / found.elapsed_s

    def _clients(self, peer: Peer, load: Load, seconds: float) -> generator.Run:
        """`load.clients` ask again and again. Raises Unusable where they cannot connect."""
        payloads = self.mixed() if load.tool == "open" else [self._payload(peer, load)]
        kind = generator.Closed(load.clients, seconds)
        try:
            return generator.run(Address.of(self.url(peer)), payloads, kind)
        except OSError as error:
            raise Unusable(f"{peer.name}: {error}") from None

    def _payload(self, peer: Peer, load: Load) -> generator.Payload:
        body = peer.body([self.text(load)] * load.texts)
        return generator.Payload(load.name, body, load.texts, peer.content_type)

    def _ab(self, peer: Peer, load: Load) -> Measurement:
        """As many requests as last the plan's seconds; once more where half of them were sent."""
        found = self._ab_once(peer, load)
        if 2 * found["requests"] < self._requests(peer, load):
            found = self._ab_once(peer, load)
        return found

    def _requests(self, peer: Peer, load: Load) -> int:
        """Of one measurement by ab, by how fast the peer was last."""
        wanted = int(self.rates[peer.name, load.name] * self.plan.seconds)
        turns = min(LEAST_TURNS * load.clients, _LONGEST_TIMES * wanted)
        return max(min(wanted, load.most), turns, load.clients, LEAST)

    def _ab_once(self, peer: Peer, load: Load) -> Measurement:
        requests = self._requests(peer, load)
        found = self._closed(
            peer, load,
            lambda body: ab(
                self.url(peer), body, requests=requests, clients=load.clients,
                scratch=self.scratch, content_type=peer.content_type,
            ),
        )  # fmt: skip
        # One bad moment must not make every later round too short, or too long: refusals come at
        # once, and so many requests that are all answered would take minutes.
        answered = found["texts"] / load.texts
        self.rates[peer.name, load.name] = min(found["rate"], _LONGEST_TIMES * answered)
        return found

    def _wrk(self, peer: Peer, load: Load) -> Measurement:
        return self._closed(
            peer, load,
            lambda body: wrk(
                self.url(peer), body, seconds=self.plan.seconds, clients=load.clients,
                content_type=peer.content_type,
            ),
        )  # fmt: skip

    def _closed(self, peer: Peer, load: Load, run: Callable[[Path], ToolRun]) -> Measurement:
        """What a tool's run, given the file of the body, found, and what all parts spent on it."""
        body = self.scratch / f"{peer.body.__name__}-{load.name}.body"
        body.write_bytes(peer.body([self.text(load)] * load.texts))
        before, used = self._sums(peer), self._cpu_s(peer) or 0.0
        others = processor_time.spent()
        found = run(body)
        spent = self._cpu_s(peer)
        answered = found.requests - found.failed
        if not answered:
            raise Unusable(f"{peer.name}: all {found.requests} requests of {load.tool} failed")
        after = self._sums(peer)
        return {
            **asdict(found),
            "texts": found.rate * load.texts * answered / found.requests,
            **({} if spent is None else {"cpu_us": 1e6 * (spent - used) / found.requests}),
            **processor_time.since(others, found.requests),
            "stages_ms": stage_ms(before, after),
            "texts_a_call": texts_a_call(before, after),
        }

    def _raw(self, peer: Peer, load: Load) -> Measurement:
        if peer.engine not in self.engines:
            bundle = self.models.bundles[peer.engine]
            self.engines[peer.engine] = RawEngine(bundle.model_folder, self.scratch)
        engine = self.engines[peer.engine]
        tokens = self.texts_by_length().count(self.text(load))
        # Of padding, one that packs texts computes nothing behind a server either.
        if peer.padded and not engine.packed:
            buckets = self.models.bundles[peer.engine].endpoint.tokens.buckets
            tokens = next(size for size in buckets if size >= tokens)
        assert load.raw is not None
        key = (peer.name, load.name)
        if key not in self.rates:
            engine.measure(load.raw, tokens, self.plan.warm_up_s, peer.pause_s)
            self.rates[key] = 0.0
        found = engine.measure(load.raw, tokens, self.plan.seconds, peer.pause_s)
        return {**found, "texts": found["rate"], "failed": 0, "tokens": tokens}

    def _open(self, peer: Peer, load: Load) -> Measurement:
        """Each class alone on the idle server, then all of them mixed at 70 % of capacity."""
        address = Address.of(self.url(peer))
        idle = generator.run(address, self.mixed(), generator.Closed(1, self.plan.seconds))
        # Of this round: what a shared machine can do changes from minute to minute.
        capacity = self._rate(peer, load, self.plan.seconds)
        rate = _OPEN_SHARE * capacity
        before = self._sums(peer)
        loaded = generator.run(address, self.mixed(), generator.Open(rate, 2 * self.plan.seconds))
        after = self._sums(peer)
        answered = [exchange for exchange in loaded.exchanges if exchange.status == 200]
        if not answered:
            raise Unusable(f"{peer.name} answered nothing with 200 in the open loop")
        return {
            "texts": len(answered) / loaded.elapsed_s,
            "capacity": capacity,
            "offered": rate,
            "requests": len(loaded.exchanges),
            "failed": len(loaded.exchanges) - len(answered),
            "generator_cpu": loaded.cpu_s / loaded.elapsed_s,
            "late_ms": figures(loaded).late_ms,
            "padding": padding_share(before, after),
            "idle_ms": _by_label(idle.exchanges),
            "loaded_ms": _by_label(loaded.exchanges),
            **_percentiles(answered),
        }

    def _paced(self, peer: Peer, load: Load) -> Measurement:
        """One text again and again at a pace, whatever becomes of those before."""
        seconds = _PACED_TIMES * self.plan.seconds
        wanted = generator.Open(load.pace, seconds)
        found = generator.run(Address.of(self.url(peer)), [self._payload(peer, load)], wanted)
        answered = [exchange for exchange in found.exchanges if exchange.status == 200]
        if not answered:
            raise Unusable(f"{peer.name} answered nothing with 200 at {load.pace:g} a second")
        return {
            "texts": len(answered) / found.elapsed_s,
            "offered": len(found.exchanges) / seconds,
            "requests": len(found.exchanges),
            "failed": len(found.exchanges) - len(answered),
            "generator_cpu": found.cpu_s / found.elapsed_s,
            "late_ms": figures(found).late_ms,
            **_percentiles(answered),
        }

    def _own(self, peer: Peer, load: Load) -> Measurement:
        """By our own generator on kept connections, where ab and wrk are not installed."""

        spent_s = 0.0

        def run(body: Path) -> ToolRun:
            nonlocal spent_s
            found = generator.run(
                Address.of(self.url(peer)), [self._payload(peer, load)],
                generator.Closed(load.clients, self.plan.seconds),
            )  # fmt: skip
            spent_s = found.cpu_s
            answered = [exchange for exchange in found.exchanges if exchange.status == 200]
            percentiles = _percentiles(answered) if answered else dict.fromkeys(_SHARES, 0.0)
            return ToolRun(
                rate=len(found.exchanges) / found.elapsed_s,
                mean=1e3 * load.clients * found.elapsed_s / max(len(found.exchanges), 1),
                failed=len(found.exchanges) - len(answered),
                requests=len(found.exchanges),
                **percentiles,
            )

        measured = self._closed(peer, load, run)
        # This process is no load tool that has ended, whose time is counted otherwise.
        return {**measured, f"{processor_time.LOAD}_us": 1e6 * spent_s / measured["requests"]}

    def _sums(self, peer: Peer) -> Sums:
        """What the server counts itself; others than ours are not asked."""
        assert peer.server is not None
        return read_sums(self.servers[peer.server].base) if peer.kind == "ours" else {}

    def _cpu_s(self, peer: Peer) -> float | None:
        """What the peer's processes have used beside Triton; None where it has no others."""
        assert peer.server is not None
        processes = self.servers[peer.server].processes()
        own = [process.pid for process in processes if not is_tritons(process.name())]
        return sum(map(process_seconds, own)) if own else None

    def text(self, load: Load) -> str:
        if load.tokens is None:
            return texts.SEED
        return self.texts_by_length().text(load.tokens, random.Random(load.tokens))

    def mixed(self) -> list[generator.Payload]:
        pairs = texts.mixed_texts(self.texts_by_length(), _LONGEST)
        return [generator.Payload(label, texts.json_text([text])) for label, text in pairs]

    def texts_by_length(self) -> texts.Lengths:
        if self.lengths is None:
            self.lengths = texts.Lengths(self.models.tokenizer_json)
        return self.lengths


_TOOLS: Mapping[str, Callable[[Runner, Peer, Load], Measurement]] = {
    "ab": Runner._ab,
    "wrk": Runner._wrk,
    "open": Runner._open,
    "paced": Runner._paced,
    "own": Runner._own,
}


def _by_label(exchanges: Sequence[generator.Exchange]) -> dict[str, list[float]]:
    """All latencies in ms by class: a class's 99th percentile is taken over all rounds."""
    found: dict[str, list[float]] = {}
    for exchange in exchanges:
        if exchange.status == 200:
            milliseconds = round(1e3 * (exchange.done - exchange.due), 2)
            found.setdefault(exchange.label, []).append(milliseconds)
    return found


def _percentiles(exchanges: Sequence[generator.Exchange]) -> dict[str, float]:
    times = sorted(1e3 * (exchange.done - exchange.due) for exchange in exchanges)
    return {f"p{share:.0f}": percentile(times, share) for share in (50.0, 90.0, 99.0)}
