"""Asking what listens at an address of this machine, host:port or unix:/path, over HTTP."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

UNIX = "unix:"


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket. Its path has 107 bytes at most."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def connect(address: str, timeout_s: float) -> http.client.HTTPConnection:
    if address.startswith(UNIX):
        return UnixConnection(Path(address.removeprefix(UNIX)), timeout_s)
    return http.client.HTTPConnection(address, timeout=timeout_s)


def ask(
    address: str, path: str, *, method: str = "GET", timeout_s: float = 3.0
) -> tuple[int, bytes]:
    """Status and body. Raises OSError and http.client.HTTPException where there is no answer."""
    connection = connect(address, timeout_s)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
