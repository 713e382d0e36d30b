"""How many requests a measurement has, by a real server whose first answers take long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.runs import ab, runners, wrk
from benchmarks.runs.loads import LEAST_TURNS, LOADS, SEED, Load
from benchmarks.runs.runners import Plan, Runner
from benchmarks.servers.peers import TORCH, Peer
from benchmarks.servers.running import Running
from tests.bench.served import served
from transformer_serving.desk.bench import load as generator

CLIENTS = 4
LOAD = replace(SEED, clients=CLIENTS, most=40)
PEER = Peer("slow at first", "a peer", TORCH, "peer", "slow", "/")
KEY = (PEER.name, LOAD.name)
PLAN = Plan(seconds=0.3, rounds=3, warm_up_s=0.2)


class Warming:
    """Each of its first answers takes as long as the whole warm-up and more."""

    def __init__(self) -> None:
        self.asked = 0
        self.takes_s = 0.0
        self.headers: list[dict[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers.append(dict(scope["headers"]))
        while (await receive()).get("more_body"):
            pass
        self.asked += 1
        await asyncio.sleep(0.5 if self.asked <= CLIENTS else self.takes_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def app() -> Warming:
    return Warming()


@pytest.fixture
def runner(app: Warming, tmp_path: Path) -> Iterator[Runner]:
    models: Any = None
    with served(app) as port:
        servers = {"slow": Running(f"http://127.0.0.1:{port}", ())}
        yield Runner(models, servers, tmp_path, PLAN)


def test_what_is_cold_says_nothing_of_how_fast_a_peer_is(
    app: Warming, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[int, generator.Run]] = []
    run = generator.run

    def noted(*arguments: Any) -> generator.Run:
        before = app.asked
        runs.append((before, run(*arguments)))
        return runs[-1][1]

    monkeypatch.setattr(generator, "run", noted)
    runner.measure(PEER, replace(LOAD, tool="own"))
    # The second load's, of which the cold server answered nothing.
    _, (asked, warm), _ = runs
    assert asked >= CLIENTS
    assert runner.rates[KEY] == len(warm.exchanges) / warm.elapsed_s


@pytest.mark.skipif(not ab.available(), reason="ab is not installed")
def test_a_round_is_as_long_as_the_one_before_was_fast(app: Warming, runner: Runner) -> None:
    first = runner.measure(PEER, LOAD)
    assert first["requests"] > LEAST_TURNS * CLIENTS
    assert runner.rates[KEY] == pytest.approx(first["rate"])
    app.takes_s = 0.1
    slower = runner.measure(PEER, LOAD)
    again = runner.measure(PEER, LOAD)
    assert again["requests"] == max(int(slower["rate"] * PLAN.seconds), LEAST_TURNS * CLIENTS)


@pytest.fixture
def sent(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests ab was told to send, to a peer that answers 40 a second."""
    found: list[int] = []

    def told(url: str, body: Path, *, requests: int, **options: Any) -> ab.ToolRun:
        found.append(requests)
        return ab.ToolRun(40.0, 1.0, 1.0, 1.0, 1.0, failed=0, requests=requests)

    monkeypatch.setattr(runners, "ab", told)
    return found


def test_a_slow_peer_is_asked_more_than_one_burst(runner: Runner, sent: list[int]) -> None:
    """At its pace the plan's seconds hold fewer requests than it has clients."""
    runner.rates[KEY] = 40.0
    load = replace(LOAD, clients=20)
    assert runner.measure(PEER, load)["requests"] == LEAST_TURNS * 20
    # What would take much longer than the plan says is asked as often as there is time for.
    assert runner.measure(PEER, replace(LOAD, clients=100))["requests"] == 10 * int(40 * 0.3)
    assert runner.measure(PEER, replace(LOAD, clients=200))["requests"] == 200
    assert sent == [LEAST_TURNS * 20, 10 * int(40 * 0.3), 200]


def test_a_round_that_was_much_too_short_is_measured_once_more(
    runner: Runner, sent: list[int]
) -> None:
    runner.plan, runner.rates[KEY] = Plan(seconds=10.0), 1.0
    load = replace(LOAD, most=10_000)
    assert runner.measure(PEER, load)["requests"] == 400
    assert sent == [LEAST_TURNS * CLIENTS, 400]
    # As far as there is more to send.
    runner.rates[KEY] = 1.0
    assert runner.measure(PEER, replace(load, most=20))["requests"] == LEAST_TURNS * CLIENTS


def test_refusals_make_no_next_round_of_minutes(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4000 a second only one in a hundred is answered; the next round's may all be."""
    refusing = ab.ToolRun(4000.0, 1.0, 1.0, 1.0, 1.0, failed=1188, requests=1200)
    monkeypatch.setattr(runners, "ab", lambda *given, **options: refusing)
    runner.rates[KEY] = 4000.0
    runner.measure(PEER, replace(LOAD, most=10_000))
    assert runner.rates[KEY] == pytest.approx(10 * 40)


@pytest.mark.skipif(not ab.available(), reason="ab is not installed")
@pytest.mark.parametrize(
    "load", [one for one in LOADS.values() if one.tool == "ab"], ids=lambda load: load.name
)
def test_ab_asks_everybody_on_new_connections(load: Load, app: Warming, runner: Runner) -> None:
    """It speaks HTTP/1.0: what it asked to keep, some servers would and others would not."""
    app.asked, runner.rates[PEER.name, load.name] = CLIENTS, 1.0
    runner.measure(PEER, replace(load, clients=1, most=1))
    assert len(app.headers) == ab.LEAST
    assert not any(b"connection" in one for one in app.headers)


@pytest.mark.skipif(not wrk.available(), reason="wrk is not installed")
def test_of_wrk_nothing_is_counted_that_it_did_not_send(app: Warming, runner: Runner) -> None:
    """The first answer takes half of the time: all of them together take no more than all of it."""
    app.asked, runner.rates[KEY] = CLIENTS - 1, 1.0
    found = runner.measure(PEER, replace(LOAD, tool="wrk", clients=1))
    assert found["requests"] > 1
    assert found["mean"] <= 1e3 / found["rate"]


def test_our_own_generators_time_is_the_senders(runner: Runner) -> None:
    found = runner.measure(PEER, replace(LOAD, tool="own"))
    assert found["load_us"] > 0


@pytest.mark.parametrize("tool", ["open", "paced"])
def test_of_an_open_loop_is_stored_how_late_its_requests_left(
    tool: str, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "mixed", lambda self: [self._payload(PEER, LOAD)])
    found = runner.measure(PEER, replace(LOAD, tool=tool, pace=20.0))
    assert found["late_ms"] >= 0


class Asked:
    """A raw engine that took no time, and what it was asked."""

    def __init__(self, packed: bool) -> None:
        self.packed = packed
        self.tokens: set[int] = set()

    def measure(
        self, batch: int, tokens: int, seconds: float, pause_s: float = 0.0
    ) -> dict[str, float]:
        self.tokens.add(tokens)
        return {"rate": 1.0}


@pytest.mark.parametrize(("packed", "tokens"), [(True, 18), (False, 32)])
def test_the_engine_alone_computes_padding_where_it_does_so_behind_a_server(
    packed: bool, tokens: int, tmp_path: Path
) -> None:
    engine, peer = Asked(packed), Peer("raw-padded", "", TORCH, "limit", None, padded=True)
    endpoint = SimpleNamespace(tokens=SimpleNamespace(buckets=(16, 32, 64)))
    models: Any = SimpleNamespace(bundles={TORCH: SimpleNamespace(endpoint=endpoint)})
    engines: Any = {TORCH: engine}
    lengths: Any = SimpleNamespace(count=lambda text: 18)
    runner = Runner(models, {}, tmp_path, PLAN, engines=engines, lengths=lengths)
    found = runner.measure(peer, SEED)
    assert engine.tokens == {found["tokens"]} == {tokens}
