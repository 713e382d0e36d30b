"""A file is never closed while a thread is inside it: its descriptor may be another file's next."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, MutableMapping
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from tests.engine.triton_server import wait_until
from transformer_serving.control_plane.errors import ApiError
from transformer_serving.control_plane.files.downloads import file_response
from transformer_serving.control_plane.files.store import FileStore, Incoming, StoredFile
from transformer_serving.control_plane.files.uploads import receive_upload

SIZE = 2_000_000
BOUNDARY = "b0undary"


class Held:
    """Where a thread inside the file waits, and whether the file was closed meanwhile."""

    def __init__(self) -> None:
        self.inside, self.go_on, self.left = (threading.Event() for _ in range(3))
        self.closed: bool | None = None

    def wait(self, closed: Any) -> None:
        self.inside.set()
        self.go_on.wait(20)
        self.closed = closed()
        self.left.set()

    async def until_inside(self) -> None:
        while not self.inside.is_set():
            await asyncio.sleep(0.001)


class SlowFile(FileIO):
    held: Held

    def read(self, size: int | None = -1, /) -> bytes:
        self.held.wait(lambda: self.closed)
        return b"" if self.closed else super().read(size)


async def ignore(_message: MutableMapping[str, Any]) -> None:
    pass


@pytest.mark.parametrize("reason", ["the client leaves", "the server stops"])
async def test_a_download_that_ends_early(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    content = SlowFile(path)
    content.held = held = Held()
    leaves = asyncio.Event()

    async def receive() -> dict[str, str]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    # uvicorn's version: Starlette then watches for the client's leaving beside the body.
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    response = file_response(StoredFile(content, SIZE, 0.0, '"tag"'), "", head=False)
    sending = asyncio.ensure_future(response(scope, receive, ignore))
    await held.until_inside()
    leaves.set() if reason == "the client leaves" else sending.cancel()
    await asyncio.sleep(0.05)
    held.go_on.set()
    await asyncio.wait({sending}, timeout=20)
    await asyncio.to_thread(held.left.wait, 20)
    assert held.closed is False
    # At once, not when garbage is collected next.
    await asyncio.to_thread(wait_until, lambda: content.closed, 60)


@pytest.mark.parametrize("reason", ["the client leaves", "the server stops"])
@pytest.mark.parametrize("full", ["http.response.start", "http.response.body"])
async def test_a_download_that_ends_while_its_socket_is_full(
    tmp_path: Path, reason: str, full: str
) -> None:
    """A client that reads nothing and leaves: nobody asks for the next part of the file."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    content = FileIO(path)
    leaves, waiting = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, str]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == full:
            waiting.set()
            await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    response = file_response(StoredFile(content, SIZE, 0.0, '"tag"'), "", head=False)
    collecting = gc.isenabled()
    gc.disable()
    try:
        sending = asyncio.ensure_future(response(scope, receive, send))
        await waiting.wait()
        leaves.set() if reason == "the client leaves" else sending.cancel()
        await asyncio.wait({sending}, timeout=20)
        await asyncio.to_thread(wait_until, lambda: content.closed, 60)
    finally:
        if collecting:
            gc.enable()


def test_a_range_that_is_refused_leaves_no_open_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    content = FileIO(path)
    with pytest.raises(ApiError):
        file_response(StoredFile(content, 10, 0.0, '"tag"'), "bytes=20-30", head=False)
    assert content.closed


async def test_an_upload_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, held, written = FileStore(tmp_path), Held(), Incoming.write

    def slow_write(incoming: Incoming, chunk: bytes) -> None:
        held.wait(lambda: incoming._file.closed)
        written(incoming, chunk)

    monkeypatch.setattr(Incoming, "write", slow_write)

    async def body() -> AsyncIterator[bytes]:
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="f"'.encode()
        yield b"\r\n\r\n" + b"x" * SIZE

    kind = f"multipart/form-data; boundary={BOUNDARY}"
    receiving = asyncio.ensure_future(receive_upload(kind, body(), files, lambda _path: True))
    await held.until_inside()
    receiving.cancel()
    await asyncio.sleep(0.05)
    held.go_on.set()
    await asyncio.wait({receiving}, timeout=20)
    assert receiving.cancelled()
    assert held.closed is False
    assert not list((tmp_path / "incoming").iterdir())
