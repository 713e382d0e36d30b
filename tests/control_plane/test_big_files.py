"""Files as streams: in little memory, beside API calls, cut off by either side."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import requests

from tests.engine.triton_server import wait_until

if TYPE_CHECKING:
    from tests.control_plane.conftest import ServerProcess

MIB = 1024 * 1024
# The figure of docs is taken with 2048; the default keeps the suite quick.
BIG_MIB = int(os.environ.get("TRANSFORMER_SERVING_TEST_BIG_MIB", "200"))
MULTIPART = {"Content-Type": "multipart/form-data; boundary=edge"}


def _content(size: int) -> Iterator[bytes]:
    chunk = bytes(range(256)) * 4096
    for _ in range(size // len(chunk)):
        yield chunk


def _multipart(path: str, size: int) -> Iterator[bytes]:
    disposition = f'Content-Disposition: form-data; name="{path}"; filename="big"'
    yield f"--edge\r\n{disposition}\r\n\r\n".encode()
    yield from _content(size)
    yield b"\r\n--edge--\r\n"


def test_a_big_file_goes_up_and_down_in_little_memory(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    process = psutil.Process(own_server.pid)
    peak, watching = [process.memory_info().rss], threading.Event()

    def watch() -> None:
        while not watching.wait(0.02):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    size = BIG_MIB * MIB
    before = process.memory_info().rss
    begun = time.monotonic()
    answer = session.post(own_server.url, data=_multipart("big/file", size), headers=MULTIPART)
    up = time.monotonic() - begun
    assert answer.status_code == 200, answer.text
    received, expected = 0, next(_content(size))
    begun = time.monotonic()
    with session.get(f"{own_server.url}/big/file", stream=True) as download:
        assert int(download.headers["Content-Length"]) == size
        for chunk in download.iter_content(len(expected)):
            assert chunk == expected
            received += len(chunk)
    down = time.monotonic() - begun
    watching.set()
    watcher.join()
    assert received == size
    sys.stderr.write(
        f"{BIG_MIB} MiB: up {up:.1f} s, down {down:.1f} s, RSS {before / MIB:.0f} MiB before, "
        f"{peak[0] / MIB:.0f} MiB peak\n"
    )
    assert peak[0] - before < 30 * MIB
    assert peak[0] < 100 * MIB


def test_the_api_answers_while_files_stream(server: ServerProcess) -> None:
    session, other = server.session(), server.session()
    half, go_on = threading.Event(), threading.Event()
    statuses = []

    def held() -> Iterator[bytes]:
        for at, part in enumerate(_multipart("stream/file", 64 * MIB)):
            if at == 32:
                half.set()
                assert go_on.wait(60)
            yield part

    def upload() -> None:
        answer = session.post(server.url, data=held(), headers=MULTIPART)
        statuses.append(answer.status_code)

    thread = threading.Thread(target=upload)
    thread.start()
    try:
        assert half.wait(60)
        server.call(other, "projects.get_all")  # gives up after 30 s
    finally:
        go_on.set()
        thread.join()
    assert statuses == [200]


def test_a_refused_upload_is_answered_though_it_is_still_coming(server: ServerProcess) -> None:
    answer = requests.post(
        server.url, data=_multipart("x/y", 20 * MIB), headers=MULTIPART, timeout=30
    )
    assert answer.status_code == 401


def opened(pid: int) -> Counter[str]:
    """What a process has open, by what it is, such as a path or 'socket'."""
    names: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names[str(descriptor.readlink()).split(":[")[0]] += 1
    return names


def test_clients_that_leave_do_no_harm(server: ServerProcess) -> None:
    session = server.session()
    session.post(server.url, data=_multipart("leave/file", 8 * MIB), headers=MULTIPART)
    before = opened(server.pid)
    rest = f" HTTP/1.1\r\nHost: x\r\nAuthorization: {session.headers['Authorization']}\r\n"
    unread = f"GET /leave/file{rest}\r\n".encode()
    unsent = f"POST /tasks.get_all{rest}Content-Length: 99\r\n\r\n{{".encode()
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(unread)
            half.recv(10)
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(unsent)
    wait_until(
        lambda: opened(server.pid).total() <= before.total() + 2,
        30,
        lambda: f"still open: {opened(server.pid) - before}",
    )
    assert "Traceback" not in server.log()
    assert "ClientDisconnect" not in server.log()


def test_sigterm_ends_it_also_in_a_download(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    session.post(own_server.url, data=_multipart("d/file", 32 * MIB), headers=MULTIPART)
    with session.get(f"{own_server.url}/d/file", stream=True):
        # The reader would hold it for two minutes.
        own_server.stop()
    own_server.start()
    assert own_server.call(own_server.session(), "tasks.get_all") == {"tasks": []}
    own_server.stop()
    assert "Traceback" not in own_server.log()
