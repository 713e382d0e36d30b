"""The calls of `inference.GRPCInferenceService` that are answered, one row each.

Those that are no row, Triton's own repository and statistics among them, are UNIMPLEMENTED.

Tested by tests/gateway/test_grpc.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import grpc
import orjson
from tritonclient.grpc import service_pb2 as messages

from transformer_serving.contract.body_memory import BodyMemory, Share
from transformer_serving.contract.errors import ServingError, unknown_endpoint
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.gateway.asgi import Receive, Scope, Send
from transformer_serving.gateway.grpc_port.messages import (
    HEADER,
    body_of,
    check_elements,
    infer_response,
    is_answered_raw,
    model_config,
    model_metadata,
)
from transformer_serving.gateway.grpc_port.reading import Reading
from transformer_serving.gateway.grpc_port.requests import (
    AppRequest,
    Headers,
    headers_of,
)
from transformer_serving.gateway.grpc_port.statuses import STATUSES, status_of
from transformer_serving.gateway.settings import GatewaySettings

SERVICE = "inference.GRPCInferenceService"
_OK, _NOT_FOUND, _NOT_READY = 200, 404, 503
# Of an answer's headers, what a caller over gRPC is told too.
_TOLD = ("x-request-id", "server-timing", "retry-after", VERSION_HEADER)


class Door(Protocol):
    """What of the front door is asked; `bodies` counts what the calls hold, as its own."""

    bodies: BodyMemory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def check_key(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises ServingError (401)."""

    def count_refusal(self, error: ServingError) -> None:
        """Of a call that does not come to be a request."""


class Call(NamedTuple):
    """`path` is what HTTP is asked, `write` makes the message of an answer with these statuses; of
    tensors it is told whether they go raw.

    `needs_key` says whether the metadata is looked at before the message is read.
    """

    request: Any
    response: Any
    path: Callable[[Any], str]
    write: Callable[..., Any]
    statuses: tuple[int, ...] = (_OK,)
    needs_key: bool = True


def _model(request: Any, version: str, rest: str = "") -> str:
    """Raises ServingError for a name that would be another path."""
    if not request.name or "/" in request.name + version:
        raise unknown_endpoint()
    of_version = f"/versions/{version}" if version else ""
    return f"/v2/models/{request.name}{of_version}{rest}"


def _infer_path(request: Any) -> str:
    named = messages.ModelMetadataRequest(name=request.model_name)
    return _model(named, request.model_version, "/infer")


CALLS = {
    "ServerLive": Call(
        messages.ServerLiveRequest, messages.ServerLiveResponse,
        lambda _: "/v2/health/live",
        lambda answer: messages.ServerLiveResponse(live=answer.status == _OK),
        needs_key=False,
    ),
    "ServerReady": Call(
        messages.ServerReadyRequest, messages.ServerReadyResponse,
        lambda _: "/v2/health/ready",
        lambda answer: messages.ServerReadyResponse(ready=answer.status == _OK),
        (_OK, _NOT_READY),
        needs_key=False,
    ),
    "ModelReady": Call(
        messages.ModelReadyRequest, messages.ModelReadyResponse,
        lambda request: _model(request, request.version, "/ready"),
        lambda answer: messages.ModelReadyResponse(ready=answer.status == _OK),
        (_OK, _NOT_READY, _NOT_FOUND),
    ),
    "ServerMetadata": Call(
        messages.ServerMetadataRequest, messages.ServerMetadataResponse,
        lambda _: "/v2",
        lambda answer: messages.ServerMetadataResponse(**orjson.loads(answer.body)),
    ),
    "ModelMetadata": Call(
        messages.ModelMetadataRequest, messages.ModelMetadataResponse,
        lambda request: _model(request, request.version),
        lambda answer: model_metadata(orjson.loads(answer.body)),
    ),
    "ModelConfig": Call(
        messages.ModelConfigRequest, messages.ModelConfigResponse,
        lambda request: _model(request, request.version, "/config"),
        lambda answer: model_config(orjson.loads(answer.body)),
    ),
    "ModelInfer": Call(
        messages.ModelInferRequest, messages.ModelInferResponse, _infer_path,
        lambda answer, is_raw: infer_response(answer.body, answer.headers, is_raw=is_raw),
    ),
}  # fmt: skip


class Service:
    """Asks the front door what each call asks."""

    def __init__(self, app: Door, settings: GatewaySettings) -> None:
        self._app = app
        self._most = settings.max_body_elements
        self._reading = Reading(settings)
        self._running: set[asyncio.Task[None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # A stream of one message is the same to a caller. We are asked before it is read.
                name: grpc.stream_unary_rpc_method_handler(
                    partial(self._answer, call),
                    call.request.FromString,
                    call.response.SerializeToString,
                )
                for name, call in CALLS.items()
            },
        )

    async def _answer(self, call: Call, _: Any, context: grpc.aio.ServicerContext) -> Any:
        headers = headers_of(context.invocation_metadata())
        with self._app.bodies.share() as share:
            try:
                # Who needs no key is not read: by sending nothing, anybody would take a turn.
                message = call.request()
                if call.needs_key:
                    self._app.check_key(dict(headers))
                    message = await self._reading.message(context)
                asked = self._asked(call, message, headers, share, context.time_remaining())
                write = call.write
                if call.request is messages.ModelInferRequest:
                    write = partial(write, is_raw=is_answered_raw(message))
                # No longer counted, so it must not wait for the engine with the request.
                del message
            except ServingError as error:
                self._app.count_refusal(error)
                kind = error.kind
                if kind.retry_after_s is not None:
                    context.set_trailing_metadata((("retry-after", str(kind.retry_after_s)),))
                await context.abort(STATUSES[kind.code], error.message)
            answer = await asked.answer(self._app, self._running)
        told = [(name, answer.headers[name]) for name in _TOLD if name in answer.headers]
        context.set_trailing_metadata(tuple(told))
        if answer.status not in call.statuses:
            await context.abort(*status_of(answer.body))
        return write(answer)

    def _asked(
        self, call: Call, request: Any, headers: Headers, share: Share, left_s: float | None
    ) -> AppRequest:
        """Raises ServingError."""
        path = call.path(request)
        if call.request is not messages.ModelInferRequest:
            return AppRequest("GET", path, headers, share)
        size = request.ByteSize()
        share.take(size)
        check_elements(request, size, self._most)
        text, binary = body_of(request, left_s)
        share.take(len(text) + len(binary))
        headers = [*headers, (HEADER.encode(), b"%d" % len(text))]
        # The caller lets go of the message next.
        share.give_back(size)
        return AppRequest("POST", path, headers, share, text + binary)
