"""A proxy of the environment that counts who comes to it, and lets nobody through."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

_VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


@contextlib.contextmanager
def proxy_of_the_environment(patch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """For every address; the first bytes of each that came."""
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        came.append(connection.recv(100))

        threading.Thread(target=refuse, daemon=True).start()
        for name in _VARIABLES:
            for written in (name, name.upper()):
                patch.setenv(written, f"http://127.0.0.1:{server.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            patch.delenv(name, raising=False)
        # urllib looks for proxies once a process.
        patch.setattr("urllib.request._opener", None)
        try:
            yield came
        finally:
            # Ends the thread, which waits in it.
            server.shutdown(socket.SHUT_RDWR)
