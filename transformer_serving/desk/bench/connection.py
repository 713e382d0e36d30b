"""One kept HTTP/1.1 connection that carries one request at a time, as cheap as Python has it.

Tested by tests/bench/test_load.py and tests/bench/test_connection.py.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import psutil

from transformer_serving.contract.open_files import most_files
from transformer_serving.desk.failure import Failure

# The status that stands for an exchange without an answer: refused, broken off or timed out.
NO_ANSWER = 0

Done = Callable[[int], None]
# Left to whatever else this process opens meanwhile.
_OTHER_FILES = 64


def most_connections() -> int:
    """Beyond it a request that is never sent would count as not answered."""
    return max(1, most_files() - psutil.Process().num_fds() - _OTHER_FILES)


@dataclass(frozen=True)
class Address:
    """Where requests go: the parts of an http or https URL, and headers beside the usual ones."""

    host: str
    port: int
    path: str
    secure: bool
    headers: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(url: str, headers: Mapping[str, str] | None = None) -> Address:
        """Raises Failure (exit code 2) for what is no URL of a web server."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure("the URL must be like http://127.0.0.1:8080/serve/NAME", exit_code=2)
        if parts.username or parts.password:
            raise Failure(
                "a name and a password in the URL are not sent; give them as --header "
                "'Authorization: Basic BASE64'",
                exit_code=2,
            )
        secure = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Address(
            parts.hostname, port or (443 if secure else 80), path, secure, dict(headers or {})
        )

    @property
    def place(self) -> str:
        """Host and port, as they stand in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.place}{self.path}"

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """Made once: this machine's authorities take longer to read than many an answer to come."""
        return ssl.create_default_context() if self.secure else None

    def request(self, body: bytes, content_type: str = "application/json") -> bytes:
        """A POST of `body`, head and all, ready to be written."""
        given = {
            "Host": self.place,
            "Content-Type": content_type,
            **self.headers,
            "Content-Length": str(len(body)),
        }
        # Of one name in two spellings the last one counts.
        lines = {name.lower(): f"{name}: {value}\r\n" for name, value in given.items()}
        head = "".join(lines.values())
        return f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode() + body


class Connection(asyncio.Protocol):
    """Sends one request at a time and says with which status it was answered.

    The answer's body is only counted. A connection that the server closes after its answer, or
    breaks off, is `closed` and must be replaced.
    """

    def __init__(self) -> None:
        self.closed = False
        self.received = 0
        self._transport: asyncio.Transport | None = None
        self._done: Done | None = None
        self._parser: Any = None

    async def open(self, address: Address) -> None:
        """Raises OSError when nothing listens there."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, address.host, address.port, ssl=address.tls)

    def send(self, request: bytes, done: Done) -> None:
        """Write a request; `done` is called once, with the answer's status or NO_ANSWER."""
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        if self._transport is None or self.closed:
            self._finish(NO_ANSWER)
        else:
            self._transport.write(request)

    def close(self) -> None:
        """Also ends a request that has no answer yet."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        self._finish(NO_ANSWER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream transport; uvloop's own does not say so by its class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._finish(NO_ANSWER)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.closed = True
            if self._transport is not None:
                self._transport.close()
        self._finish(self._parser.get_status_code())

    def _finish(self, status: int) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status)
