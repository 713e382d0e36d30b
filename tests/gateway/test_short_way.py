"""Which requests take the short way, and what becomes of what an endpoint raises."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from grpc import StatusCode
from hypothesis import given, strategies as st
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route

from tests.gateway.played_host import (
    EngineError,
    ModelError,
    NotFoundError,
    Ours,
    Processor,
    RpcError,
    SessionError,
    host_of,
)
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.worker import fault_lines
from transformer_serving.gateway.asgi import send_response
from transformer_serving.gateway.host import building
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint, target_of
from transformer_serving.gateway.routes import call_of
from transformer_serving.gateway.short_way import Kind, ShortWay

# The host's three routes, in its order.
ROUTES = [
    Route(path, lambda request: None, methods=["POST"])
    for path in ("/serve/{model}/{version}", "/serve/{model}/", "/serve/{model}")
]


@given(st.text(alphabet="/serv .a1\n", max_size=12), st.sampled_from(["", "/serve", "/serve/"]))
def test_paths_are_read_as_the_hosts_routes_read_them(rest: str, start: str) -> None:
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": f"{start}{rest}"}
    expected = None
    for route in ROUTES:
        match, found = route.matches(scope)
        if match is Match.FULL:
            parameters = found["path_params"]
            expected = RequestedEndpoint(parameters["model"], parameters.get("version"))
            break
    assert target_of("POST", scope["path"]) == expected


@pytest.mark.parametrize(
    ("path", "query", "root", "expected"),
    [
        ("/serve/a", b"version=3", "", RequestedEndpoint("a", "3")),
        ("/serve/a/", b"x=1&version=%31", "", RequestedEndpoint("a", "1")),
        ("/serve/a/2", b"version=3", "", RequestedEndpoint("a", "2")),
        ("/serve/a", b"version", "", RequestedEndpoint("a", "")),
        ("/root/serve/a", b"", "/root", RequestedEndpoint("a", None)),
    ],
)
def test_queries_and_root(path: str, query: bytes, root: str, expected: RequestedEndpoint) -> None:
    scope = {"method": "POST", "path": path, "query_string": query, "root_path": root}
    for more in (scope, {**scope, "path": path + "/" * 300}):
        call = call_of(more)
        wanted = expected if more is scope else None
        assert (None if call is None else call.target) == wanted
    assert call_of({**scope, "method": "PUT"}) is None


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The endpoints that were built; those named bad fail, those named ours are."""
    urls: list[str] = []

    def build(model_endpoint: Any, task: Any) -> Any:
        url = model_endpoint.url
        urls.append(url)
        if url.startswith("bad"):
            raise ValueError("its code does not load")
        return SimpleNamespace(_preprocess=Ours() if url.startswith("ours") else object())

    monkeypatch.setattr(building, "engine_class", lambda engine_type: build)
    return urls


async def test_nothing_is_kept_of_one_that_could_not_be_built_and_went(built: list[str]) -> None:
    processor = Processor(dict.fromkeys(["bad", "bad/2"]))
    way = ShortWay(host_of(processor))
    for url in processor.answers:
        for _ in range(2):
            await way.kind_of(RequestedEndpoint(url, None))
    # Each once, as long as it is there.
    assert built == ["bad", "bad/2"]
    del processor._endpoints["bad"]
    way.forget({"bad"})
    assert set(way._failed) == {"bad/2"}
    await way.kind_of(RequestedEndpoint("bad/2", None))
    assert built == ["bad", "bad/2"]


@pytest.mark.parametrize(
    ("target", "ours"),
    [
        (RequestedEndpoint("ours", None), True),
        (RequestedEndpoint("ours", "2"), True),
        (RequestedEndpoint("ours/2", None), True),
        (RequestedEndpoint("ours", "3"), False),
        (RequestedEndpoint("other", None), False),
        (RequestedEndpoint("unknown", None), False),
        (RequestedEndpoint("sklearn", None), False),
        (RequestedEndpoint("bad", None), False),
        (RequestedEndpoint("both", None), True),
        (RequestedEndpoint("canary", "of both"), True),
        (RequestedEndpoint("mixed", None), False),
        (RequestedEndpoint("half bad", None), False),
        (RequestedEndpoint("empty", None), False),
    ],
)
async def test_which_endpoints_are_ours(
    built: list[str], target: RequestedEndpoint, ours: bool
) -> None:
    processor = Processor(dict.fromkeys(["ours", "ours/2", "other", "bad", "sklearn"]))
    processor.engines["sklearn"] = "sklearn"
    processor.changed()
    for name, urls in {
        "both": ["ours", "ours/2"],
        "canary/of both": ["ours", "ours/2"],
        "mixed": ["ours", "other"],
        "half bad": ["ours", "bad"],
        "empty": [],
    }.items():
        processor._canary_route[name] = {"endpoints": urls}
    way = ShortWay(host_of(processor))
    for _ in range(3):
        assert (await way.kind_of(target) is Kind.OURS) is ours
    assert len(set(built)) == len(built), "nothing is built, or tried, twice"
    assert "sklearn" not in built
    assert processor._request_processing_state.value == 0
    # The host drops everything at a change of its configuration.
    processor._engine_processor_lookup = {}
    assert (await way.kind_of(target) is Kind.OURS) is ours


async def test_what_could_not_be_built_is_tried_again_after_a_change(built: list[str]) -> None:
    processor = Processor({"bad": None})
    way = ShortWay(host_of(processor))
    assert await way.kind_of(RequestedEndpoint("bad", None)) is not Kind.OURS
    processor.changed()
    assert await way.kind_of(RequestedEndpoint("bad", None)) is not Kind.OURS
    assert built == ["bad"] * 2


@pytest.mark.parametrize("preprocess", [None, object(), SimpleNamespace(serves_responses=True)])
async def test_only_a_class_that_says_true_counts(preprocess: object) -> None:
    processor = Processor({"a": None})
    processor.built("a", preprocess)
    assert await ShortWay(host_of(processor)).kind_of(RequestedEndpoint("a", None)) is not Kind.OURS
    assert await ShortWay(host_of(None)).kind_of(RequestedEndpoint("a", None)) is Kind.HOSTS


class PanicError(BaseException):
    """As what libraries written in Rust raise."""


SECRET = "the caller's words"
RPC = "[this] Exception [AioRpcError] status=StatusCode."
CUDA = "CUDA out of memory. Tried to allocate"


@pytest.mark.parametrize(
    ("raised", "status", "code", "reported"),
    [
        (NotFoundError(SECRET), 404, "unknown_endpoint", None),
        (ModelError(SECRET), 422, "refused", "ModelError (not logged)"),
        (EngineError(SECRET), 422, "refused", "EngineError (not logged)"),
        (SessionError(SECRET), 500, "internal", "SessionError (not logged)"),
        (ValueError(SECRET), 422, "refused", "ValueError (not logged)"),
        (UnicodeDecodeError("a", b"", 0, 1, SECRET), 422, "refused", "UnicodeDecodeError"),
        (RpcError(SECRET, StatusCode.UNAVAILABLE), 503, "unavailable", RPC + "UNAVAILABLE "),
        (RpcError(SECRET, StatusCode.NOT_FOUND), 503, "unavailable", RPC + "NOT_FOUND "),
        (RpcError(SECRET, StatusCode.DEADLINE_EXCEEDED), 504, "deadline", RPC + "DEADLINE"),
        (RpcError(SECRET, StatusCode.INTERNAL), 500, "internal", RPC + "INTERNAL "),
        (KeyError(SECRET), 500, "internal", "KeyError (not logged)"),
        (ValueError(CUDA), 500, "internal", "ValueError (not logged)"),
        (PanicError(SECRET), 500, "internal", "PanicError (not logged)"),
    ],
)
async def test_what_an_endpoint_raises(
    caplog: pytest.LogCaptureFixture,
    raised: BaseException,
    status: int,
    code: str,
    reported: str | None,
) -> None:
    host = host_of(Processor({"a": raised}))
    with caplog.at_level(logging.ERROR):
        answer = await ShortWay(host).answer(RequestedEndpoint("a", None), {"text": SECRET})
    body = orjson.loads(answer.body)
    assert (answer.status_code, body["code"]) == (status, code)
    assert list(body) == ["code", "message", "field", "limit", "got"]
    assert [text.startswith(reported or "") for text in host.reported] == [True] * bool(reported)
    if status == 500 and CUDA not in str(raised):
        reference = body["message"].split("reference ")[1][:12]
        assert reference in caplog.text
        assert type(raised).__name__ in caplog.text
    assert SECRET not in caplog.text + bytes(answer.body).decode() + "".join(host.reported)


def test_a_route_to_generated_text_is_told_by_its_own_name() -> None:
    """Its requests are timed under that name, and first tokens under those that it leads to."""
    processor = Processor(dict.fromkeys(["chat/1", "chat/2", "texts", "other"]))
    for url, task in (("chat/1", GENERATION), ("chat/2", GENERATION), ("texts", "rerank")):
        endpoint = SimpleNamespace(task=task)
        processor.built(url, SimpleNamespace(endpoint=endpoint))
    processor.built("other", object())
    for name, urls in (("chat", ["chat/1", "chat/2"]), ("split", ["texts", "other"]), ("no", [])):
        processor._canary_route[name] = {"endpoints": urls}
    assert ShortWay(host_of(processor)).generating() == {"chat", "chat/1", "chat/2"}
    assert not ShortWay(host_of(None)).generating()


async def test_a_fault_of_every_request_is_told_once_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the log and to ClearML; each caller's reference is that of a line."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fault_lines, "time", SimpleNamespace(monotonic=lambda: clock.now))
    host = host_of(Processor({"a": KeyError(SECRET)}))
    way, seen = ShortWay(host), []
    with caplog.at_level(logging.ERROR):
        for now in (1000.0, 1000.2, 1000.9, 1001.0):
            clock.now = now
            answer = await way.answer(RequestedEndpoint("a", None), {})
            seen.append(orjson.loads(answer.body)["message"].split("reference ")[1][:12])
    lines = [(line.reference, line.count) for line in caplog.records]  # type: ignore[attr-defined]
    assert lines == [(seen[0], 1), (seen[3], 3)]
    assert seen[:3] == [seen[0]] * 3
    assert len(host.reported) == 2


async def test_out_of_gpu_memory_restarts_the_worker_after_the_answer() -> None:
    host = host_of(Processor({"a": ValueError(CUDA)}))
    answer = await ShortWay(host).answer(RequestedEndpoint("a", None), {})
    assert not host.exits
    assert [message["type"] for message in await sent(answer)][-1] == "http.response.body"
    assert host.exits


async def test_engine_errors_are_reported_as_the_operator_set_it() -> None:
    host = host_of(Processor({"a": RpcError(SECRET, StatusCode.UNAVAILABLE)}))
    host.grpc_aio_ignore_errors = {StatusCode.UNAVAILABLE}
    assert (await ShortWay(host).answer(RequestedEndpoint("a", None), {})).status_code == 503
    assert not host.reported
    host.grpc_aio_verbose_errors = {StatusCode.UNAVAILABLE}
    await ShortWay(host).answer(RequestedEndpoint("a", None), {})
    assert "(not logged)" in host.reported[0]


async def sent(response: Response) -> list[Any]:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    await send_response(response, scope, receive, send, lambda: [(b"x-request-id", b"id")])
    return messages


async def test_any_response_is_sent_with_the_request_id() -> None:
    streamed = StreamingResponse(iter([b"a", b"b"]))
    for response in (Response(b"ab", 201), streamed):
        messages = await sent(response)
        assert (b"x-request-id", b"id") in messages[0]["headers"]
        assert b"".join(message.get("body", b"") for message in messages) == b"ab"
    own = await sent(Response(b"ab", 201, {"x-request-id": "own"}))
    ids = [value for name, value in own[0]["headers"] if name == b"x-request-id"]
    assert ids == [b"own"]


async def test_a_plain_value_is_answered_as_json() -> None:
    answer = await ShortWay(host_of(Processor({"a": {"x": 1}}))).answer(
        RequestedEndpoint("a", None), {}
    )
    assert (answer.status_code, answer.body) == (200, b'{"x":1}')
