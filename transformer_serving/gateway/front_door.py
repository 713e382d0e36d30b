"""Every request's way through the gateway: health, the short way, or the host's app."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from starlette.responses import Response

from transformer_serving.contract.body_memory import Share
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.log_lines import write_json_lines
from transformer_serving.contract.worker.request_context import (
    current_caller,
    current_key,
    current_request,
)
from transformer_serving.gateway.asgi import (
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    adding,
    send_json,
)
from transformer_serving.gateway.body import ClientGoneError, Incoming, header_values
from transformer_serving.gateway.body_memory import body_memory
from transformer_serving.gateway.callers import Caller, Callers
from transformer_serving.gateway.golden_rounds import GoldenRounds
from transformer_serving.gateway.health import PREFIX, Health
from transformer_serving.gateway.host_errors import unknown_response
from transformer_serving.gateway.json_body import Parser, says_json
from transformer_serving.gateway.keys import WITHOUT_KEY, Keys, check_may_ask
from transformer_serving.gateway.metrics import PATH as METRICS, Metrics
from transformer_serving.gateway.request_id import HEADER, request_id
from transformer_serving.gateway.settings import GatewaySettings
from transformer_serving.gateway.short_way import (
    Kind,
    RequestedEndpoint,
    ShortWay,
    send_response,
    target_of,
)
from transformer_serving.gateway.shutdown import Shutdown

_UNKNOWN = "unknown_endpoint"
_TRACE = b"traceparent"
_CLOSE = (b"connection", b"close")
_CUT_OFF = ServingError("malformed_body", "the body ended before it was whole").body()
_CHALLENGE = (b"www-authenticate", b"Bearer")
_UNAUTHORIZED = 401
_POLICY_VIOLATION = 1008
_ENDED = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")
_OF_THE_SENT_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")


class Exchange(NamedTuple):
    """One HTTP request and the way its answer leaves."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    id: bytes
    arrived: float

    def answer_headers(self) -> Headers:
        """What every answer gets that does not have it of its own."""
        milliseconds = 1000 * (time.monotonic() - self.arrived)
        return (HEADER, self.id), (b"server-timing", b"total;dur=%.3f" % milliseconds)


class FrontDoor:
    """The ASGI app around `host`, which is clearml_serving.serving.main or its like.

    `keys` None lets everybody ask everything.
    """

    def __init__(self, host: Any, settings: GatewaySettings, keys: Keys | None = None) -> None:
        self._host = host
        self._settings = settings
        self._keys = keys
        self._shutdown = Shutdown(settings.drain_seconds)
        self._short_way = ShortWay(host)
        self._metrics = Metrics()
        self._bodies = body_memory(settings.body_memory_bytes)
        self._parser = Parser(settings.max_body_elements)
        self._callers = Callers()
        self._rounds = GoldenRounds(host, self._short_way, self._metrics.goldens)
        self._health = Health(host, self._rounds, self._shutdown)
        write_json_lines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._host.app(scope, self._stopping(receive), self._started_or_ended(send))
        elif self._keys is not None:
            # No endpoint of the host speaks anything else; a websocket gets 403.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await self._host.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = header_values(scope["headers"])
        exchange = Exchange(scope, receive, send, headers, request_id(headers), time.monotonic())
        target = target_of(scope)
        refusal = self._kept_out(target, exchange)
        if refusal is not None:
            self._metrics.refused(refusal.kind.code)
            incoming = Incoming(receive, self._settings, none_comes=_has_no_body(exchange))
            await _refuse(refusal, incoming, exchange)
        elif target is not None:
            await self._serve(target, exchange)
        elif scope["path"].startswith(PREFIX):
            await self._health.answer(scope["path"], adding(send, exchange.answer_headers))
        elif scope["path"] == METRICS:
            await self._metrics.answer(adding(send, exchange.answer_headers))
        else:
            await self._host.app(scope, receive, adding(send, exchange.answer_headers))

    def _kept_out(
        self, target: RequestedEndpoint | None, exchange: Exchange
    ) -> ServingError | None:
        """Why the request is not let in; None where it is, its key noted."""
        path = exchange.scope["path"]
        if self._keys is None or path in WITHOUT_KEY:
            return None
        try:
            key = self._keys.key_of(exchange.headers)
            self._metrics.asked(key.name)
            check_may_ask(key, path, target)
        except ServingError as error:
            return error.without_frames()
        current_key.set(key.name)
        return None

    async def _serve(self, target: RequestedEndpoint, exchange: Exchange) -> None:
        incoming = Incoming(exchange.receive, self._settings)
        _enter(exchange)
        with self._bodies.share() as share:
            refusal = await self._take(target, exchange, incoming, share)
        # The body is let go of before its caller is told, which may take a while.
        if refusal is not None:
            self._metrics.refused(refusal.kind.code)
            await _refuse(refusal, incoming, exchange)

    async def _take(
        self, target: RequestedEndpoint, exchange: Exchange, incoming: Incoming, share: Share
    ) -> ServingError | None:
        """Answers, or says why the body is refused."""
        try:
            raw = await incoming.read(exchange.headers, share)
            kind = await self._short_way.kind_of(target)
            is_json = says_json(exchange.headers.get(b"content-type"))
            body = await self._parser.parse(raw, is_json=is_json, ours=kind is Kind.OURS)
        except ServingError as error:
            return error.without_frames()
        except ClientGoneError:
            # Who has left does not read it; who sent chunks that are none does.
            await send_json(exchange.send, 400, _CUT_OFF, [*exchange.answer_headers(), _CLOSE])
            return None
        caller = self._callers.enter(exchange.receive)
        current_caller.set(caller.left)
        try:
            if kind is Kind.HOSTS:
                await self._host.app(*_replayed(raw, exchange, caller))
                return None
            del raw
            response = await self._answer(kind, target, body)
        finally:
            self._callers.leave(caller)
        await self._send(response, exchange, left=caller.left.done())
        return None

    async def _answer(self, kind: Kind, target: RequestedEndpoint, body: Any) -> Response:
        if kind is Kind.OURS:
            return await self._short_way.answer(target, body)
        # Not the host's answer, which repeats up to 60 kB of the name. Nor is the host asked: after
        # a change in that moment it would answer, from a body that was not read for it.
        self._metrics.refused(_UNKNOWN)
        return unknown_response()

    async def _send(self, response: Response, exchange: Exchange, *, left: bool) -> None:
        # Nobody reads the answer of one who left; a server may even object to it.
        if not left or response.background is not None:
            await send_response(
                response, exchange.scope, exchange.receive, exchange.send, exchange.answer_headers
            )

    def _started_or_ended(self, send: Send) -> Send:
        async def forward(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._shutdown.arm()
                self._rounds.start()
            elif message["type"] in _ENDED:
                self._shutdown.leave()
            await send(message)

        return forward

    def _stopping(self, receive: Receive) -> Receive:
        async def forward() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self._shutdown.stopping = True
                self._rounds.stop()
            return message

        return forward


def _enter(exchange: Exchange) -> None:
    """Tell the endpoint's code whose request it is; seen in this request's task only."""
    trace = exchange.headers.get(_TRACE)
    current_request.set(
        (exchange.id.decode("latin-1"), None if trace is None else trace.decode("latin-1"))
    )


def _replayed(raw: bytes, exchange: Exchange, caller: Caller) -> tuple[Scope, Receive, Send]:
    """The request for the host's app, its body read and inflated already."""
    scope = exchange.scope
    if b"content-encoding" in exchange.headers:
        headers = [row for row in scope["headers"] if row[0] not in _OF_THE_SENT_BODY]
        headers.append((b"content-length", str(len(raw)).encode()))
        scope = {**scope, "headers": headers}
    first: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive() -> Message:
        return first.pop() if first else await caller.receive()

    return scope, receive, adding(exchange.send, exchange.answer_headers)


def _has_no_body(exchange: Exchange) -> bool:
    """Whether HTTP/1 says that no body follows; a later HTTP does not say it in its head."""
    headers = exchange.headers
    return (
        exchange.scope.get("http_version", "1.1").startswith("1")
        and b"transfer-encoding" not in headers
        and headers.get(b"content-length", b"0") == b"0"
    )


async def _refuse(error: ServingError, incoming: Incoming, exchange: Exchange) -> None:
    """Answer the error; where the body has not come whole, close after letting it run out."""
    headers = [*exchange.answer_headers(), *([_CLOSE] if incoming.open else [])]
    if error.kind.status == _UNAUTHORIZED:
        headers.append(_CHALLENGE)
    if error.kind.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.kind.retry_after_s))
    await send_json(exchange.send, error.kind.status, error.body(), headers, end=not incoming.open)
    if incoming.open:
        await incoming.drop()
        await exchange.send({"type": "http.response.body", "body": b""})
