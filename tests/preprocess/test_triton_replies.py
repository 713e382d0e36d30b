"""Whatever comes back from where Triton should be: an answer, or an error of the table."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from preprocess.tensors import Tensor
from preprocess.triton.errors import AwayError, error_of
from preprocess.triton.grpc import GrpcTriton
from preprocess.triton.http import HttpTriton
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError

OUTPUTS = (OutputTensor("output", "FP32", (2,)),)
INPUTS = [Tensor("input_ids", "INT32", np.ones((1, 3), np.int32))]
TENSOR = np.array([[1.5, -2.0]], np.float32).tobytes()
HEADER = (
    b'{"outputs":[{"name":"output","datatype":"FP32","shape":[1,2],'
    b'"parameters":{"binary_data_size":8}}]}'
)


def reply(header: bytes, tensor: bytes, status: bytes = b"200 OK") -> bytes:
    return (
        b"HTTP/1.1 " + status + b"\r\nInference-Header-Content-Length: %d\r\n" % len(header)
        + b"Content-Length: %d\r\n\r\n" % (len(header) + len(tensor)) + header + tensor
    )  # fmt: skip


async def asked(raw: bytes) -> list[list[float]] | str:
    """What one call becomes when these bytes are the answer, after which the peer closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    triton = HttpTriton(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with asyncio.timeout(60):
            (output,) = await triton.infer("text", 1, INPUTS, OUTPUTS)
        found: list[list[float]] = output.tolist()
        return found
    except ServingError as error:
        return error.kind.code
    finally:
        triton.close()
        server.close()


def test_the_good_one() -> None:
    assert asyncio.run(asked(reply(HEADER, TENSOR))) == [[1.5, -2.0]]


LINES = [b"", b"HTTP/1.1", b"\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"\xff" * 99]
HEADERS = [
    b"", b"null", b"[]", b"{}", b'{"outputs": 1}', b'{"outputs": [1]}', b'{"outputs": [{}]}',
    HEADER.replace(b"[1,2]", b"[2,2]"), HEADER.replace(b"[1,2]", b'"ab"'),
    HEADER.replace(b"[1,2]", b"[1,null]"), HEADER.replace(b"FP32", b"BYTES"),
    HEADER.replace(b":8", b":-8"), HEADER.replace(b":8", b':"x"'), HEADER.replace(b":8", b":[]"),
    HEADER.replace(b"{\"binary_data_size\":8}", b"1"), HEADER.replace(b'"output"', b"[1]"),
]  # fmt: skip


def test_lines_and_headers_of_others() -> None:
    codes = {asyncio.run(asked(line)) for line in LINES} | {
        asyncio.run(asked(reply(header, TENSOR))) for header in HEADERS
    }
    assert codes <= {"unavailable", "engine_failed"}


@settings(max_examples=150)
@given(st.data())
def test_broken_anywhere(data: st.DataObject) -> None:
    good = reply(HEADER, TENSOR)
    at = data.draw(st.integers(0, len(good) - 1))
    end = data.draw(st.integers(at, min(len(good), at + 20)))
    raw = good[:at] + data.draw(st.binary(max_size=20)) + good[end:]
    outcome = asyncio.run(asked(raw))
    assert isinstance(outcome, list) or outcome in (
        "unavailable", "engine_failed", "overloaded", "deadline",
    )  # fmt: skip


@pytest.mark.parametrize("status", ["UNAVAILABLE", "503"])
@pytest.mark.parametrize(
    "text",
    [
        "Request for unknown model: 'text' version 5 is not at ready state",
        "Request for unknown model: 'text' has no available versions",
    ],
)
def test_a_model_that_loads_sets_no_triton_aside(status: str, text: str) -> None:
    """gRPC's UNAVAILABLE is of servers that are gone, too."""
    error = error_of(status, text)
    assert isinstance(error, AwayError)
    assert not error.whole
    assert not error.begun
    assert "text" not in error.message


async def test_a_port_that_accepts_and_closes_is_a_server_that_is_away() -> None:
    """A balancer with nothing behind it; what gRPC says of it has words of an own UNAVAILABLE."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    triton = GrpcTriton(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for asked in (triton.is_ready("text", 1), triton.infer("text", 1, INPUTS, OUTPUTS)):
        with pytest.raises(AwayError) as caught:
            await asked
        assert (caught.value.whole, caught.value.begun) == (True, False)
    triton.close()
    server.close()


def test_what_a_backend_says_of_itself_sets_no_triton_aside() -> None:
    error = error_of("UNAVAILABLE", "UNAVAILABLE: the model is not able to work")
    assert isinstance(error, AwayError)
    assert not error.whole
