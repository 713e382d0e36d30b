"""What one inference worker asks the control plane: written down on the way, and asked again.

The worker is the real one, and takes this listener for its control plane. What passes is kept with
its time, so that many workers can be played by it, each with a task of its own.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase

_TIMEOUT_S = 60.0
# Of what a worker sends; a player's connection and login are its own.
_OF_A_HOP = ("connection", "content-length", "transfer-encoding")
_KEPT_HEADERS = ("content-type", "x-clearml-worker", "x-clearml-client")


@dataclass(frozen=True)
class Call:
    """`at`: seconds since the beginning."""

    at: float
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def name(self) -> str:
        """Such as tasks.ping."""
        return self.path.split("?")[0].rpartition("/")[2]

    def of_another(self, task: str, other: str) -> Call:
        """The call as a worker with another task makes it."""
        return replace(self, body=self.body.replace(task.encode(), other.encode()))


@dataclass
class Recording:
    """Calls as they pass; `since` begins anew."""

    calls: list[Call] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def restart(self) -> None:
        self.calls.clear()
        self.began = time.monotonic()


@contextmanager
def recorded(port: int) -> Iterator[tuple[str, Recording]]:
    """A listener before the control plane at `port`: its address, and what passes it."""
    recording = Recording()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = b"".join(_body(self.rfile, self.headers))
            kept = {name: self.headers[name] for name in _KEPT_HEADERS if name in self.headers}
            at = time.monotonic() - recording.began
            recording.calls.append(Call(at, self.command, self.path, kept, body))
            sent = {
                name: value for name, value in self.headers.items() if name.lower() not in _OF_A_HOP
            }
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
            connection.request(self.command, self.path, body, sent)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_A_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_POST = do_PUT = do_HEAD = _pass_on

        def log_message(self, *_: object) -> None:
            """No line for each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", recording
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _body(file: BufferedIOBase, headers: Message) -> Iterator[bytes]:
    """Also one that comes in chunks, as the SDK sends files."""
    if headers.get("Transfer-Encoding", "").lower() != "chunked":
        yield file.read(int(headers.get("Content-Length") or 0))
        return
    while size := int(file.readline().split(b";")[0], 16):
        yield file.read(size)
        file.readline()
    file.readline()


def play(
    calls: Sequence[Call], period_s: float, offset_s: float, seconds: float, port: int, token: str
) -> list[float]:
    """One worker for so long, from so far into its period: how long each answer took.

    Raises AssertionError for an answer that is none.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    began, took = time.monotonic(), []
    for at, call in _due(calls, period_s, offset_s):
        if at >= seconds:
            break
        time.sleep(max(0.0, began + at - time.monotonic()))
        asked = time.monotonic()
        connection.request(
            call.method, call.path, call.body, {**call.headers, "Authorization": f"Bearer {token}"}
        )
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, f"{call.name}: {answer.status} {content[:300]!r}"
        took.append(time.monotonic() - asked)
    connection.close()
    return took


def _due(calls: Sequence[Call], period_s: float, offset_s: float) -> Iterator[tuple[float, Call]]:
    """Each call and when it is made, period after period."""
    ordered = sorted(calls, key=lambda call: call.at)
    number = 0
    while ordered:
        for call in ordered:
            at = call.at + number * period_s - offset_s
            if at >= 0:
                yield at, call
        number += 1
