"""docker/entrypoint.py, as Docker runs it: a process of its own, which becomes the program."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "docker" / "entrypoint.py"
REQUIRED = "CLEARML_API_HOST"


def started(host: str, required: str = REQUIRED) -> subprocess.CompletedProcess[str]:
    program = (sys.executable, "-c", "print('the program')")
    environment = {"CLEARML_API_HOST": host, "TRANSFORMER_SERVING_REQUIRED": required}
    return subprocess.run(
        [sys.executable, SCRIPT, *program], env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3"])
def test_the_desks_own_address_is_the_containers_and_ends_it(host: str, port: int) -> None:
    """As a shell has it that has read `transformer-serving env` or that of the local profile."""
    ended = started(f"http://{host}:{port}")
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: CLEARML_API_HOST is an address of the container itself")
    assert "a shell that has no CLEARML_ variables" in line


def test_a_server_in_the_hosts_network_is_asked_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert started(address).stdout == "the program\n"


@pytest.mark.parametrize(
    "host", ["http://control-plane:8008", "https://api.clear.ml", "http://192.0.2.1:1", "nonsense"]
)
def test_other_addresses_are_the_sdks_to_judge(host: str) -> None:
    assert started(host).stdout == "the program\n"


def test_the_control_planes_own_container_asks_itself(port: int) -> None:
    assert started(f"http://127.0.0.1:{port}", required="").stdout == "the program\n"
