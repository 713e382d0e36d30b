"""One name of several Tritons, by the system's own resolver: they share, vanish, return, appear."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.triton_server import TritonServer, running_triton, wait_until
from tests.free_ports import free_ports
from tests.preprocess.test_triton_client import ROOT
from tests.triton_text import back, client_of, load, write_model
from transformer_serving.engine.triton_process import TritonAddresses

HOSTS = ("127.0.0.2", "127.0.0.3")
NAME = "tritons.test"
# A worker whose endpoints name two services of Tritons, while no name server answers. It leaves
# without waiting for those who look up, which nothing ends.
NAMELESS = """
import asyncio, os, sys
from preprocess.triton.client import TritonClient
from preprocess.triton.http import HttpTriton

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

async def main():
    port = (await asyncio.start_server(answer, "127.0.0.1", 0)).sockets[0].getsockname()[1]
    named = [TritonClient(f"{name}.test:8000") for name in ("one", "two")]
    looks = [asyncio.create_task(client.is_ready("text", 1)) for client in named]
    await asyncio.sleep(0.1)
    try:
        print("live", await HttpTriton(f"127.0.0.1:{port}").is_live(), flush=True)
    finally:
        print([look.done() for look in looks], flush=True)
        os._exit(0)

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


def may_have_own_hosts() -> bool:
    try:
        return not subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode
    except OSError:
        return False


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TritonServer]]:
    """Two Tritons on two addresses, with the same ports, as the hosts of one name have them."""
    folder = tmp_path_factory.mktemp("pair")
    http, grpc, metrics = free_ports(3)
    first, second = (TritonAddresses(http, grpc, metrics, host=host) for host in HOSTS)
    with (
        running_triton(folder / "one", addresses=first) as one,
        running_triton(folder / "two", addresses=second) as two,
    ):
        for server in (one, two):
            write_model(server.repository, "text", 2)
            load(server, "text")
        yield [one, two]


class Caller:
    """A process that calls the name's Tritons, with a hosts file of its own."""

    def __init__(self, hosts: Path, address: str, transport: str) -> None:
        self.hosts = hosts
        inside = [sys.executable, "-m", "tests.preprocess.named_tritons", address, transport]
        mounted = f"mount --bind {shlex.quote(str(hosts))} /etc/hosts && exec {shlex.join(inside)}"
        self.process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", mounted],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def name(self, *addresses: str) -> None:
        """What the name leads to from now on; written in place, because the file is mounted."""
        rows = "".join(f"{address} {NAME}\n" for address in addresses)
        self.hosts.write_text(f"127.0.0.1 localhost\n{rows}")

    def look(self) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def until(self, seen: Callable[[Any], bool]) -> Any:
        """The first look that has it."""
        last: list[Any] = []

        def found() -> bool:
            last[:] = [self.look()]
            return seen(last[0])

        wait_until(found, 120, lambda: str(last))
        return last[0]


def calls(server: TritonServer) -> int:
    """Answered by this very Triton, as it counts itself."""
    with client_of(server) as client:
        statistics = client.get_inference_statistics("text")
    return int(statistics.model_stats[0].inference_stats.success.count)


@pytest.mark.skipif(
    not may_have_own_hosts(), reason="a hosts file of its own needs unshare and root"
)
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_hosts_of_a_name_come_and_go(
    transport: str, pair: list[TritonServer], tmp_path: Path
) -> None:
    port = getattr(pair[0].addresses, f"{transport}_port")
    first, second = (f"{host}:{port}" for host in HOSTS)
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{HOSTS[0]} {NAME}\n")
    caller = Caller(hosts, f"{NAME}:{port}", transport)
    try:
        caller.until(lambda look: look["known"] == [first] and look["answered"] > 20)

        caller.name(*HOSTS)  # a new address appears
        caller.until(lambda look: look["known"] == [first, second] and look["here"] == 2)
        shares = [calls(server) for server in pair]
        seen = caller.look()["answered"]
        seen = caller.until(lambda look: look["answered"] > seen + 100)["answered"]
        shares = [calls(server) - before for server, before in zip(pair, shares, strict=True)]
        assert min(shares) > sum(shares) / 10, shares

        pair[1].kill()  # one vanishes, its name stays
        caller.until(lambda look: look["here"] == 1 and look["answered"] > seen + 200)
        back(pair[1], "text")
        caller.until(lambda look: look["here"] == 2)

        caller.name(HOSTS[1])  # the name of the other one goes
        seen = caller.until(lambda look: look["known"] == [second])["answered"]
        look = caller.until(lambda look: look["answered"] > seen + 50)
        assert look["refused"] == {}
    finally:
        caller.process.kill()
        caller.process.communicate()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_known_triton_is_reached_while_no_name_can_be_looked_up(
    loop: str, tmp_path: Path
) -> None:
    """What a loop looks names up with has few threads: a connection to an IP must need none."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a name server that does not answer needs a C compiler")
    library = tmp_path / "hanging_names.so"
    source = Path(__file__).with_name("hanging_names.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS, loop], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "LD_PRELOAD": str(library)}, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["live True", "[False, False]"], done.stderr
