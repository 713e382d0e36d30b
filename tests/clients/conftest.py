"""One stack with an endpoint for each task, named like it, for unmodified clients to ask.

A module says in ENVIRONMENTS which lists of requirements/ its clients are installed from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import Environments
from tests.free_ports import free_port
from tests.stack.conftest import Stack, started
from tests.stack.task_models import bundle_of
from transformer_serving.contract.heads import TASKS
from transformer_serving.desk import http
from transformer_serving.gateway.settings import GRPC_PORT


@dataclass(frozen=True)
class Endpoints:
    """The stack; `bundles` has the folder of each task's bundle."""

    stack: Stack
    bundles: dict[str, Path]
    grpc_port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.stack.base}"

    @property
    def given(self) -> dict[str, Any]:
        """What a client's script is told of the stack."""
        return {"address": self.address, "grpc": f"127.0.0.1:{self.grpc_port}"}

    def serve(self, task: str, body: dict[str, Any]) -> Any:
        """What /serve/NAME answers."""
        status, answer = self.stack.post(task, body)
        assert status == 200, answer
        return answer


@pytest.fixture(scope="session")
def environments(request: pytest.FixtureRequest) -> Iterator[Environments]:
    modules = {getattr(item, "module", None) for item in request.session.items}
    names = {name for module in modules for name in getattr(module, "ENVIRONMENTS", ())}
    environments = Environments(sorted(names))
    yield environments
    environments.close()


@pytest.fixture(scope="session")
def endpoints(
    environments: Environments, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoints]:
    """`environments` first: they are installed while the models are converted."""
    folder = tmp_path_factory.mktemp("models")
    grpc_port = free_port()
    settings = {"TRANSFORMER_SERVING_MAX_WAIT_S": "20", GRPC_PORT.name: str(grpc_port)}
    with (
        started(tmp_path_factory.mktemp("stack"), **settings) as stack,
        ThreadPoolExecutor(3) as pool,
    ):
        bundles = {task: bundle_of(task, folder).folder for task in TASKS}
        deploys = [
            pool.submit(stack.run, "deploy", str(bundle), "--endpoint", task, "--timeout", "200")
            for task, bundle in bundles.items()
        ]
        for deploy in deploys:
            deploy.result()
        stack.until(lambda: _are_well(stack), "every golden request is answered")
        yield Endpoints(stack, bundles, grpc_port)


def _are_well(stack: Stack) -> bool:
    """Their readiness is told by the last round of golden requests, every 15 seconds."""
    url = f"http://127.0.0.1:{stack.base}/health/endpoints"
    rows = json.loads(http.ask(url, timeout_s=20).body)["endpoints"]
    return {row["endpoint"] for row in rows if row["state"] == "ok"} == set(TASKS)
