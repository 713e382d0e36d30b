"""docker/balancer/start.sh beside a haproxy that says what it was started with.

tests/compose/test_stack.py starts the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.stand_in import stand_in
from transformer_serving.gateway.access import TLS_CERT, TLS_CLIENT_CA, TLS_KEY

START = Path(__file__).parent.parent / "docker" / "balancer" / "start.sh"
HAPROXY = """#!/bin/sh
echo "haproxy $*"
"""


@pytest.fixture
def haproxy(tmp_path: Path) -> Path:
    """The folder that it lies in."""
    return stand_in(tmp_path, "haproxy", HAPROXY).parent


def started(haproxy: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the script says until haproxy has taken its place; its watches are ended then."""
    path = f"{haproxy}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", START], env={"PATH": path, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    said, complained = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said, complained)


def test_without_tls_haproxy_takes_over(haproxy: Path) -> None:
    """As compose passes what is not set."""
    done = started(haproxy, {row.name: "" for row in (TLS_CERT, TLS_KEY, TLS_CLIENT_CA)})
    assert done.returncode == 0
    assert done.stdout.startswith("haproxy -W -db ")
    assert done.stderr == ""


def test_callers_certificates_without_tls_open_no_door(haproxy: Path) -> None:
    done = started(haproxy, {TLS_CLIENT_CA.name: "/run/tls/ca.crt", TLS_CERT.name: ""})
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {TLS_CLIENT_CA.name} needs TRANSFORMER_SERVING_TLS_FOLDER")
