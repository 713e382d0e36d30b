"""Which endpoint a request counts for, as what, and for how long it is in flight."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.played_host import Processor, host_of
from transformer_serving.contract.errors import KINDS
from transformer_serving.gateway.figures.traffic import NOBODY, Traffic
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.short_way import ShortWay

Took = tuple[str, str, int]


class Watched(Traffic):
    """Keeps what it would add up."""

    def __init__(self, processor: Processor | None) -> None:
        super().__init__(ShortWay(host_of(processor)))
        self.seen: list[Took] = []
        self.seconds: list[float] = []
        self.durations.took = self._took  # type: ignore[method-assign]

    def _took(
        self, endpoint: str, code: str, status: int, seconds: float, trace_id: str | None = None
    ) -> None:
        self.seen.append((endpoint, code, status))
        self.seconds.append(seconds)

    @property
    def in_flight(self) -> dict[str, int]:
        return {name: number for name, number in self._running.items() if number}


@pytest.fixture
def processor() -> Processor:
    processor = Processor({"texts": None, "texts/2": None})
    processor._canary_route["route"] = {"endpoints": ["texts", "texts/2"], "weights": [0.5, 0.5]}
    return processor


@pytest.fixture
def traffic(processor: Processor) -> Watched:
    return Watched(processor)


def target(model: str, version: str | None = None) -> RequestedEndpoint:
    return RequestedEndpoint(model, version)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (target("texts"), "texts"),
        (target("texts", "2"), "texts/2"),
        (target("texts/", "2///"), "texts/2"),
        (target("route"), "route"),
        (target("texts", "3"), NOBODY),
        (target("a stranger's word"), NOBODY),
        (None, NOBODY),
    ],
)
def test_a_name_is_that_of_an_endpoint_or_none(
    traffic: Watched, asked: RequestedEndpoint | None, name: str
) -> None:
    for _ in range(2):
        assert traffic.name_of(asked) == name


def test_nobody_is_known_before_the_host_is() -> None:
    assert Watched(None).name_of(target("texts")) == NOBODY


def test_what_is_shown_follows_the_configuration(processor: Processor) -> None:
    short_way = ShortWay(host_of(processor))
    assert short_way.name_of(target("texts")) == "texts"
    assert short_way.names() == {"texts", "texts/2", "route"}
    del processor.answers["texts"], processor._canary_route["route"]
    processor.changed()
    assert short_way.names() == {"texts/2"}
    assert ShortWay(host_of(None)).names() is None


def test_an_answer_counts_once_with_the_status_of_its_code(traffic: Watched) -> None:
    # 429 is what a dialect makes of 503.
    for named, sent in ((None, 200), ("overloaded", 429), ("ok", 200), (None, 418)):
        with traffic.visit(target("texts"), time.monotonic() - 1) as visit:
            assert traffic.in_flight == {"texts": 1}
            visit.answered(named, sent)
    assert not traffic.in_flight
    assert traffic.seen == [
        ("texts", "ok", 200), ("texts", "overloaded", 503), ("texts", "ok", 200),
        ("texts", "other", 418),
    ]  # fmt: skip
    assert all(1 <= seconds < 60 for seconds in traffic.seconds)


def test_whom_a_body_names_it_is_in_flight_for(traffic: Watched) -> None:
    with traffic.visit(None, 0.0) as visit:
        assert traffic.in_flight == {NOBODY: 1}
        visit.asks(target("texts"))
        assert traffic.in_flight == {"texts": 1}
        visit.asks(target("texts", "2"))
        visit.answered(None, 200)
    assert not traffic.in_flight
    assert traffic.seen == [("texts", "ok", 200)]


def test_what_was_not_found_is_nobodys(traffic: Watched, processor: Processor) -> None:
    assert traffic.name_of(target("texts")) == "texts"
    processor.answers = {}
    processor.changed()
    with traffic.visit(target("texts"), 0.0) as visit:
        visit.answered("unknown_endpoint", 404)
        assert visit.told_of == NOBODY
    assert traffic.seen == [(NOBODY, "unknown_endpoint", 404)]
    assert not traffic.in_flight


@pytest.mark.parametrize(
    ("error", "code"), [(asyncio.CancelledError(), "left"), (KeyError("a"), "internal")]
)
def test_without_an_answer_the_error_says_why(
    traffic: Watched, error: BaseException, code: str
) -> None:
    with pytest.raises(type(error)), traffic.visit(target("texts"), 0.0):
        raise error
    assert traffic.seen == [("texts", code, KINDS[code].status)]
    assert not traffic.in_flight


@pytest.mark.parametrize(
    ("named", "begun", "code"),
    [(None, False, "unavailable"), ("too_large", False, "too_large"), ("ok", True, "unavailable")],
)
def test_a_worker_that_leaves_is_why_an_answer_ends_but_for_a_refusal(
    traffic: Watched, named: str | None, begun: bool, code: str
) -> None:
    traffic.ends = True
    visit = traffic.visit(target("texts"), 0.0)
    visit.begun = begun
    if named is not None:
        visit.answered(named, 200)
    with pytest.raises(asyncio.CancelledError), visit:
        raise asyncio.CancelledError
    assert traffic.seen == [("texts", code, KINDS[code].status)]


async def test_an_app_of_others_is_watched_as_it_sends(traffic: Watched) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with traffic.visit(target("texts"), 0.0) as visit:
        forward = visit.watching(send)
        assert not visit.begun
        await forward({"type": "http.response.start", "status": 422})
        assert visit.begun
        await forward({"type": "http.response.body", "body": b""})
    assert len(sent) == 2
    assert traffic.seen == [("texts", "other", 422)]


def test_of_a_traced_request_its_trace_is_told_and_kept_until_its_endpoint_is_gone(
    traffic: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Any, ...]] = []
    trace = SimpleNamespace(trace_id="ab" * 16, ended=lambda *what: told.append(what))
    monkeypatch.setattr(traffic.durations, "took", lambda *what: told.append(what))
    for part, name in ((traffic.exemplars, "note"), (traffic.exemplars, "forget")):
        monkeypatch.setattr(part, name, lambda *what: told.append(what))
    with traffic.visit(target("texts"), time.monotonic() - 1) as visit:
        visit.trace = trace  # type: ignore[assignment]
        visit.answered("overloaded", 429)
    counted = ("texts", "overloaded", 503)
    ended, took, noted = told
    assert ended == counted
    assert took == noted == (*counted, took[3], trace.trace_id)
    assert took[3] >= 1
    traffic.forget(["texts"])
    assert told[3:] == [(["texts"],)]
