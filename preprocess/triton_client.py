"""Triton's HTTP protocol with binary tensors over kept connections, on asyncio streams.

Protocol: KServe v2 with Triton's binary tensor extension. A JSON header says names, shapes and
byte sizes; the raw little-endian tensors follow it. One connection carries one call at a time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.endpoint import OutputTensor
from contract.errors import ServingError
from preprocess.triton_errors import error_of

Array = np.ndarray[Any, Any]

_CONNECT_S = 2.0
_IDLE_CONNECTIONS = 64
_MAX_HEAD = 65_536

_clients: dict[str, TritonClient] = {}


@dataclass(frozen=True)
class Tensor:
    """One input tensor; `dtype` is Triton's name and matches the array's."""

    name: str
    dtype: str
    array: Array


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class _Connection:
    """A kept connection; `fresh` until its first call has been answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.fresh = True

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    async def call(self, request: bytes) -> _Reply:
        self.writer.write(request)
        await self.writer.drain()
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        self.fresh = False
        return _Reply(int(first.split(" ", 2)[1]), headers, body)


class TritonClient:
    """One Triton by its address; keeps idle connections for each event loop it is used from."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._idle: dict[asyncio.AbstractEventLoop, list[_Connection]] = {}

    async def infer(
        self,
        model: str,
        version: int,
        inputs: list[Tensor],
        outputs: Sequence[OutputTensor],
        deadline: float,
    ) -> list[Array]:
        """The outputs of exactly that model version, first axis the batch: float32 or integers.

        Raises ServingError: `unavailable`, `overloaded`, `deadline` or `engine_failed`.
        """
        request = self._request(model, version, inputs, outputs)
        left = deadline - time.monotonic()
        if left <= 0:
            raise _too_late()
        try:
            async with asyncio.timeout(left):
                reply = await self._send(request)
        except TimeoutError:
            raise _too_late() from None
        if reply.status != 200:
            raise error_of(reply.status, reply.body)
        return _read_outputs(reply, outputs)

    async def is_ready(self, model: str, version: int) -> bool:
        """Whether Triton has loaded exactly that version; False also when it does not answer."""
        head = f"GET /v2/models/{model}/versions/{version}/ready HTTP/1.1\r\nHost: triton\r\n\r\n"
        try:
            async with asyncio.timeout(_CONNECT_S):
                return (await self._send(head.encode())).status == 200
        except (TimeoutError, ServingError):
            return False

    def close(self) -> None:
        """Close the kept connections, each in its own loop."""
        for loop, connections in self._idle.items():
            while connections and not loop.is_closed():
                loop.call_soon_threadsafe(connections.pop().writer.close)

    async def _send(self, request: bytes) -> _Reply:
        """Send on a kept connection; one that Triton closed meanwhile is replaced once."""
        while True:
            connection = await self._connection()
            reused = not connection.fresh
            try:
                reply = await connection.call(request)
            except (OSError, EOFError, asyncio.LimitOverrunError) as error:
                connection.writer.close()
                if reused:
                    continue
                raise _unavailable("closed the connection") from error
            except BaseException:
                # Cancelled or late: the answer that is still to come must meet no other call.
                connection.writer.close()
                raise
            self._keep(connection)
            return reply

    async def _connection(self) -> _Connection:
        idle = self._idle.setdefault(asyncio.get_running_loop(), [])
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
            connection.writer.close()
        try:
            async with asyncio.timeout(_CONNECT_S):
                return _Connection(*await self._open())
        except (OSError, TimeoutError) as error:
            raise _unavailable("does not accept connections") from error

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.startswith("unix:"):
            path = self.address.removeprefix("unix:")
            return await asyncio.open_unix_connection(path, limit=_MAX_HEAD)
        host, _, port = self.address.removeprefix("http://").rstrip("/").rpartition(":")
        return await asyncio.open_connection(host, int(port), limit=_MAX_HEAD)

    def _keep(self, connection: _Connection) -> None:
        idle = self._idle[asyncio.get_running_loop()]
        if len(idle) < _IDLE_CONNECTIONS and connection.usable:
            idle.append(connection)
        else:
            connection.writer.close()

    def _request(
        self, model: str, version: int, inputs: list[Tensor], outputs: Sequence[OutputTensor]
    ) -> bytes:
        raw = [np.ascontiguousarray(tensor.array).tobytes() for tensor in inputs]
        header = json.dumps(
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
        ).encode()
        size = len(header) + sum(map(len, raw))
        head = (
            f"POST /v2/models/{model}/versions/{version}/infer HTTP/1.1\r\n"
            "Host: triton\r\n"
            "Content-Type: application/octet-stream\r\n"
            f"Inference-Header-Content-Length: {len(header)}\r\n"
            f"Content-Length: {size}\r\n\r\n"
        ).encode()
        return b"".join((head, header, *raw))


def shared_client(address: str) -> TritonClient:
    """The worker's one client of that address, so that endpoints share connections."""
    if address not in _clients:
        _clients[address] = TritonClient(address)
    return _clients[address]


def close_clients() -> None:
    """Close every kept connection, from whatever thread."""
    while _clients:
        _clients.popitem()[1].close()


def _read_outputs(reply: _Reply, outputs: Sequence[OutputTensor]) -> list[Array]:
    """The tensors follow the JSON header in the order in which it names them."""
    size = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    found: dict[str, Array] = {}
    for row in json.loads(reply.body[:size])["outputs"]:
        length = int(row.get("parameters", {}).get("binary_data_size", 0))
        raw, size = reply.body[size : size + length], size + length
        wanted = next((tensor.dtype for tensor in outputs if tensor.name == row["name"]), None)
        if wanted is not None and wanted == row["datatype"]:
            found[row["name"]] = _to_array(raw, wanted).reshape(row["shape"])
    for tensor in outputs:
        if tensor.name not in found:
            raise ServingError(
                "engine_failed",
                "an output of the engine is not as endpoint.json says; deploy the bundle again",
                field=tensor.name,
                limit=tensor.dtype,
            )
        if not np.isfinite(found[tensor.name]).all():
            raise ServingError(
                "engine_failed", "the engine answered with a value that is no number"
            )
    return [found[tensor.name] for tensor in outputs]


_WIRE = {"FP16": "<f2", "FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}


def _to_array(raw: bytes, dtype: str) -> Array:
    """Integers as they are, every float as float32."""
    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    array = np.frombuffer(raw, _WIRE[dtype])
    return array.astype(np.float32) if dtype == "FP16" else array


def _unavailable(what: str) -> ServingError:
    return ServingError("unavailable", f"the engine {what}; try again shortly")


def _too_late() -> ServingError:
    return ServingError("deadline", "the answer did not come before the request's deadline")
