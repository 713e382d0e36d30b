"""What is known of a request is not known of the next one, which uvicorn may start in its context:
of requests that were sent at once, and on asyncio's own loop after a body of more than 64 KiB.
"""

from __future__ import annotations

import socket
from contextvars import ContextVar, copy_context
from typing import Any, Literal

import orjson
import pytest
from starlette.responses import Response

from tests.bench.served import served
from tests.gateway.played_host import Ours, Processor, host_of
from transformer_serving.contract.worker import request_context
from transformer_serving.contract.worker.request_context import begin_request, current_request
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.settings import read_settings

VARIABLES: list[ContextVar[Any]] = [
    variable for variable in vars(request_context).values() if isinstance(variable, ContextVar)
]


class Speaks(Ours):
    operations = frozenset({"openai.embeddings"})


class HostsApp:
    """Says at any path what is known of the request."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        known = {one.name: repr(one.get()) for one in VARIABLES if one.get() is not None}
        await send({"type": "http.response.start", "status": 200, "headers": [length(known)]})
        await send({"type": "http.response.body", "body": orjson.dumps(known)})


def length(answer: Any) -> tuple[bytes, bytes]:
    return b"content-length", str(len(orjson.dumps(answer))).encode()


def gateway() -> FrontDoor:
    processor = Processor({"ours": Response(b"{}")})
    processor.changed()
    processor.built("ours", Speaks())
    host = host_of(processor)
    host.app = HostsApp()
    return FrontDoor(host, read_settings({}))


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: of{path.replace('/', '-')}\r\n"
    kind = "Content-Type: application/json\r\n"
    return f"{head}{kind}Content-Length: {len(body)}\r\n\r\n".encode() + body


def answer(stream: Any) -> Any:
    size = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        size = int(value) if name.lower() == b"content-length" else size
    return orjson.loads(stream.read(size))


NAMED = b'{"model": "ours", "input": "%b"}'
IN_ANOTHER_DIALECT = {
    "sent at once": request("/v1/embeddings", NAMED % b"a"),
    "after a long body": request("/v1/embeddings", NAMED % (b"a" * 100_000)),
}


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("first", sorted(IN_ANOTHER_DIALECT))
def test_the_next_request_of_a_connection_is_its_own(
    first: str, loop: Literal["uvloop", "asyncio"]
) -> None:
    nexts = request("/serve/ours", b"{no json"), request("/elsewhere", b"")
    with served(gateway(), loop=loop) as port:
        for next_one, told in zip(nexts, ("malformed_body", None), strict=True):
            with (
                socket.create_connection(("127.0.0.1", port)) as opened,
                opened.makefile("rb") as f,
            ):
                if first == "sent at once":
                    opened.sendall(IN_ANOTHER_DIALECT[first] + next_one)
                    assert answer(f) == {}
                else:
                    opened.sendall(IN_ANOTHER_DIALECT[first])
                    assert answer(f) == {}
                    opened.sendall(next_one)
                said = answer(f)
            if told is None:
                assert said == {current_request.name: "('of-elsewhere', None)"}
            else:
                assert said.get("code") == told, said


def test_a_request_begins_with_nothing_of_another() -> None:
    def run() -> None:
        begin_request(("first", None), None)
        for variable in VARIABLES:
            if variable is not current_request:
                variable.set("of the first")
        begin_request(("second", None), ("openai.embeddings", b""))
        known = {one.name: one.get() for one in VARIABLES if one.get() is not None}
        assert known == {
            current_request.name: ("second", None),
            request_context.current_operation.name: ("openai.embeddings", b""),
        }

    copy_context().run(run)
