"""Refusals that are given before the event loop: to whom, as what, and how they are counted."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from preprocess.glance import Glance, Reach
from preprocess.response import Answer
from tests.engine.triton_server import stopped, wait_until
from tests.gateway.conftest import Server
from tests.gateway.kept_connections import KeptConnections
from tests.gateway.test_leaving import SLOW, busy, figure
from tests.gateway.text_serving import TextServing
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.contract.worker.deferred import WITHIN_S
from transformer_serving.contract.worker.durations import Durations
from transformer_serving.gateway.asgi import Message, Receive, Scope, Send, send_json
from transformer_serving.gateway.crowd import Crowd
from transformer_serving.gateway.keys import Keys
from transformer_serving.gateway.routes import Call, call_of
from transformer_serving.gateway.server.handover import Arrival, Entrance, Handover, WorkerLoop
from transformer_serving.gateway.server.http import HttpServer
from transformer_serving.gateway.server.listener import listen
from transformer_serving.gateway.settings import read_settings

SETTINGS = read_settings({})
RAW = b'{"text": "a cup"}'
LONG = 60.0


class Told:
    """What was counted."""

    def __init__(self) -> None:
        self.again = 0
        self.took: list[tuple[str, str, int]] = []
        self.keys: Counter[str] = Counter()
        self.durations = Durations(None)
        self.durations.took = self._took  # type: ignore[method-assign]

    def _took(
        self, endpoint: str, code: str, status: int, seconds: float, trace_id: str | None = None
    ) -> None:
        assert 0 <= seconds < LONG
        self.took.append((endpoint, code, status))

    def asked(self, key: str) -> None:
        self.keys[key] += 1

    def tell(self, times: int) -> None:
        self.again += times


@pytest.fixture
def told() -> Told:
    return Told()


def crowd_of(told: Told, settings: Any = SETTINGS, keys: Keys | None = None) -> Crowd:
    return Crowd(settings, keys, told.durations, told.asked)


def scope(path: str = "/serve/texts", **headers: str) -> Scope:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"method": "POST", "path": path, "headers": named}


def call(path: str = "/serve/texts") -> Call:
    found = call_of(scope(path))
    assert found is not None
    return found


def refusal(
    told: Told, seconds: float = LONG, timeout_s: float | None = None, longest_s: float = 0.0
) -> Answer:
    headers = {"server-timing": "tokenize;dur=0.5", "retry-after": "3"}
    answer = Answer(b'{"code":"overloaded"}', 503, headers, code="overloaded")
    answer.reach = Reach(Glance(timeout_s), False, seconds, told.tell, longest_s)
    return answer


def start_of(messages: Iterable[Message] | None) -> tuple[int, dict[bytes, bytes]]:
    assert messages is not None
    start, body = messages
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert body["body"] == b'{"code":"overloaded"}'
    names = [name for name, _ in start["headers"]]
    assert len(names) == len(set(names))
    return start["status"], dict(start["headers"])


def test_others_get_the_same_refusal_under_their_own_id(told: Told) -> None:
    crowd = crowd_of(told)
    assert crowd.refusal(scope(), RAW) is None
    crowd.gave(call(), refusal(told), "texts")
    status, headers = start_of(crowd.refusal(scope(x_request_id="mine"), RAW))
    assert status == 503
    assert headers[b"x-request-id"] == b"mine"
    assert headers[b"retry-after"] == b"3"
    assert headers[b"content-length"] == b"21"
    assert headers[b"server-timing"].startswith(b"total;dur=")
    ids = {start_of(crowd.refusal(scope(), RAW))[1][b"x-request-id"] for _ in range(10)}
    assert len(ids) == 10
    crowd.tell()
    assert told.took == [("texts", "overloaded", 503)] * 11
    assert told.again == 11
    crowd.tell()
    assert told.again == 11


async def test_what_is_given_after_the_last_was_told_is_told_soon(told: Told) -> None:
    """It waited for a page, or for the next request that was let in."""
    crowd = crowd_of(told)
    crowd.gave(call(), refusal(told), "texts")
    for times in (1, 2):
        await asyncio.sleep(1.5 * WITHIN_S)
        start_of(crowd.refusal(scope(), RAW))
        async with asyncio.timeout(10):
            while told.again < times:
                await asyncio.sleep(0.01)


def test_one_that_is_given_while_the_loop_lets_go_of_it_counts(told: Told) -> None:
    """Between a thread's look at what was given and its answer, the loop may do anything."""

    meanwhile: list[Callable[[], None]] = []

    class Watched(Reach):
        def holds_for(self, raw: bytes) -> bool:
            if meanwhile:
                meanwhile.pop()()
            return super().holds_for(raw)

    def another() -> None:
        crowd.gave(call(), refusal(told), "texts")

    def let_in() -> None:
        crowd.let_in(call(), RAW)

    for times, loop in enumerate((another, let_in), 1):
        crowd = crowd_of(told)
        first = refusal(told)
        first.reach = Watched(Glance(None), False, LONG, told.tell)
        crowd.gave(call(), first, "texts")
        meanwhile.append(loop)
        assert start_of(crowd.refusal(scope(), RAW))[0] == 503
        crowd.tell()
        assert told.again == len(told.took) == times


def test_a_dialects_status_counts_as_the_codes(told: Told) -> None:
    crowd = crowd_of(told)
    other = refusal(told)
    other.status_code = 429
    crowd.gave(call("/tei/texts/embed"), other, "texts")
    assert start_of(crowd.refusal(scope("/tei/texts/embed"), RAW))[0] == 429
    assert crowd.refusal(scope(), RAW) is None
    crowd.tell()
    assert told.took == [("texts", "overloaded", 503)]


@pytest.mark.parametrize(
    ("asked", "raw"),
    [
        (scope("/serve/others"), RAW),
        (scope("/serve/texts/2"), RAW),
        (scope("/health/live"), RAW),
        (scope(content_encoding="gzip"), RAW),
        (scope(traceparent="00-1-2-01"), RAW),
        (scope(inference_header_content_length="3"), RAW),
        (scope(), b'{"text": "a cup", "timeout_ms": 9000}'),
        (scope(), b'{"text": "a cup", "timeout_ms": "9"}'),
        (scope(), b"a" * (SETTINGS.max_body_bytes + 1)),
    ],
)
def test_whoever_may_need_another_answer_goes_the_whole_way(
    told: Told, asked: Scope, raw: bytes
) -> None:
    crowd = crowd_of(told)
    crowd.gave(call(), refusal(told), "texts")
    assert crowd.refusal(asked, raw) is None
    crowd.tell()
    assert not told.took


@pytest.mark.parametrize(
    ("refused", "others", "holds"),
    [
        (None, None, True), (None, 100, False), (2.0, None, False), (2.0, 2000, True),
        (2.0, 2001, False), (2.0, 1, True),
    ],
)  # fmt: skip
def test_a_refusal_holds_for_those_who_have_no_more_time(
    told: Told, refused: float | None, others: int | None, *, holds: bool
) -> None:
    crowd = crowd_of(told)
    crowd.gave(call(), refusal(told, timeout_s=refused), "texts")
    body: dict[str, Any] = {"text": "a"} if others is None else {"text": "a", "timeout_ms": others}
    assert (crowd.refusal(scope(), orjson.dumps(body)) is not None) == holds


def test_it_holds_for_a_moment(told: Told) -> None:
    crowd = crowd_of(told)
    crowd.gave(call(), refusal(told, seconds=0.0), "texts")
    time.sleep(0.001)
    assert crowd.refusal(scope(), RAW) is None
    crowd.gave(call(), refusal(told), "texts")
    start_of(crowd.refusal(scope(), RAW))
    # The next one counts what the last one gave.
    crowd.gave(call(), refusal(told, seconds=0.0), "texts")
    assert told.again == 1


def test_after_it_one_at_a_time_asks_for_all(told: Told) -> None:
    crowd = crowd_of(told)
    asks = 0.05
    crowd.gave(call(), refusal(told, seconds=asks, longest_s=LONG), "texts")
    for _ in range(3):
        time.sleep(asks + 0.001)
        began = time.monotonic()
        let_in = [crowd.refusal(scope(), RAW) is None for _ in range(5)]
        assert let_in[0]
        # Of those who come while it is asked for them, none.
        assert time.monotonic() - began > asks or not any(let_in[1:])


def test_who_asks_and_is_not_refused_lets_all_in(told: Told) -> None:
    crowd = crowd_of(told)
    crowd.gave(call(), refusal(told, timeout_s=2.0, longest_s=LONG), "texts")
    hurried = b'{"text": "a cup", "timeout_ms": 1000}'
    # Neither of those that the refusal does not hold for says anything of it.
    crowd.let_in(call("/serve/others"), hurried)
    crowd.let_in(call(), RAW)
    start_of(crowd.refusal(scope(), hurried))
    crowd.let_in(call(), hurried)
    assert crowd.refusal(scope(), hurried) is None
    assert told.again == 1


def test_nobody_is_refused_for_long_because_of_one_that_does_not_come_back(told: Told) -> None:
    crowd = crowd_of(told)
    crowd.gave(call(), refusal(told, seconds=0.01, longest_s=0.05), "texts")
    time.sleep(0.051)
    assert all(crowd.refusal(scope(), RAW) is None for _ in range(5))


def test_none_is_given_again_where_that_is_not_said(told: Told) -> None:
    silent = refusal(told)
    silent.reach = None
    crowd = crowd_of(told)
    crowd.gave(call(), silent, "texts")
    assert crowd.refusal(scope(), RAW) is None
    # A line is written for each.
    logged = crowd_of(told, replace(SETTINGS, log_requests=True))
    logged.gave(call(), refusal(told), "texts")
    assert logged.refusal(scope(), RAW) is None


def test_code_of_an_endpoint_that_raises_refuses_nobody(told: Told) -> None:
    crowd = crowd_of(told)
    broken = refusal(told)
    broken.reach = None
    broken.reach = type("Broken", (), {"seconds": LONG, "longest_s": 0.0, "tell": told.tell})()
    crowd.gave(call(), broken, "texts")
    assert crowd.refusal(scope(), RAW) is None


def test_keys_are_asked_for_first(told: Told, tmp_path: Path) -> None:
    every, other, unknown = (new_key() for _ in range(3))
    path = tmp_path / "keys.json"
    rows = Key("every", digest_of(every), now()), Key("other", digest_of(other), now(), ("others",))
    path.write_text(keys_text(rows))
    crowd = crowd_of(told, keys=Keys(path))
    crowd.gave(call(), refusal(told), "texts")
    assert crowd.refusal(scope(), RAW) is None
    for key in (other, unknown):
        assert crowd.refusal(scope(x_api_key=key), RAW) is None
    start_of(crowd.refusal(scope(x_api_key=every), RAW))
    assert told.keys == {"every": 1}
    crowd.gave(call(), refusal(told, seconds=0.01, longest_s=LONG), "texts")
    time.sleep(0.011)
    # One that is to ask again counts where it does.
    assert crowd.refusal(scope(x_api_key=every), RAW) is None
    assert told.keys == {"every": 1}


class Served:
    """A plain app under Granian in a worker's loop, on a thread of its own."""

    def __init__(self) -> None:
        self.entered = 0
        self.turned_away: Counter[int] = Counter()
        self.listener = listen("127.0.0.1", 0, 100)
        self.port: int = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._run)
        self._up = threading.Event()
        self.stop: Callable[[], object] = lambda: None

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered += 1
        if b"x-unread" in dict(scope["headers"]):
            await send_json(send, 200, {})
            return
        message = await receive()
        raw = message["body"]
        while message.get("more_body") and len(raw) < int(
            dict(scope["headers"])[b"content-length"]
        ):
            message = await receive()
            raw += message["body"]
        await send_json(send, 200, {"in": len(raw)})

    def turns_away(self, scope: Scope, raw: bytes) -> Iterable[Message] | None:
        if b"fault" in raw:
            raise RuntimeError("of the app")
        if b"away" not in raw:
            return None
        self.turned_away[threading.get_ident()] += 1
        headers = [(b"content-length", b"2")]
        return (
            {"type": "http.response.start", "status": 503, "headers": headers},
            {"type": "http.response.body", "body": b"[]"},
        )

    def _run(self) -> None:
        WorkerLoop().run_until_complete(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = HttpServer(
            self.app, self.listener, backlog=100, connections=100, turns_away=self.turns_away
        )
        server.start()
        self.stop = partial(loop.call_soon_threadsafe, server.stop)
        self._up.set()
        await server.ended.wait()

    def __enter__(self) -> Served:
        self.thread.start()
        self._up.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as made:
        yield made


async def test_it_is_given_in_another_thread_than_the_loops(served: Served) -> None:
    """Mixed with requests that enter, on kept connections: each gets its own answer."""
    kept = KeptConnections(served.port)

    async def ask(number: int) -> None:
        body = {"text": "a" * (number % 50), "kind": "away" if number % 3 else "in"}
        status, answer = await kept.post("texts", body)
        assert status == (503 if number % 3 else 200)
        assert answer == ([] if number % 3 else {"in": len(orjson.dumps(body))})

    for first in range(0, 3000, 30):
        await asyncio.gather(*(ask(number) for number in range(first, first + 30)))
    await kept.close()
    [(thread, times)] = served.turned_away.items()
    assert thread != served.thread.ident
    assert (times, served.entered) == (2000, 1000)


async def test_whatever_cannot_be_turned_away_enters(served: Served) -> None:
    kept = KeptConnections(served.port)
    # Its check fails; it is too long to wait for; both are answered by the app.
    for text in ("fault", "away" + "a" * 20_000):
        status, answer = await kept.post("texts", text)
        assert (status, answer) == (200, {"in": len(text) + 2})
    await kept.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"POST /serve/texts HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\naw")
    await writer.drain()
    # Longer than a body is waited for outside the loop.
    await asyncio.to_thread(wait_until, lambda: served.entered == 3, 60)
    writer.write(b"ay..")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(8) == b'{"in":6}'
    writer.close()
    await writer.wait_closed()
    assert served.entered == 3
    assert not served.turned_away


async def test_nothing_is_left_of_a_request(served: Served) -> None:
    """Turned away, answered, or answered by an app that does not ask for its body.

    What holds itself through Granian is seen by no garbage collector.
    """
    kept = KeptConnections(served.port)
    for kind, wanted in (("away", 503), ("in", 200)) * 50:
        status, _ = await kept.post("texts", {"kind": kind})
        assert status == wanted
    await kept.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    for _ in range(50):
        head = b"POST /serve/texts HTTP/1.1\r\nhost: a\r\nx-unread: 1\r\ncontent-length: 6\r\n\r\n"
        writer.write(head + b"unread")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(2)
    writer.close()
    await writer.wait_closed()
    assert served.entered == 100
    wait_until(lambda: not arrivals(), 20)


class Watched:
    """Granian's part of a request whose body has come."""

    def __init__(self) -> None:
        self.scope: Scope = {"headers": []}
        self.proto = self
        self.sent: list[Message] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.taskref = self.tasks.append
        self.ended = 0

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def done(self) -> None:
        self.ended += 1


async def answered(watcher: Any, receive: Receive) -> None:
    """What a request's task does; these tests never come to it."""


def arrival_of(watched: Watched) -> Arrival:
    first = asyncio.get_running_loop().create_future()
    first.set_result({"body": b"away"})
    return Arrival(watched, first, len(b"away"))


async def test_what_the_loop_has_taken_is_not_turned_away() -> None:
    """Who turns it away counts it: the app would, and once more where the request has entered."""
    asked: list[bytes] = []

    def turns_away(scope: Scope, raw: bytes) -> Iterable[Message]:
        asked.append(raw)
        return [{"type": "http.response.body"}]

    handover, watched = Handover(answered, turns_away), Watched()
    arrival = arrival_of(watched)
    entrance = Entrance(handover, arrival)
    # Its body is late, and comes before its task has begun.
    handover.enter(arrival)
    assert not entrance.is_closed()
    entrance()
    assert (asked, watched.sent, len(watched.tasks)) == ([], [], 1)


@pytest.mark.parametrize("outcome", ["away", "in", "fault"])
async def test_what_the_app_is_asked_about_does_not_enter_meanwhile(outcome: str) -> None:
    """It does afterwards, once, where it was not turned away."""
    watched = Watched()
    arrival = arrival_of(watched)

    def turns_away(scope: Scope, raw: bytes) -> Iterable[Message] | None:
        # As the loop does in its own thread.
        handover.enter(arrival)
        assert not watched.tasks
        if outcome == "fault":
            raise RuntimeError("of the app")
        return [{"type": "http.response.body"}] if outcome == "away" else None

    handover = Handover(answered, turns_away)
    entrance = Entrance(handover, arrival)
    closed = entrance.is_closed()
    entrance()
    assert closed == (outcome == "away")
    assert len(watched.sent) == watched.ended == int(closed)
    assert len(watched.tasks) == int(not closed)


def arrivals() -> int:
    """Those that are held."""
    # Others' tests run long collections, after which what is alive is not listed.
    gc.unfreeze()
    return sum(type(one) is Arrival for one in gc.get_objects())


@pytest.fixture(scope="module")
def server(text_serving: TextServing) -> Iterator[Server]:
    started = text_serving.gateway(TRANSFORMER_SERVING_CALLS_IN_FLIGHT="1").start()
    try:
        yield started.wait_for("/health/ready")
    finally:
        started.stop()


@pytest.mark.slow
async def test_figures_have_each_refusal_however_it_was_given(
    server: Server, text_serving: TextServing
) -> None:
    """An engine that stands still; callers without the time to wait for it."""
    assert server.post("texts", {"text": "tea"}).status == 200
    durations, requests = "request_duration_seconds_count", "requests_total"
    labels = {"endpoint": "texts", "status": "503"}
    before = {name: figure(server, name, **labels) for name in (durations, requests)}
    kept = KeptConnections(server.port)
    given = Counter[str]()

    async def ask() -> None:
        body = {"text": "tea", "timeout_ms": 100}
        by = Counter[str]()
        status, answer = await kept.post("texts", body, given_by=by)
        # Who comes before the wait is seen to be long is let in, and waits in vain.
        assert (status, answer["code"]) in ((503, "overloaded"), (504, "deadline"))
        if status == 503:
            given.update(by)

    with busy(server, SLOW), stopped(text_serving.triton):
        end = time.monotonic() + 60
        while not given["total"] or given.total() < 2000:
            await asyncio.gather(*(ask() for _ in range(16)))
            assert time.monotonic() < end, given
    await kept.close()
    for name in (durations, requests):
        assert figure(server, name, **labels) == before[name] + given.total()
    # After the crowd everybody is let in again.
    assert server.post("texts", {"text": "tea", "timeout_ms": 60_000}).status == 200
