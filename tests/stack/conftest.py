"""The real stack: `transformer-serving up --demo` on free ports, once a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port_base
from tests.stack.desk import Desk, Registered, register
from tests.stack.editor import Editor, editor
from tests.stack.load import Client, Seen
from transformer_serving.desk.deploy.golden import ask
from transformer_serving.desk.local.record import clearml_environment, require_record
from transformer_serving.desk.local.stack import status
from transformer_serving.gateway.settings import ROOT_ENDPOINT

ROOT = Path(__file__).parent.parent.parent
# What a deploy takes is the machine's, here beside other stacks.
UNHURRIED = {"TRANSFORMER_SERVING_DEPLOY_TIMEOUT_S": "400"}
# On a machine that stands still for seconds its callers wait: a 503 is to mean a change.
PATIENT = {"TRANSFORMER_SERVING_MAX_WAIT_S": "20"}
# The task of the endpoint that `POST /` asks, where there is one of every task.
AT_THE_ROOT = "fill-mask"
# clearml-serving's own command line; it only does not import torch, which takes two seconds.
COMMAND = "transformer_serving.desk.clearml_tools.command"
CLI = str(Path(sys.executable).with_name("transformer-serving"))


@dataclass(frozen=True)
class Stack:
    """A running stack, driven through the command line as a user drives it."""

    state: Path
    base: int
    settings: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command; its stdout, or its stderr when a failure is expected."""
        done = subprocess.run(
            [CLI, *arguments, "--state", str(self.state)],
            cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
            env={**os.environ, **UNHURRIED, **self.settings},
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

    def seen(self, endpoint: str, body: Any) -> Seen:
        """One answer, over a connection of its own."""
        client = Client(self.base)
        try:
            return client.post(endpoint, body)
        finally:
            client.close()

    def environment(self) -> dict[str, str]:
        return {**os.environ, **clearml_environment(require_record(self.state))}

    @property
    def serving_id(self) -> str:
        return self.environment()["CLEARML_SERVING_TASK_ID"]

    def clearml_serving(self, *arguments: str) -> str:
        """The unmodified command line against this stack's service."""
        done = subprocess.run(
            [sys.executable, "-m", COMMAND, "--id", self.serving_id, *arguments],
            env=self.environment(), capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def parts(self) -> dict[str, dict[str, Any]]:
        """The rows of `status` by name; also of a stack that is not well."""
        return {row["name"]: row for row in self.status()["parts"]}

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["endpoint"]: row for row in self.status()["endpoints"]}

    def status(self) -> dict[str, Any]:
        values: dict[str, Any] = status(self.state, require_record(self.state))
        return values

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 180) -> None:
        wait_until(condition, seconds, lambda: f"{what}: {self.status()}")


@contextmanager
def started(folder: Path, *arguments: str, **settings: str) -> Iterator[Stack]:
    """A stack of one's own, gone afterwards."""
    running = Stack(folder, free_port_base(), settings)
    try:
        running.run("up", *arguments, "--port-base", str(running.base))
        yield running
    finally:
        running.run("down")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack of `make up`, with both demo models."""
    with started(tmp_path_factory.mktemp("stack"), "--demo") as running:
        yield running


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack without the demo: what is loaded in it are the tests' own small bundles.

    Its folder has a blank in its path, as that of a user may.
    """
    with started(tmp_path_factory.mktemp("plain stack"), **PATIENT) as running:
        yield running


class EveryTask(NamedTuple):
    """A stack with an endpoint a task, named as in shown_tasks.NAMES; `folder` is bundle_of's."""

    stack: Stack
    folder: Path


@pytest.fixture(scope="session")
def every_task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EveryTask]:
    """Nothing of it is changed: the files that ask it share one process of tests."""
    # It imports torch.
    from tests.stack.shown_tasks import NAMES, deploy_all

    folder = tmp_path_factory.mktemp("tasks")
    settings = {**PATIENT, ROOT_ENDPOINT.name: NAMES[AT_THE_ROOT]}
    with started(tmp_path_factory.mktemp("every-task"), **settings) as running:
        deploy_all(running, folder)
        yield EveryTask(running, folder)


@pytest.fixture(scope="session")
def edit(plain: Stack) -> Iterator[Editor]:
    """Quick changes of what `plain` serves."""
    with editor(plain) as edit:
        yield edit


@pytest.fixture(scope="session")
def registered(plain: Stack, tmp_path_factory: pytest.TempPathFactory) -> list[Registered]:
    """Three bundles, each with an engine of its own, uploaded and ready to be added."""
    return register(plain, tmp_path_factory.mktemp("registered"), (1.0, -1.0, 2.0))


@pytest.fixture(scope="module")
def cleared(plain: Stack, edit: Editor) -> Iterator[Stack]:
    """Afterwards nothing of the module is served any more."""
    yield plain
    edit.clear()
    plain.until(lambda: not plain.rows(), "everything is removed")


@pytest.fixture
def desk(cleared: Stack, tmp_path: Path) -> Desk:
    return Desk(cleared, tmp_path)


@pytest.fixture(scope="session")
def demo() -> Path:
    """The folder of the demo bundles that `up --demo` built."""
    return ROOT / "build" / "demo"
