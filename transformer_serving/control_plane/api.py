"""API calls: from the request's path and body to a handler, and its answer into the envelope."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

import orjson
from starlette.requests import Request
from starlette.responses import Response

from transformer_serving.contract.body_memory import BodyMemory, Share
from transformer_serving.control_plane.addresses import with_own, without_own
from transformer_serving.control_plane.auth import API_VERSION, Authority
from transformer_serving.control_plane.body import parse_body
from transformer_serving.control_plane.call import Call, Handler, Services
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.methods import (
    events,
    models,
    projects,
    task_contents,
    task_status,
    tasks,
)
from transformer_serving.control_plane.settings import ControlPlaneSettings
from transformer_serving.control_plane.store import Document

METHODS: Mapping[str, Handler] = {
    **projects.METHODS,
    **tasks.METHODS,
    **task_contents.METHODS,
    **task_status.METHODS,
    **models.METHODS,
    **events.METHODS,
}
_LOGIN = "auth.login"
_PING = "debug.ping"
_ROUTE = re.compile(r"^/(?:v(?P<version>\d+(?:\.\d+)?)/)?(?P<method>[a-z]+\.[a-z_]+)$")
# Without a version in the path only these are methods; any other such name is a file's.
_UNVERSIONED = frozenset({*METHODS, _LOGIN, _PING})
_WORKERS = 8


def _running_threads() -> ThreadPoolExecutor:
    """All of them run already: a pool that finds no thread for a call keeps it all the same, and
    would carry out later what was refused. Raises RuntimeError where they cannot be had."""
    threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="api")
    together = threading.Barrier(_WORKERS)
    try:
        for _ in range(_WORKERS):
            threads.submit(together.wait)
    except RuntimeError:
        together.abort()
        raise
    return threads


@dataclass(frozen=True)
class ApiRoute:
    """A called method and the version the path asks for."""

    method: str
    version: str


@dataclass(frozen=True)
class _Headers:
    authorization: str
    content_type: str
    host: str
    worker: str
    expiration_sec: str


def parse_route(path: str) -> ApiRoute | None:
    """The API method a path names, or None for a file's path."""
    matched = _ROUTE.match(path)
    if matched is None:
        return None
    method, version = matched["method"], matched["version"]
    if version is None and method not in _UNVERSIONED:
        return None
    return ApiRoute(method, version or API_VERSION)


class Api:
    """Handlers run in a few threads, so that a slow one holds up neither loop nor uploads."""

    def __init__(self, settings: ControlPlaneSettings, services: Services) -> None:
        self.authority = Authority(settings)
        self._services = services
        self._max_body = settings.max_api_body
        self._body_seconds = settings.api_body_seconds
        self._bodies = BodyMemory(settings.max_api_bodies, _too_many_bodies)
        self._threads = _running_threads()

    async def answer(self, route: ApiRoute, request: Request) -> Response:
        headers = _Headers(
            authorization=request.headers.get("authorization", ""),
            content_type=request.headers.get("content-type", ""),
            host=request.headers.get("host", ""),
            worker=request.headers.get("x-clearml-worker", ""),
            expiration_sec=request.query_params.get("expiration_sec", ""),
        )
        # Whom the server does not know it does not listen to.
        early = self._without_body(route, headers)
        if early is not None:
            return Response(early, media_type="application/json")
        with self._bodies.share() as share:
            body = await self._body(request, share)
            loop = asyncio.get_running_loop()
            content = await loop.run_in_executor(self._threads, self._run, route, headers, body)
        return Response(content, media_type="application/json")

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _without_body(self, route: ApiRoute, headers: _Headers) -> bytes | None:
        """The answer of the calls that have no body; for all others the caller is known then."""
        if route.method == _PING:
            return _envelope(route, {"msg": "pong"})
        if route.method == _LOGIN:
            token = self.authority.login(headers.authorization, headers.expiration_sec)
            return _envelope(route, {"token": token})
        self.authority.check(headers.authorization)
        return None

    async def _body(self, request: Request, share: Share) -> bytes:
        """Reads to the end also when too large, so that the client gets to see the refusal."""
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self._body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self._max_body:
                        share.take(len(chunk))
                        body += chunk
        except TimeoutError as error:
            raise ApiError(ApiFailure.VALIDATION, "the body did not come in time") from error
        if size > self._max_body:
            raise ApiError(ApiFailure.TOO_LARGE, f"at most {self._max_body} bytes, got {size}")
        return bytes(body)

    def _run(self, route: ApiRoute, headers: _Headers, body: bytes) -> bytes:
        handler = METHODS.get(route.method)
        if handler is None:
            raise ApiError(ApiFailure.NOT_SUPPORTED, route.method)
        data, batch = parse_body(headers.content_type, without_own(body, headers.host))
        call = Call(data, batch, self._services, headers.host, headers.worker)
        return with_own(_envelope(route, handler(call)), headers.host)


def error_response(path: str, error: ApiError) -> Response:
    route = parse_route(path) or ApiRoute(path, API_VERSION)
    meta = _meta(route, error.failure.status, error.failure.subcode, str(error), error.data)
    return Response(
        orjson.dumps({"meta": meta, "data": {}}),
        status_code=error.failure.status,
        media_type="application/json",
    )


def _too_many_bodies(limit: int) -> ApiError:
    # Not 503: the SDK would try again without end.
    return ApiError(
        ApiFailure.TOO_LARGE, f"at most {limit} bytes of all calls together; try again later"
    )


def _envelope(route: ApiRoute, data: Document) -> bytes:
    return orjson.dumps({"meta": _meta(route, 200, 0, "OK", {}), "data": data})


def _meta(
    route: ApiRoute, code: int, subcode: int, message: str, data: Mapping[str, object]
) -> Document:
    identity = uuid4().hex
    return {
        "id": identity,
        "trx": identity,
        "endpoint": {
            "name": route.method,
            "requested_version": route.version,
            "actual_version": API_VERSION,
        },
        "result_code": code,
        "result_subcode": subcode,
        "result_msg": message,
        "error_stack": "",
        "error_data": dict(data),
    }
