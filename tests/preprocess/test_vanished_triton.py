"""A Triton that is gone without a word, over both transports: its packets dropped, or frozen."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from preprocess.triton import grpc as triton_grpc
from preprocess.triton.client import TritonClient
from preprocess.triton.clients import TRANSPORTS
from preprocess.triton.errors import AwayError
from preprocess.triton.http import HttpTriton
from tests.engine.triton_server import TritonServer, stopped
from tests.preprocess.test_triton_client import (
    OUTPUTS,
    SLOW,
    ask,
    client_of,
    soon,
    texts,
    transport as transport,
    tritons as tritons,
)
from tests.triton_text import VERSION, back
from transformer_serving.contract.errors import ServingError

IPTABLES = shutil.which("iptables") or "/usr/sbin/iptables"
# How long the calls that were on their way may last: three times what the options say.
NOTICED_S = 45


def may_drop() -> bool:
    try:
        return not subprocess.run([IPTABLES, "-w", "-L", "INPUT"], capture_output=True).returncode
    except OSError:
        return False


@contextlib.contextmanager
def dropped(port: int) -> Iterator[None]:
    """Nothing reaches the port or comes back from it, and nobody is told."""
    rules = [["-i", "lo", "-p", "tcp", f"--{end}port", str(port), "-j", "DROP"] for end in "sd"]
    try:
        for rule in rules:
            subprocess.run([IPTABLES, "-w", "-I", "INPUT", *rule], check=True)
        yield
    finally:
        for rule in rules:
            subprocess.run([IPTABLES, "-w", "-D", "INPUT", *rule], check=False)


async def answered(client: TritonClient) -> None:
    """Asks until there is an answer, and says how long that took."""
    returned = time.monotonic()
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(ServingError):
                assert await ask(client, [9], deadline=soon(10)) == [[9, 1]]
                break
            await asyncio.sleep(0.05)
    print(f"answered {time.monotonic() - returned:.2f} s after its return")  # noqa: T201


@pytest.mark.long
@pytest.mark.spare
@pytest.mark.skipif(not may_drop(), reason="dropping packets needs iptables and root")
async def test_packets_are_dropped(transport: str, tritons: list[TritonServer]) -> None:
    """Calls end by their deadline, those without one soon; then the same client goes on."""
    server = tritons[1]
    client = client_of(transport, server)
    await asyncio.gather(*(ask(client, [9]) for _ in range(4)))
    with contextlib.ExitStack() as silence:
        # One has been sent when the network goes, two are sent into nothing. A stopped Triton
        # answers none before.
        with stopped(server):
            computed = asyncio.create_task(ask(client, [SLOW, 9]))
            await asyncio.sleep(0.3)
            silence.enter_context(dropped(getattr(server.addresses, f"{transport}_port")))
        begun = time.monotonic()
        with pytest.raises(ServingError) as caught:
            await ask(client, [9], deadline=soon(0.5))
        assert caught.value.kind.code == "deadline"
        async with asyncio.timeout(NOTICED_S):
            lost = await asyncio.gather(computed, ask(client, [9]), return_exceptions=True)
        print(f"noticed after {time.monotonic() - begun:.1f} s")  # noqa: T201
        assert [one.kind.code for one in lost if isinstance(one, ServingError)] == [
            "unavailable", "unavailable",
        ]  # fmt: skip
    await answered(client)
    client.close()


async def test_a_frozen_one(transport: str, tritons: list[TritonServer]) -> None:
    server = tritons[1]
    client = client_of(transport, server)
    assert await ask(client, [9]) == [[9, 1]]
    with stopped(server):
        for _ in range(3):
            with pytest.raises(ServingError) as caught:
                await ask(client, [9], deadline=soon(0.3))
            assert caught.value.kind.code == "deadline"
    await answered(client)
    client.close()


async def test_pings_do_not_tire_triton(
    monkeypatch: pytest.MonkeyPatch, tritons: list[TritonServer]
) -> None:
    """Calls that take long by far against the time between pings, one after the other."""
    often = {"grpc.keepalive_time_ms": 50, "grpc.keepalive_timeout_ms": 20_000}
    options = tuple((name, often.get(name, value)) for name, value in triton_grpc._OPTIONS)
    monkeypatch.setattr(triton_grpc, "_OPTIONS", options)
    client = client_of("grpc", tritons[1])
    for _ in range(4):
        assert (await ask(client, [SLOW, 9]))[0][1] == 2
    client.close()


async def test_work_that_fells_a_server_counts_as_begun(tritons: list[TritonServer]) -> None:
    """Also on a kept connection, which may as well have been closed while it was idle."""
    server = tritons[1]
    one = HttpTriton(f"127.0.0.1:{server.addresses.http_port}")
    await one.infer("text", VERSION, texts([9]), OUTPUTS)
    # Stopped, it answers nothing before its end.
    with stopped(server):
        felling = asyncio.create_task(one.infer("text", VERSION, texts([SLOW]), OUTPUTS))
        await asyncio.sleep(0.3)
        server.kill()
    with pytest.raises(AwayError) as caught:
        await felling
    assert (caught.value.whole, caught.value.begun) == (True, True)
    with pytest.raises(AwayError) as caught:
        await one.infer("text", VERSION, texts([9]), OUTPUTS)
    assert not caught.value.begun
    one.close()
    await asyncio.to_thread(back, server, "text", "full")


@pytest.mark.parametrize("gone", ["frozen", "refuses"])
async def test_one_that_does_not_answer_holds_up_no_update(
    transport: str, tritons: list[TritonServer], gone: str
) -> None:
    away = tritons[1]
    places = [getattr(server.addresses, transport) for server in tritons]
    if gone == "refuses":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            places[1] = f"127.0.0.1:{listener.getsockname()[1]}"
    client = TritonClient(",".join(places), TRANSPORTS[transport]())
    with stopped(away) if gone == "frozen" else contextlib.nullcontext():
        assert await client.is_ready("text", VERSION)
        assert not await client.is_ready("text", VERSION + 1)
    client.close()
