"""The gateway's own rules, message by message, on a host that the test plays."""

from __future__ import annotations

import asyncio
import gc
import gzip
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from tests.gateway.played_host import Ours, Processor, host_of
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.settings.setting import TextSetting
from transformer_serving.contract.worker.request_context import current_operation
from transformer_serving.gateway import shutdown
from transformer_serving.gateway.body import incoming as body_module
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.settings import (
    GENERATE_ENDPOINT,
    ROOT_ENDPOINT,
    read_settings,
)

JSON = (b"content-type", b"application/json")


class Door:
    """A gateway around a played host, and what it sent."""

    def __init__(self, *, drain: float = 0, **named: Any) -> None:
        """`named` are more of the settings."""
        self.processor = Processor({"ours": Response(b"{}"), "other": None})
        self.processor.engines["other"] = "sklearn"
        self.processor.changed()
        self.processor.built("ours", Ours())
        self.host = host_of(self.processor)
        settings = replace(
            read_settings({}), max_body_bytes=100, max_body_elements=100, body_memory_bytes=1000,
            body_seconds=0.05, body_stall_seconds=60, drain_seconds=drain, **named,
        )  # fmt: skip
        self.app = FrontDoor(self.host, settings)
        self.sent: list[Any] = []

    async def post(
        self,
        path: str,
        *chunks: bytes | None,
        headers: tuple[tuple[bytes, bytes], ...] = (JSON,),
        method: str = "POST",
        scope: Mapping[str, Any] = MappingProxyType({}),
    ) -> int | None:
        """The status. A chunk None is a caller that leaves; after the last one nothing comes."""
        left = list(chunks)

        async def receive() -> Any:
            if not left:
                await asyncio.Event().wait()
            chunk = left.pop(0)
            if chunk is None:
                return {"type": "http.disconnect"}
            more = chunk != b""
            return {"type": "http.request", "body": chunk, "more_body": more}

        async def send(message: Any) -> None:
            self.sent.append(message)

        asked = {"type": "http", "method": method, "path": path, "headers": list(headers)}
        await self.app({**asked, **scope}, receive, send)
        self.left = left
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> Any:
        return orjson.loads(b"".join(message["body"] for message in self.sent[1:]))


@pytest.fixture(autouse=True)
def linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "_LINGER_SECONDS", 0.05)


async def test_the_short_way_gets_the_parsed_body() -> None:
    door = Door()
    assert await door.post("/serve/ours", b'{"a"', b": 1}", b"") == 200
    assert door.processor.asked == [("ours", None, {"a": 1})]
    assert not door.host.app.calls


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("root_endpoint", "/"),
        ("generate_endpoint", "/generate"),
        ("generate_endpoint", "/generate/"),
    ],
)
@pytest.mark.parametrize("page", [True, False])
async def test_a_path_of_a_setting_is_its_endpoints(named: str, path: str, page: bool) -> None:
    """With a raw text, as the queue's recipe is asked by curl, or with JSON."""
    form = (b"content-type", b"application/x-www-form-urlencoded")
    settings: dict[str, Any] = {"page": page, named: "ours/"}
    for headers, sent, body in (
        ((JSON,), b'{"text": "a"}', {"text": "a"}),
        ((form,), b"test [MASK]", b"test [MASK]"),
        ((), b"test [MASK]", b"test [MASK]"),
    ):
        door = Door(**settings)
        assert await door.post(path, sent, b"", headers=headers) == 200
        assert door.processor.asked == [("ours", None, body)]
        assert not door.host.app.calls


@pytest.mark.parametrize("path", ["/", "/generate", "/generate/"])
async def test_at_a_path_of_a_setting_the_host_is_asked_at_the_endpoints_own(path: str) -> None:
    """It has none of them, and a query would name another version."""
    door = Door(root_endpoint="other", generate_endpoint="other")
    assert await door.post(path, b"{}", b"", scope={"query_string": b"version=2"}) == 200
    ((scope, body),) = door.host.app.calls
    assert (scope["path"], scope["raw_path"], scope["query_string"], body) == (
        "/serve/other", b"/serve/other", b"", b"{}",
    )  # fmt: skip
    door.host.app.calls.clear()
    under = {"root_path": "/models"}
    assert await door.post(f"/models{path}", b"{}", b"", scope=under) == 200
    assert door.host.app.calls[0][0]["path"] == "/models/serve/other"


async def test_a_path_of_a_setting_is_nobodys_without_it() -> None:
    for door in (Door(), Door(page=False)):
        for path in ("/", "/generate", "/generate/"):
            door.host.app.calls.clear()
            await door.post(path, b"{}", b"")
            assert len(door.host.app.calls) == 1
            assert not door.processor.asked
    door = Door(root_endpoint="ours")
    for path in ("/generate", "//", ""):
        await door.post(path, b"{}", b"")
        assert not door.processor.asked


@pytest.mark.parametrize(
    ("path", "opened_by"),
    [("/", ROOT_ENDPOINT), ("/generate", GENERATE_ENDPOINT), ("/generate/", GENERATE_ENDPOINT)],
    ids=lambda one: getattr(one, "name", one),
)
async def test_a_path_of_a_setting_that_is_nobodys_names_the_setting(
    path: str, opened_by: TextSetting
) -> None:
    door = Door()

    async def has_nothing_there(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404})

    door.host.app = has_nothing_there
    assert await door.post(path, b"{}", b"") == 404
    assert opened_by.name in door.body["message"]
    door.sent.clear()
    assert await door.post("/generated", b"{}", b"") == 404
    assert "TRANSFORMER_SERVING" not in str(door.sent)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_root_stays_the_pages_for_a_browser(method: str) -> None:
    door = Door(root_endpoint="ours")
    assert await door.post("/", b"", headers=(), method=method) == 200
    assert door.headers[b"content-type"].startswith(b"text/html")
    assert not door.processor.asked
    door = Door(root_endpoint="ours", page=False)
    await door.post("/", b"", headers=(), method=method)
    assert len(door.host.app.calls) == 1


async def test_an_unknown_name_is_answered_here_and_counted() -> None:
    door = Door()
    refused = door.app._metrics._refused.labels("", "unknown_endpoint")
    before = refused._value.get()
    assert await door.post("/serve/secret", b"{}", b"") == 404
    assert list(door.body) == ["code", "message", "field", "limit", "got"]
    assert b"secret" not in door.sent[1]["body"]
    assert not door.host.app.calls
    assert refused._value.get() == before + 1


async def test_an_endpoint_that_comes_while_a_request_waits_gets_its_parsed_body() -> None:
    """The first answer of a new endpoint was that of the JSON read as one text."""
    door = Door()
    processor = door.processor
    processor._update_lock_flag = True
    asking = asyncio.create_task(door.post("/serve/new", b'{"a": 1}', b""))
    await asyncio.sleep(0.05)
    processor.answers["new"] = Response(b"{}")
    processor.changed()
    processor.built("new", Ours())
    processor._update_lock_flag = False
    assert await asking == 200
    assert processor.asked == [("new", None, {"a": 1})]


async def test_the_host_is_never_asked_for_what_was_unknown() -> None:
    door = Door()
    door.processor.answers["new"] = Response(b"{}")  # it would have it now
    assert await door.post("/serve/new", b'{"a": 1}', b"") == 404
    assert not door.processor.asked


async def test_the_host_gets_the_whole_plain_body_once() -> None:
    door = Door()
    packed = gzip.compress(b'{"a": 1}')
    coded = (JSON, (b"content-encoding", b"gzip"), (b"content-length", b"%d" % len(packed)))
    assert await door.post("/serve/other", packed[:5], packed[5:], b"", headers=coded) == 200
    scope, body = door.host.app.calls[0]
    assert body == b'{"a": 1}'
    assert dict(scope["headers"]) == {JSON[0]: JSON[1], b"content-length": b"8"}
    assert len(door.headers[b"x-request-id"]) == 32


async def test_a_late_body_is_answered_and_the_connection_closed() -> None:
    door = Door()
    assert await door.post("/serve/ours", b"{") == 400
    assert door.headers[b"connection"] == b"close"
    assert door.body["message"] == (
        "the body did not come in time; TRANSFORMER_SERVING_BODY_SECONDS sets how long is waited"
    )
    assert [message.get("more_body", False) for message in door.sent[1:]] == [True, False]


async def test_what_comes_after_a_refusal_is_dropped_before_the_close() -> None:
    door = Door()
    assert await door.post("/serve/ours", b"a" * 60, b"a" * 60, b"a" * 60, b"") == 413
    assert door.left == []
    assert door.headers[b"connection"] == b"close"


async def test_a_refusal_after_the_whole_body_keeps_the_connection() -> None:
    door = Door()
    assert await door.post("/serve/ours", b"[]", b"") == 400
    assert b"connection" not in door.headers
    assert len(door.sent) == 2


@pytest.mark.parametrize("path", ["/serve/ours", "/serve/other"])
async def test_a_body_that_breaks_off_reaches_nobody(path: str) -> None:
    """The server says nothing else of chunks that are none."""
    door = Door()
    assert await door.post(path, b"{", None) == 400
    assert not door.processor.asked
    assert not door.host.app.calls


@pytest.fixture
def term_handler() -> Iterator[list[int]]:
    """What reached the handler that a server would have set."""
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    yield caught
    signal.signal(signal.SIGTERM, before)


async def started(door: Door) -> None:
    """The server's start-up, passed through a host that completes it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.complete"})

    door.host.app = app
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await door.app({"type": "lifespan"}, receive, send)
    assert sent == [{"type": "lifespan.startup.complete"}]


async def test_what_is_refused_in_the_last_second_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A line counts those of a second, and to a worker that ends there comes none."""
    door = Door()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.shutdown"
        await send({"type": "lifespan.shutdown.complete"})

    async def receive() -> Any:
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        assert message == {"type": "lifespan.shutdown.complete"}

    door.host.app = app
    for _ in range(5):
        door.app.count_refusal(ServingError("unavailable", "it is away"))
    await door.app({"type": "lifespan"}, receive, send)
    counts = [row.count for row in caplog.records if row.getMessage() == "it is away"]  # type: ignore[attr-defined]
    assert counts == [1, 4]


async def not_ready_because(door: Door) -> str | None:
    while (reason := door.app._health.not_ready()) == "first golden requests under way":
        await asyncio.sleep(0.01)
    return reason


async def test_sigterm_reaches_the_server_after_the_drain(term_handler: list[int]) -> None:
    door = Door(drain=0.2)
    await started(door)
    assert await not_ready_because(door) is None
    signal.raise_signal(signal.SIGTERM)
    assert await not_ready_because(door) == "shutting down"
    assert term_handler == []
    await asyncio.sleep(0.3)
    assert term_handler == [signal.SIGTERM]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_plain_health_says_what_readiness_does(method: str, term_handler: list[int]) -> None:
    """Where compose files of servers of one model ask, by `curl -f`."""
    door = Door(drain=60)

    async def told(path: str) -> tuple[int | None, list[Any]]:
        door.sent.clear()
        status = await door.post(path, b"", method=method)
        return status, [message.get("body") for message in door.sent]

    assert (await told("/health"))[0] == 503
    await started(door)
    assert await not_ready_because(door) is None
    assert await told("/health") == await told("/health/ready")
    assert (await told("/health"))[0] == 200
    signal.raise_signal(signal.SIGTERM)
    assert await told("/health") == await told("/health/ready")
    assert (await told("/health"))[0] == 503


async def test_a_sigterm_that_comes_by_two_ways_is_one(term_handler: list[int]) -> None:
    door = Door(drain=60)
    await started(door)
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    assert term_handler == []
    assert await not_ready_because(door) == "shutting down"


@pytest.mark.parametrize(("drain", "signals"), [(0, 1), (60, 2)])
async def test_sigterm_at_once(
    term_handler: list[int], drain: float, signals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a drain; and by a second SIGTERM, that is none of the same moment."""
    monkeypatch.setattr(shutdown, "_SAME_SIGNAL_S", 0.0)
    door = Door(drain=drain)
    await started(door)
    for _ in range(signals):
        signal.raise_signal(signal.SIGTERM)
    assert term_handler == [signal.SIGTERM]
    assert await not_ready_because(door) == "shutting down"


@pytest.mark.parametrize(
    ("known", "status", "asked"),
    [
        ({"openai.tgi_chat", "openai.chat"}, 200, ["openai.tgi_chat"]),
        ({"openai.chat"}, 200, ["openai.chat"]),
        ({"openai.tgi_completions", "openai.completions"}, 200, ["openai.tgi_completions"]),
        ({"openai.completions"}, 200, ["openai.completions"]),
        ({"openai.embeddings"}, 422, []),
    ],
)
@pytest.mark.parametrize("base", ["/tgi/ours", "/hf/ours"])
async def test_a_bundle_is_asked_what_its_code_knows(
    base: str, known: set[str], status: int, asked: list[str]
) -> None:
    class Speaks(Ours):
        operations = frozenset(known)

    door, heard = Door(), []

    async def answer(url: str) -> Response:
        operation = current_operation.get()
        assert operation is not None
        heard.append(operation[0])
        return Response(b"{}")

    door.processor._answer = answer  # type: ignore[method-assign]
    door.processor.built("ours", Speaks())
    path = "completions" if "openai.completions" in known else "chat/completions"
    assert await door.post(f"{base}/v1/{path}", b"{}", b"") == status
    assert heard == asked


async def test_garbage_that_is_due_is_looked_for_when_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds the loop up: where a request runs, the next round may."""
    looked: list[int] = []
    monkeypatch.setattr(gc, "callbacks", [SimpleNamespace(everything_at=0.0)])
    monkeypatch.setattr(gc, "collect", lambda: looked.append(1))
    door = Door().app
    door._running.add(None)
    await door._rounds._tell({})
    assert not looked
    door._running.clear()
    await door._rounds._tell({})
    assert looked
