"""The real process: its addresses, its log, its refusals to start."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil
import pytest
import requests
from hypothesis import HealthCheck, given, settings, strategies

if TYPE_CHECKING:
    from tests.control_plane.conftest import ServerProcess


@pytest.mark.parametrize("path", ["per%20cent/%41", "100%", "plus+and&more=1?#x", "~tilde/é"])
def test_names_with_url_letters(server: ServerProcess, path: str) -> None:
    session = server.session()
    assert session.post(server.url, files={path: ("x", b"content")}).json() == [path]
    assert session.get(f"{server.url}/{quote(path)}").content == b"content"


@pytest.fixture(scope="module")
def token(server: ServerProcess) -> str:
    return str(server.session().headers["Authorization"])


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=strategies.lists(
        strategies.sampled_from(
            ["..", ".", "%2e%2e", "%2f", "..%2f..", "%00", "etc", "passwd", "", "%c0%ae", "..\\"]
        ),
        max_size=8,
    )
)
def test_no_url_reads_outside_the_store(
    server: ServerProcess, token: str, pieces: list[str]
) -> None:
    # http.client sends the path as it is, where other clients would shorten it.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/f/" + "/".join(pieces), headers={"Authorization": token})
    assert connection.getresponse().status in (400, 404)
    connection.close()


def test_listens_on_the_loopback_only(server: ServerProcess) -> None:
    connections = psutil.Process(server.pid).net_connections("inet")
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_no_secret_in_log_or_command_line(server: ServerProcess) -> None:
    wrong = "secret-that-is-wrong"
    requests.get(f"{server.url}/auth.login", auth=("access-of-the-test", wrong))
    session = server.session()
    session.get(f"{server.url}/v2.23/tasks.get_by_id", json={"task": "confidential-value"})
    command = " ".join(psutil.Process(server.pid).cmdline())
    for text in ("secret-of-the-test", wrong, "confidential-value", "Bearer"):
        assert text not in server.log()
        assert text not in command


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRANSFORMER_SERVING")}
    return subprocess.run(
        [sys.executable, "-m", "transformer_serving.control_plane", *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_refuses_to_start_without_keys_and_on_a_folder_in_use(server: ServerProcess) -> None:
    with tempfile.TemporaryDirectory() as folder:
        refused = _run(f"--data={folder}")
    assert refused.returncode == 1
    assert "TRANSFORMER_SERVING_ACCESS_KEY is empty" in refused.stderr
    keys = {"TRANSFORMER_SERVING_ACCESS_KEY": "a", "TRANSFORMER_SERVING_SECRET_KEY": "b"}
    refused = _run(f"--data={server.data}", **keys)
    assert refused.returncode == 1
    assert "in use by another control plane" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_refuses_a_port_in_use(server: ServerProcess) -> None:
    keys = {"TRANSFORMER_SERVING_ACCESS_KEY": "a", "TRANSFORMER_SERVING_SECRET_KEY": "b"}
    with tempfile.TemporaryDirectory() as folder:
        refused = _run(f"--data={folder}", f"--port={server.port}", **keys)
    assert refused.returncode != 0
    assert "address already in use" in refused.stderr
