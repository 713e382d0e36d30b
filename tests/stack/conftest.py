"""The real stack: `transformer-serving up --demo` on free ports, once a session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from transformer_serving.golden import ask

ROOT = Path(__file__).parent.parent.parent
CLI = str(Path(sys.executable).with_name("transformer-serving"))


def free_port_base() -> int:
    """The first of five free ports in a row."""
    for base in range(20_000 + os.getpid() % 20_000, 60_000, 7):
        try:
            for port in range(base, base + 5):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no five free ports in a row")


@dataclass(frozen=True)
class Stack:
    """A running stack, driven through the command line as a user drives it."""

    state: Path
    base: int

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command; its stdout, or its stderr when a failure is expected."""
        done = subprocess.run(
            [CLI, *arguments, "--state", str(self.state)],
            cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def url(self, endpoint: str) -> str:
        return f"http://127.0.0.1:{self.base}/serve/{endpoint}"

    def post(self, endpoint: str, body: Any) -> tuple[int, Any]:
        reply = ask(self.url(endpoint), body)
        return reply.status, reply.body

    def environment(self) -> dict[str, str]:
        values: dict[str, str] = self.json("env")
        return {**os.environ, **values}

    def clearml_serving(self, *arguments: str) -> str:
        """The unmodified command line against this stack."""
        done = subprocess.run(
            [sys.executable, "-m", "clearml_serving", *arguments],
            env=self.environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = Stack(tmp_path_factory.mktemp("stack"), free_port_base())
    try:
        running.run("up", "--demo", "--port-base", str(running.base))
        yield running
    finally:
        running.run("down")


@pytest.fixture(scope="session")
def demo() -> Path:
    """The folder of the demo bundles that `up --demo` built."""
    return ROOT / "build" / "demo"
