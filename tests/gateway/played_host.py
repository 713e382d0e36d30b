"""As much of clearml_serving.serving.main as the gateway touches, played by the tests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc


class Ours:
    serves_responses = True


class Counter:
    value = 0

    def inc(self) -> None:
        self.value += 1

    def dec(self) -> None:
        self.value -= 1


class Engine:
    """The host's object of one endpoint."""

    is_preprocess_async = is_postprocess_async = False
    is_process_async = True

    def __init__(self, processor: Processor, url: str, preprocess: Any) -> None:
        self._processor = processor
        self._url = url
        self._preprocess = preprocess

    def preprocess(self, body: Any, state: dict[str, Any], collect: Any) -> Any:
        assert collect is None
        self._processor.asked.append((self._url, None, body))
        return body

    async def process(self, request: Any, state: dict[str, Any], collect: Any) -> Any:
        assert self._processor._engine_processor_lookup[self._url] is self
        assert self._processor._request_processing_state.value > 0
        return await self._processor._answer(self._url)

    def postprocess(self, outcome: Any, state: dict[str, Any], collect: Any) -> Any:
        return outcome


class Processor:
    """A ModelRequestProcessor whose endpoints give, raise, or never give their answer."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str | None, Any]] = []
        self.alive = True
        self.engines: dict[str, str] = {}
        self._endpoints: dict[str, Any] = {}
        self._canary_route: dict[str, Any] = {}
        self._engine_processor_lookup: dict[str, Any] = {}
        self._request_processing_state = Counter()
        self._update_lock_flag = False
        # Given to whatever is built: an Engine finds the processor by it.
        self._task = self
        self._sync_daemon_thread = SimpleNamespace(is_alive=lambda: self.alive)
        self.changed()

    def built(self, url: str, preprocess: Any) -> None:
        self._engine_processor_lookup[url] = Engine(self, url, preprocess)

    def get_endpoints(self) -> dict[str, Any]:
        return dict(self._endpoints)

    def changed(self) -> None:
        """A change of the configuration: every endpoint is a new object, nothing is built."""
        self._engine_processor_lookup = {}
        self._endpoints = {
            url: SimpleNamespace(
                url=url, engine_type=self.engines.get(url, "triton"), preprocess_artifact=None
            )
            for url in self.answers
        }

    def _normalize_endpoint_url(self, endpoint: str, version: str | None) -> str:
        return f"{endpoint.rstrip('/')}/{version or ''}".rstrip("/")

    async def process_request(self, base_url: str, version: str | None, request_body: Any) -> Any:
        route = self._canary_route.get(self._normalize_endpoint_url(base_url, version))
        self.asked.append((base_url, version, request_body))
        # Of a route the last is drawn each time.
        return await self._answer(route["endpoints"][-1] if route else base_url)

    async def _answer(self, url: str) -> Any:
        answer = self.answers[url]
        if answer == "never":
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class NotFoundError(Exception):
    pass


class ModelError(Exception):
    pass


class EngineError(Exception):
    pass


class SessionError(Exception):
    pass


class RpcError(Exception):
    def __init__(self, text: str, code: grpc.StatusCode) -> None:
        super().__init__(text)
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


class App:
    """The host's ASGI app: answers 200 and keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] = []

    def openapi(self) -> dict[str, Any]:
        return {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.calls.append((scope, message.get("body")))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"host"})


def host_of(processor: Processor | None) -> Any:
    """The host's module; `reported` holds what went to the ClearML log, `exits` the restarts."""
    reported: list[str] = []
    exits: list[bool] = []

    async def exit_app() -> None:
        exits.append(True)

    return SimpleNamespace(
        app=App(),
        processor=processor,
        reported=reported,
        exits=exits,
        exit_app=exit_app,
        instance_id="this",
        session_logger=SimpleNamespace(report_text=reported.append),
        format_exception=lambda error, request: f"{type(error).__name__} {request}",
        grpc_aio_ignore_errors=set(),
        grpc_aio_verbose_errors=set(),
        EndpointNotFoundException=NotFoundError,
        EndpointModelLoadException=ModelError,
        EndpointBackendEngineException=EngineError,
        ServingInitializationException=SessionError,
        AioRpcError=RpcError,
    )
