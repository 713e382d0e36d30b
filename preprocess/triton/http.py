"""One Triton over HTTP with binary tensors and kept connections.

Protocol: KServe v2 with Triton's binary tensor extension. A JSON header says names, shapes and
byte sizes; the raw little-endian tensors follow it. One connection carries one call at a time.

Tested by tests/preprocess/test_triton_client.py and tests/preprocess/test_triton_replies.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import orjson

from preprocess.tensors import Array, RawOutput, Tensor, read_outputs
from preprocess.triton.connection import Connection, Reply
from preprocess.triton.errors import AwayError, error_of
from preprocess.triton.handed_on import handed_on
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.settings.triton_addresses import is_unix, parts_of

_CONNECT_S = 2.0
_IDLE_CONNECTIONS = 64
# A host that vanishes without a word is given up after about ten seconds, not after hours.
_GIVE_UP = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
# A connection that ended, or one on which something else than HTTP came.
_BROKEN = (OSError, ValueError)


class _TcpConnection(Connection):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        opened = transport.get_extra_info("socket")
        for level, option, value in _GIVE_UP:
            opened.setsockopt(level, option, value)


class HttpTriton:
    """One Triton by its address, an IP with its port or unix:/path; used from one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._idle: dict[asyncio.AbstractEventLoop, list[Connection]] = {}
        self._closed = False

    async def infer(
        self, model: str, version: int, inputs: Sequence[Tensor], outputs: Sequence[OutputTensor]
    ) -> list[Array]:
        """The outputs of exactly that model version. Raises ServingError, AwayError."""
        reply = await self._send(_infer_request(model, version, inputs, outputs))
        if reply.status != 200:
            raise error_of(str(reply.status), _error_text(reply.body))
        try:
            found = _raw_outputs(reply)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ServingError("engine_failed", "the engine's answer cannot be read") from None
        return read_outputs(found, outputs)

    async def is_ready(self, model: str, version: int) -> bool:
        return await self._get(f"/v2/models/{model}/versions/{version}/ready")

    async def is_live(self) -> bool:
        return await self._get("/v2/health/live")

    def close(self) -> None:
        """Close the kept connections, each in its own loop; the others when their call is done."""
        self._closed = True
        for loop, connections in self._idle.items():
            while connections and not loop.is_closed():
                loop.call_soon_threadsafe(connections.pop().close)

    async def _get(self, path: str) -> bool:
        request = f"GET {path} HTTP/1.1\r\nHost: triton\r\n\r\n".encode()
        return (await self._send(request)).status == 200

    async def _send(self, request: bytes) -> Reply:
        """Send on a kept connection; one that Triton closed meanwhile is replaced."""
        begun = False
        while True:
            connection = await self._connection(begun=begun)
            reused = not connection.fresh
            try:
                reply = await connection.call(request)
            except _BROKEN as error:
                connection.close()
                if reused:
                    # Closed while it was idle, or by a server that fell over this very request.
                    begun = True
                    continue
                raise AwayError(
                    "the engine closed the connection", whole=True, begun=True
                ) from error
            except BaseException:
                # Cancelled or late: the answer that is still to come must meet no other call.
                connection.close()
                raise
            self._keep(connection)
            return reply

    async def _connection(self, *, begun: bool) -> Connection:
        idle = self._idle.setdefault(asyncio.get_running_loop(), [])
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
            connection.close()
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._open()
        except (OSError, TimeoutError) as error:
            raise AwayError(
                "the engine does not accept connections", whole=True, begun=begun
            ) from error

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        if is_unix(self.address):
            path = self.address.removeprefix("unix:")
            return (await loop.create_unix_connection(Connection, path))[1]
        # By its address: uvloop's `sock_connect` looks an IP up as it does a name, in one of few
        # threads, all of which wait while no name server answers.
        return (await loop.create_connection(_TcpConnection, *parts_of(self.address)))[1]

    def _keep(self, connection: Connection) -> None:
        idle = self._idle[asyncio.get_running_loop()]
        if len(idle) < _IDLE_CONNECTIONS and connection.usable and not self._closed:
            idle.append(connection)
        else:
            connection.close()


def _infer_request(
    model: str, version: int, inputs: Sequence[Tensor], outputs: Sequence[OutputTensor]
) -> bytes:
    raw = [tensor.raw() for tensor in inputs]
    header = orjson.dumps(
        {
            "inputs": [
                {
                    "name": tensor.name,
                    "shape": tensor.array.shape,
                    "datatype": tensor.dtype,
                    "parameters": {"binary_data_size": len(data)},
                }
                for tensor, data in zip(inputs, raw, strict=True)
            ],
            "outputs": [
                {"name": output.name, "parameters": {"binary_data": True}} for output in outputs
            ],
        }
    )
    size = len(header) + sum(map(len, raw))
    more = "".join([f"{name}: {value}\r\n" for name, value in handed_on.get()])
    head = (
        f"POST /v2/models/{model}/versions/{version}/infer HTTP/1.1\r\n"
        "Host: triton\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"{more}Content-Length: {size}\r\n\r\n"
    ).encode()
    return b"".join((head, header, *raw))


def _raw_outputs(reply: Reply) -> dict[str, RawOutput]:
    """The tensors follow the JSON header in the order in which it names them."""
    at = reply.json_size
    found: dict[str, RawOutput] = {}
    for row in orjson.loads(reply.body[:at])["outputs"]:
        size = int(row.get("parameters", {}).get("binary_data_size", 0))
        found[row["name"]] = RawOutput(row["datatype"], row["shape"], reply.body[at : at + size])
        at += size
    return found


def _error_text(body: memoryview) -> str:
    try:
        return str(orjson.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
