"""The ASGI app: which request goes where, and who is let in.

Tested by tests/control_plane/test_api.py.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.control_plane.api import METHODS, Api, error_response, parse_route
from transformer_serving.control_plane.auth import Authority
from transformer_serving.control_plane.call import Services
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.file_path import path_parts
from transformer_serving.control_plane.files.downloads import file_response
from transformer_serving.control_plane.files.leftovers import Leftovers
from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.files.uploads import receive_upload
from transformer_serving.control_plane.retention import Retention
from transformer_serving.control_plane.scroll import Scrolls
from transformer_serving.control_plane.settings import ControlPlaneSettings
from transformer_serving.control_plane.store import Store

_log = logging.getLogger(__name__)

_WEB_PAGE = re.compile(r"^/(projects/[0-9a-f*]+/|login|dashboard|settings)")
_WEB_TEXT = (
    "transformer-serving control plane: the ClearML API and files of one machine.\n"
    "There is no web interface here; `transformer-serving status` shows the endpoints.\n"
)


def create_app(settings: ControlPlaneSettings) -> Starlette:
    """Opens the data folder at once, so that a folder in use is refused before anything runs."""
    store = Store(settings.data)
    services = Services(store, FileStore(settings.data), Scrolls())
    server = _Server(Api(settings, services), services.files)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        rounds = (Leftovers(store, services.files).watch(), Retention(store).watch())
        tidying = [asyncio.create_task(work) for work in rounds]
        yield
        for task in tidying:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        server.api.close()
        store.close()

    every = ["GET", "HEAD", "POST", "DELETE"]
    return Starlette(
        routes=[
            Route("/health", _health, methods=["GET"]),
            Route("/{path:path}", server.answer, methods=every),
        ],
        exception_handlers={
            ApiError: _refused,
            ClientDisconnect: _left,
            OSError: _storage_failed,
            sqlite3.Error: _storage_failed,
            Exception: _failed,
        },
        lifespan=lifespan,
    )


class _Server:
    """One port for both: API methods by their names, everything else is a file."""

    def __init__(self, api: Api, files: FileStore) -> None:
        self.api = api
        self._authority: Authority = api.authority
        self._files = files

    async def answer(self, request: Request) -> Response:
        path = request.scope["path"]
        route = parse_route(path)
        if route is not None and request.method in ("GET", "POST"):
            return await self.api.answer(route, request)
        if request.method == "POST":
            return await self._upload(request)
        if request.method in ("GET", "HEAD") and _is_web(request):
            return PlainTextResponse(_WEB_TEXT)
        self._authority.check(request.headers.get("authorization", ""))
        if request.method == "DELETE":
            # It waits for the disk, which may be writing a large upload.
            return await asyncio.to_thread(self._delete, path)
        return file_response(
            self._files.open(path),
            request.headers.get("range", ""),
            request.method == "HEAD",
            request.headers.get("if-range", ""),
        )

    async def _upload(self, request: Request) -> Response:
        # Nothing is read for callers without credentials; the server drops what they still send.
        self._authority.check(request.headers.get("authorization", ""))
        body = request.stream()
        try:
            if request.headers.get("content-encoding", "identity") != "identity":
                raise ApiError(ApiFailure.CONTENT_ENCODING)
            paths = await receive_upload(
                request.headers.get("content-type", ""),
                body,
                self._files,
                lambda path: parse_route(f"/{path}") is None,
            )
        except (ApiError, OSError):
            # A client that is still sending would not see the answer, only a broken connection.
            async for _ in body:
                pass
            raise
        return Response(orjson.dumps(paths), media_type="application/json")

    def _delete(self, path: str) -> Response:
        if not self._files.delete(path):
            raise ApiError(ApiFailure.FILE_NOT_FOUND)
        return Response(orjson.dumps("/".join(path_parts(path))), media_type="application/json")


def _is_web(request: Request) -> bool:
    path = request.scope["path"]
    if path == "/":
        return True
    by_browser = "text/html" in request.headers.get("accept", "")
    return (
        by_browser and "authorization" not in request.headers and _WEB_PAGE.match(path) is not None
    )


async def _health(_request: Request) -> Response:
    body = {"status": "ok", "version": kit_version(), "methods": len(METHODS)}
    return Response(orjson.dumps(body), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(request.scope["path"], cast(ApiError, error))


async def _left(_request: Request, _error: Exception) -> Response:
    """Nobody reads this: the client closed the connection in the middle of its request."""
    return Response(status_code=400)


async def _storage_failed(request: Request, error: Exception) -> Response:
    _log.error("%s %s: %s", request.method, type(error).__name__, _reason(error))
    failure = ApiFailure.DISK_FULL if is_full_disk(error) else ApiFailure.STORAGE
    return error_response(request.scope["path"], ApiError(failure))


async def _failed(request: Request, _error: Exception) -> Response:
    """A fault of ours; the server logs the exception, the caller learns nothing of it."""
    return error_response(request.scope["path"], ApiError(ApiFailure.GENERAL))


def _reason(error: Exception) -> str:
    """What went wrong without the path or the value it went wrong with."""
    return (error.strerror or "") if isinstance(error, OSError) else str(error)
