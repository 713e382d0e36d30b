"""A web server with a file, and a line to it that breaks after so many bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.utils import send_from_directory
from werkzeug.wrappers import Request, Response

_READ = 4096


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """No line for each request."""


@contextlib.contextmanager
def file_server(folder: Path) -> Iterator[int]:
    """By the function that ClearML's own file server answers with; its port."""

    answers: list[Response] = []

    @Request.application
    def answer(request: Request) -> Response:
        answers.append(send_from_directory(folder, request.path.lstrip("/"), request.environ))
        return answers[-1]

    server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        # The server itself leaves the file open where a line broke.
        for one in answers:
            one.close()


@dataclass
class CutLine:
    """Of the connections one after the other: each breaks after so many bytes of its answer.

    Those after the last named ones hold. `asked` has the requests' heads.
    """

    target: int
    cuts: Sequence[int]
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[CutLine]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        thread = threading.Thread(target=self._serve, args=(listener,))
        thread.start()
        try:
            yield self
        finally:
            # Wakes the thread that waits for the next one.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()

    def ranges(self) -> list[str]:
        """What was asked for of files, one entry a request; '' for all of one."""
        heads = [{k.lower(): v for k, _, v in (row.partition(": ") for row in head.split("\r\n"))}
                 for head in self.asked]  # fmt: skip
        return [head.get("range", "") for head in heads]

    def _serve(self, listener: socket.socket) -> None:
        workers = []
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                workers.append(threading.Thread(target=self._pass, args=(client,)))
                workers[-1].start()
        for worker in workers:
            worker.join()

    def _pass(self, client: socket.socket) -> None:
        """One request of one connection, and its answer as far as it may go."""
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := client.recv(_READ)):
                    return
                head += more
            number = len(self.asked)
            self.asked.append(head.decode())
            server.sendall(head.replace(b"keep-alive", b"close"))
            left = self.cuts[number] if number < len(self.cuts) else None
            with contextlib.suppress(OSError):
                while (left is None or left > 0) and (chunk := server.recv(_READ)):
                    chunk = chunk[:left]
                    client.sendall(chunk)
                    left = None if left is None else left - len(chunk)
