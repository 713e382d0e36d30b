"""The worker's clients: one for each transport and address, so that endpoints share connections.

Tested by tests/preprocess/test_triton_client.py.
"""

from __future__ import annotations

from collections.abc import Callable

from preprocess.triton.client import TritonClient
from preprocess.triton.http import HttpTriton
from preprocess.triton.member import Server


def _http() -> type[Server]:
    return HttpTriton


def _grpc() -> type[Server]:
    # Only where it is chosen: the import alone costs a worker half a second and 30 MB.
    from preprocess.triton.grpc import GrpcTriton

    return GrpcTriton


TRANSPORTS: dict[str, Callable[[], type[Server]]] = {"http": _http, "grpc": _grpc}

_clients: dict[tuple[str, str], TritonClient] = {}


def shared_client(transport: str, address: str) -> TritonClient:
    """The worker's one client of that address, so that endpoints share connections."""
    key = transport, address
    if key not in _clients:
        _clients[key] = TritonClient(address, TRANSPORTS[transport]())
    return _clients[key]


def close_clients() -> None:
    """Close every kept connection, from whatever thread."""
    while _clients:
        _clients.popitem()[1].close()
