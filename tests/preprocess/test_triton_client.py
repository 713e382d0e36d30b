"""One Triton and several, by both transports: the same calls, and servers that come and go."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocess.tensors import Tensor
from preprocess.triton import client as triton_client
from preprocess.triton.client import TritonClient
from preprocess.triton.clients import TRANSPORTS
from tests.engine.triton_server import TritonServer, running_triton
from tests.proxies import proxy_of_the_environment
from tests.triton_text import VERSION, back, load, write_model
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError

OUTPUTS = (OutputTensor("output", "FP32", (2,)),)
FAIL, SLOW = 5, 6
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TritonServer]]:
    folder = tmp_path_factory.mktemp("tritons")
    with running_triton(folder / "one") as one, running_triton(folder / "two") as two:
        for server in (one, two):
            write_model(server.repository, "text", 2)
            write_model(server.repository, "full", 2, max_queue_size=1)
            load(server, "text", "full")
        yield [one, two]


@pytest.fixture(params=["http", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def address(transport: str, *servers: TritonServer) -> str:
    return ",".join(
        f"{server.addresses.host}:{getattr(server.addresses, f'{transport}_port')}"
        for server in servers
    )


def client_of(transport: str, *servers: TritonServer) -> TritonClient:
    return TritonClient(address(transport, *servers), TRANSPORTS[transport]())


def texts(*rows: list[int]) -> list[Tensor]:
    ids = np.array(rows, np.int32)
    return [
        Tensor("input_ids", "INT32", ids),
        Tensor("attention_mask", "INT32", np.ones_like(ids)),
    ]


def soon(seconds: float = 120) -> float:
    return time.monotonic() + seconds


async def ask(client: TritonClient, *rows: list[int], model: str = "text", **options: Any) -> Any:
    version = options.get("version", VERSION)
    (output,) = await client.infer(
        model, version, texts(*rows), OUTPUTS, options.get("deadline", soon())
    )
    return output.tolist()


def servers(client: TritonClient, model: str = "text") -> int:
    """How many may be called for it."""
    return client.slots(model, VERSION, 1)


async def test_rows_of_exactly_that_version(transport: str, tritons: list[TritonServer]) -> None:
    client = client_of(transport, tritons[0])
    assert await ask(client, [10, 20], [30, 40]) == [[50, 2], [110, 2]]
    wide = [list(range(7, 407))] * 32
    assert (
        await ask(client, *wide)
        == [[sum(i * n for i, n in enumerate(wide[0], 1)) % 65521, 400]] * 32
    )
    assert await client.is_ready("text", VERSION)
    assert not await client.is_ready("text", VERSION + 1)
    client.close()


@pytest.mark.parametrize(
    ("options", "rows", "code"),
    [
        ({}, [[FAIL, 8]], "engine_failed"),
        ({"version": 78}, [[8]], "unavailable"),
        ({"model": "nothing"}, [[8]], "unavailable"),
        ({}, [[8]] * 33, "engine_failed"),
    ],
)
async def test_errors(
    transport: str, tritons: list[TritonServer], options: Any, rows: Any, code: str
) -> None:
    client = client_of(transport, tritons[0])
    with pytest.raises(ServingError) as caught:
        await ask(client, *rows, **options)
    assert caught.value.kind.code == code
    assert await ask(client, [8]) == [[8, 1]]
    client.close()


async def test_deadline(transport: str, tritons: list[TritonServer]) -> None:
    client = client_of(transport, tritons[0])
    with pytest.raises(ServingError) as caught:
        await ask(client, [SLOW], deadline=soon(0.1))
    assert caught.value.kind.code == "deadline"
    assert await ask(client, [8]) == [[8, 1]]
    client.close()


async def test_a_full_queue(transport: str, tritons: list[TritonServer]) -> None:
    client = client_of(transport, tritons[0])
    codes: Counter[str] = Counter()
    # Again where the machine stood still for so long that each found the queue empty.
    while "overloaded" not in codes:
        calls = [ask(client, [SLOW] * length, model="full") for length in range(1, 7)]
        for one in await asyncio.gather(*calls, return_exceptions=True):
            codes[one.kind.code if isinstance(one, ServingError) else type(one).__name__] += 1
        assert codes.keys() <= {"overloaded", "list"}, codes
        assert codes["list"] >= 1
        assert codes.total() < 60, codes
    client.close()


async def test_two_share_the_calls_and_one_may_go(
    transport: str, tritons: list[TritonServer]
) -> None:
    client = client_of(transport, *tritons)
    await asyncio.gather(*(ask(client, [SLOW, 9]) for _ in range(2)))
    picked = [client._pick(("text", VERSION), set()) for _ in range(2)]
    turns = Counter(id(member.server) for member in picked)
    assert sum(turns.values()) == 2
    await asyncio.gather(*(ask(client, [SLOW, at]) for at in range(10, 16)))
    assert servers(client) == 2

    stop = asyncio.Event()
    refused: list[ServingError] = []
    answered = 0

    async def load_of_one() -> None:
        nonlocal answered
        while not stop.is_set():
            try:
                assert await ask(client, [9, 8]) == [[25, 2]]
                answered += 1
            except ServingError as error:
                refused.append(error)
            await asyncio.sleep(0)

    loads = [asyncio.create_task(load_of_one()) for _ in range(8)]
    await until(lambda: answered > 50)
    gone = tritons[1]
    gone.kill()
    seen = answered
    await until(lambda: answered > seen + 200 and servers(client) == 1)
    await asyncio.to_thread(back, gone, "text", "full")
    await until(lambda: servers(client) == 2)
    stop.set()
    await asyncio.gather(*loads)
    # A call that was on its way is asked again of the other one.
    assert not refused
    client.close()


async def test_one_that_lacks_the_model_is_not_asked_for_it(
    transport: str, tritons: list[TritonServer]
) -> None:
    here, other = tritons
    write_model(here.repository, "lone", 2)
    await asyncio.to_thread(load, here, "lone")
    client = client_of(transport, here, other)
    assert (
        await asyncio.gather(*(ask(client, [9], model="lone") for _ in range(20)))
        == [[[9, 1]]] * 20
    )
    assert servers(client) == 2
    # The other one is no place for calls of it.
    assert servers(client, "lone") == 1
    assert await ask(client, [9]) == [[9, 1]]
    # An update waits for all of them, but not for ever.
    assert not await client.is_ready("lone", VERSION)
    client._partly_ready["lone", VERSION] -= 2 * triton_client._PATIENCE_S
    assert await client.is_ready("lone", VERSION)
    client.close()


async def test_only_what_is_asked_for_is_looked_for_again(
    transport: str, tritons: list[TritonServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that was replaced is asked for no more, and never back where it was lacking."""
    here, other = tritons
    write_model(here.repository, "retired", 2)
    await asyncio.to_thread(load, here, "retired")
    client = client_of(transport, here, other)
    await asyncio.gather(*(ask(client, [9], model="retired") for _ in range(20)))
    [lacking] = [member for member in client._members.values() if member.aside]
    retired, own = ("retired", VERSION), lacking.server.is_ready
    looked: list[tuple[str, int]] = []

    async def is_ready(model: str, version: int) -> bool:
        looked.append((model, version))
        return await own(model, version)

    monkeypatch.setattr(lacking.server, "is_ready", is_ready)
    await until(lambda: not client._tasks)
    looked.clear()
    lacking.aside[retired] = 0.0
    for _ in range(5):
        assert await ask(client, [9]) == [[9, 1]]
    await until(lambda: not client._tasks)
    assert not looked
    assert await ask(client, [9], model="retired") == [[9, 1]]
    await until(lambda: not client._tasks)
    assert looked == [retired]
    lacking.aside[retired] = time.monotonic() - 2 * triton_client._FORGOTTEN_AFTER_S
    with pytest.raises(ServingError):
        await ask(client, [9], model="nothing")
    assert set(lacking.aside) == {("nothing", VERSION)}
    client.close()


async def test_nobody_there_and_back_again(transport: str, tritons: list[TritonServer]) -> None:
    server = tritons[1]
    client = client_of(transport, server)
    assert await ask(client, [9]) == [[9, 1]]
    server.kill()
    for _ in range(3):
        with pytest.raises(ServingError) as caught:
            await ask(client, [9])
        assert (caught.value.kind.code, caught.value.kind.retry_after_s) == ("unavailable", 2)
    assert not await client.is_ready("text", VERSION)
    await asyncio.to_thread(back, server, "text", "full")
    returned = time.monotonic()
    while True:
        try:
            assert await ask(client, [9]) == [[9, 1]]
            break
        except ServingError:
            await asyncio.sleep(0.01)
    print(f"answered {time.monotonic() - returned:.2f} s after the engine's return")  # noqa: T201
    assert await client.is_ready("text", VERSION)
    client.close()


async def test_a_name_of_several_hosts(
    monkeypatch: pytest.MonkeyPatch, tritons: list[TritonServer]
) -> None:
    """The name's answers change: servers join and leave."""
    port = tritons[0].addresses.http_port
    hosts = ["127.0.0.1", "127.0.0.2"]

    async def getaddrinfo(host: str, port: int, *, type: int) -> Any:
        assert host == "triton"
        if not hosts:
            raise socket.gaierror
        six = (socket.AF_INET6, type, 6, "", ("::1", port, 0, 0))
        return [six, *((socket.AF_INET, type, 6, "", (host, port)) for host in hosts)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(triton_client, "_RESOLVE_EVERY_S", 0.05)
    client = TritonClient(f"triton:{port}")
    # Nothing listens on the second address: it is set aside.
    for _ in range(4):
        assert await ask(client, [9]) == [[9, 1]]
    assert sorted(client._members) == [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
    assert servers(client) == 1
    hosts.remove("127.0.0.2")
    await until_asked(client, lambda: list(client._members) == [f"127.0.0.1:{port}"])
    hosts.clear()  # the name service is gone: what was known stays
    for _ in range(5):
        await asyncio.sleep(0.02)
        assert await ask(client, [9]) == [[9, 1]]
    client.close()


async def test_a_unix_socket(tmp_path: Path, tritons: list[TritonServer]) -> None:
    """Triton listens on one as well; here what comes is carried to its port."""
    port = tritons[0].addresses.http_port

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_triton, from_triton = await asyncio.open_connection("127.0.0.1", port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while piece := await source.read(65536):
                    target.write(piece)
            finally:
                target.close()

        await asyncio.gather(copy(reader, from_triton), copy(to_triton, writer))

    path = tmp_path / "triton"
    server = await asyncio.start_unix_server(carry, path)
    client = TritonClient(f"unix:{path}")
    assert await asyncio.gather(*(ask(client, [9, at]) for at in range(10, 20))) == [
        [[9 + 2 * at, 2]] for at in range(10, 20)
    ]
    client.close()
    server.close()


async def test_a_proxy_of_the_environment_is_not_asked(
    transport: str, tritons: list[TritonServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_of_the_environment(monkeypatch) as came:
        client = client_of(transport, tritons[0])
        assert await ask(client, [9]) == [[9, 1]]
        client.close()
    assert came == []


async def test_a_name_that_nobody_knows() -> None:
    client = TritonClient("no-such-host.invalid:8000")
    with pytest.raises(ServingError, match="address is not known") as caught:
        await ask(client, [9])
    assert caught.value.kind.status == 503


def test_grpc_is_imported_only_when_chosen() -> None:
    code = "import preprocess.handover, sys; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


async def until(condition: Any, seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def until_asked(client: TritonClient, condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await ask(client, [9])
            await asyncio.sleep(0.02)
