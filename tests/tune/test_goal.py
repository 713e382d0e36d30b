"""The figure of a goal: texts a second, at all or within a p99."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as some

from tests.free_ports import free_port
from transformer_serving.desk.bench import contact
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.load import Closed, Exchange, Open, Payload, Run
from transformer_serving.desk.bench.loops import in_order
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.goal import (
    MOST_CLIENTS,
    Goal,
    Meter,
    Point,
    next_clients,
    point,
    read_goal,
    texts_within,
)
from transformer_serving.desk.tune.race import race

TIMES = some.floats(0.1, 1e4)
# A p99 for each doubling of the clients, and the doubling to begin with.
_DOUBLINGS = MOST_CLIENTS.bit_length()
P99_OF = some.lists(TIMES, min_size=_DOUBLINGS, max_size=_DOUBLINGS)
EXPONENTS = some.integers(0, _DOUBLINGS - 1)


@pytest.mark.parametrize(
    ("text", "p99_ms"),
    [("throughput", None), ("p99<=50ms", 50.0), ("p99 <= 0.5s", 500.0), ("p99<7.25ms", 7.25)],
)
def test_a_goal_is_read(text: str, p99_ms: float | None) -> None:
    goal = read_goal(text)
    assert goal == Goal(p99_ms)
    assert read_goal(str(goal)) == goal


@pytest.mark.parametrize("text", ["", "latency", "p99<=50", "p99<=0ms", "p50<=50ms", "p99<=-1ms"])
def test_another_goal_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(Failure, match="throughput"):
        read_goal(text)


def test_a_request_without_a_good_answer_took_without_end() -> None:
    good = [Exchange("a", 2, 7.0, 7.0, 7.01, 200)] * 98
    bad = [Exchange("a", 2, 7.0, 7.0, 7.001, 503)] * 2
    found = point(4, Run((*good, *bad), 2.0, 0.0))
    assert found == Point(4, 98.0, math.inf)
    assert point(4, Run((*good, *good, bad[0]), 2.0, 0.0)).p99_ms == pytest.approx(10)
    assert point(4, Run((), 2.0, 0.0)) == Point(4, 0.0, math.inf)


def walked(p99_of: list[float], begin: int, p99_ms: float) -> list[Point]:
    """The counts that are measured on a machine whose p99 is that of each doubling."""
    found = [Point(begin, 100.0 * begin, p99_of[begin.bit_length() - 1])]
    while (clients := next_clients(found, p99_ms)) is not None:
        found.append(Point(clients, 100.0 * clients, p99_of[clients.bit_length() - 1]))
    return found


@given(P99_OF, EXPONENTS, TIMES)
def test_the_walk_ends_beside_the_time_whatever_the_machine_does(
    p99_of: list[float], exponent: int, p99_ms: float
) -> None:
    found = walked(p99_of, 1 << exponent, p99_ms)
    clients = [one.clients for one in found]
    assert len(set(clients)) == len(clients)
    last = found[-1]
    within = last.p99_ms <= p99_ms
    beyond = last.clients * 2 if within else last.clients // 2
    assert beyond in (0, 2 * MOST_CLIENTS) or beyond in clients


@given(P99_OF, EXPONENTS, TIMES)
def test_on_a_machine_that_only_gets_slower_the_begin_does_not_matter(
    times: list[float], exponent: int, p99_ms: float
) -> None:
    p99_of = sorted(times)
    found = texts_within(walked(p99_of, 1 << exponent, p99_ms), p99_ms)
    assert found == pytest.approx(texts_within(walked(p99_of, 1, p99_ms), p99_ms))


@pytest.mark.parametrize("goal", [Goal(), Goal(50.0)])
def test_a_gateway_that_is_gone_is_named(goal: Goal) -> None:
    address = Address.of(f"http://127.0.0.1:{free_port()}/serve/a")
    meter = Meter(goal, [Payload("one", b"{}")], clients=2, seconds=0.1)
    for ask in (meter.warm_up, lambda address: meter.measure(address, 1)):
        with pytest.raises(Failure, match=f"nothing answers at 127.0.0.1:{address.port}: "):
            ask(address)


COUNT, SECONDS = 2000, 0.4
REQUESTS = [Payload(str(number), b"{}") for number in range(COUNT)]
# Of all 3 in 100; of those that are sent first, none.
LONG = {one.label for one in in_order(REQUESTS)[100::30]}
STEADY, UNSTEADY = (Address.of(f"http://127.0.0.1:{port}/serve/a") for port in (1, 2))
# Of a short request and of a long one: over all of them UNSTEADY takes 1.4 times as long.
TAKES_S = {STEADY.port: (0.01, 0.01), UNSTEADY.port: (0.008, 0.2)}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Closed]:
    """The loads of two engines in virtual time, one request at a time."""
    found: list[Closed] = []

    def run(address: Address, payloads: list[Payload], kind: Closed) -> Run:
        found.append(kind)
        exchanges: list[Exchange] = []
        done = [0.0] * kind.clients
        for payload in itertools.cycle(in_order(payloads, kind.begin)):
            # Who is answered asks again.
            due = done[len(exchanges)]
            if due >= kind.seconds:
                break
            ended = done[-1] + TAKES_S[address.port][payload.label in LONG]
            exchanges.append(Exchange(payload.label, 1, due, due, ended, 200))
            done.append(ended)
        return Run(tuple(exchanges), done[-1], 0.0)

    monkeypatch.setattr(contact, "run", run)
    return found


@pytest.mark.parametrize("goal", [Goal(), Goal(150.0)], ids=str)
def test_what_no_load_has_time_for_does_not_decide_a_race(goal: Goal, loads: list[Closed]) -> None:
    """Loads of some fifty requests: if all began with the same ones, no long one would be asked."""
    meter = Meter(goal, REQUESTS, clients=4, seconds=SECONDS)
    addresses = {"steady": STEADY, "unsteady": UNSTEADY}
    lanes = race(tuple(addresses), lambda name, number: meter.measure(addresses[name], number))
    assert [lane.lost_to for lane in lanes] == [None, "steady"]
    assert COUNT / 10 < meter.measured < COUNT
    first = loads[0].begin
    assert any(one.begin != first for one in loads)


def test_each_round_is_of_the_same_requests_for_all(loads: list[Closed]) -> None:
    meter = Meter(Goal(), REQUESTS, clients=4, seconds=SECONDS)
    for number in (1, 2):
        for address in (STEADY, UNSTEADY):
            meter.measure(address, number)
    begins = [one.begin for one in loads]
    assert begins[0] == begins[1] != begins[2] == begins[3]


def test_a_p99_is_of_enough_requests(loads: list[Closed]) -> None:
    """Three loads of some 50 at most, each beginning where the one before ended."""
    meter = Meter(Goal(1000.0), REQUESTS, clients=4, seconds=SECONDS)
    meter.measure(STEADY, 1)
    first, second, third, other = loads[:4]
    assert second.begin - first.begin == third.begin - second.begin > 4
    assert first.clients == third.clients != other.clients
    assert other.begin == first.begin
    short = Meter(Goal(1000.0), REQUESTS, clients=4, seconds=5.0)
    loads.clear()
    short.measure(STEADY, 1)
    assert loads[0].clients != loads[1].clients


def test_all_requests_are_measured_where_there_is_time(loads: list[Closed]) -> None:
    meter = Meter(Goal(), REQUESTS[:30], clients=4, seconds=SECONDS)
    assert meter.measured == 0
    meter.measure(STEADY, 1)
    assert meter.measured == 30


@pytest.mark.parametrize(("count", "requests"), [(2000, 2000), (3, 16)])
def test_what_warms_up_is_every_request_in_twice_a_loads_time(
    loads: list[Closed], count: int, requests: int
) -> None:
    Meter(Goal(), REQUESTS[:count], clients=4, seconds=SECONDS).warm_up(STEADY)
    assert loads == [Closed(4, 2 * SECONDS, requests)]


def test_between_two_counts_it_is_in_proportion() -> None:
    found = [Point(8, 800.0, 20.0), Point(16, 1000.0, 60.0)]
    assert texts_within(found, 50.0) == pytest.approx(950.0)
    assert texts_within(found[:1], 50.0) == 800.0
    refusing = [found[0], Point(16, 1000.0, math.inf)]
    assert texts_within(refusing, 50.0) == 800.0


def test_of_two_that_are_too_slow_the_faster_is_better() -> None:
    assert texts_within([Point(1, 10.0, 100.0), Point(2, 30.0, 200.0)], 50.0) == 5.0
    assert texts_within([Point(1, 8.0, 125.0)], 50.0) == pytest.approx(3.2)
    assert texts_within([Point(1, 0.0, math.inf)], 50.0) == 0.0


def test_it_knows_how_much_its_generator_used(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([0.1, 0.36, 0.2])
    answer = Exchange("a", 1, 0.0, 0.0, 0.01, 200)
    monkeypatch.setattr(contact, "run", lambda *_: Run((answer,), 0.4, next(spent)))
    meter = Meter(Goal(), REQUESTS, clients=4, seconds=0.4)
    for number in range(3):
        meter.measure(STEADY, number)
    assert meter.generator_cpu == pytest.approx(0.9)


def test_the_open_loop_is_of_so_many_texts_and_of_requests_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[Open] = []
    answers = tuple(Exchange("a", 2, 0.0, 0.0, 0.03, 200) for _ in range(200))

    def run(_address: Address, _payloads: list[Payload], kind: Open) -> Run:
        loads.append(kind)
        refused = (replace(answers[0], status=503),) * 3
        return Run(answers if len(loads) == 1 else (*answers, *refused), 4.0, 0.1)

    monkeypatch.setattr(contact, "run", run)
    meter = Meter(Goal(50.0), [Payload("a", b"{}", 3), Payload("b", b"{}", 1)], 4, seconds=1.0)
    assert meter.open_loop(STEADY, 100.0).p99_ms == pytest.approx(30.0)
    assert meter.open_loop(STEADY, 2.0).p99_ms == math.inf
    assert [(one.rate, one.seconds) for one in loads] == [(50.0, 4.0), (1.0, 15.0)]
