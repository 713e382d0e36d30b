"""A real Docker Engine, the images built on it, and one stack for the whole story of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.compose.figures import FIGURES, ComposeFigures
from tests.compose.load import Load
from tests.compose.machine import docker_engine, locked, pip_configuration, run
from tests.compose.stand_ins import make_stand_ins
from tests.free_ports import free_ports
from transformer_serving.desk.demo import build_demo_models
from transformer_serving.desk.deploy.golden import ask

ROOT = Path(__file__).parent.parent.parent
CLI = str(Path(sys.executable).with_name("transformer-serving"))
SEED = {"text": "This is a ClearML example to show how Triton binaries are deployed."}
# Far above what it takes; no speed is asserted with it.
BOUND_S = 240.0
# Minutes: 2 s, so that a change is seen soon.
POLL = "0.034"


def wait_for(condition: Callable[[], Any], what: str, bound_s: float = BOUND_S) -> Any:
    """The condition's value as soon as it is a true one."""
    deadline = time.monotonic() + bound_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {bound_s:.0f} s: {what}"
        time.sleep(0.3)
    return value


def wait_until_answered(load: Load, more: int = 200) -> None:
    """Some more answers, so that something was under way before and after what is tested."""
    goal = load.answered + more
    wait_for(lambda: load.answered >= goal, "the clients get answers")


@dataclass
class Compose:
    """`docker compose` with the options of one stack, as a user types them."""

    project: str
    env_file: Path
    files: Sequence[str]
    port: int
    options: list[str] = field(default_factory=list)

    def arguments(self) -> list[str]:
        files = [part for name in self.files for part in ("-f", f"compose/{name}")]
        return [
            "-p", self.project, "--env-file", str(self.env_file), *files, "--profile", "local"
        ]  # fmt: skip

    def run(self, *command: str) -> str:
        return run("docker", "compose", *self.arguments(), *command, cwd=ROOT)

    def up(self, *options: str) -> None:
        self.run("up", "--detach", "--wait", "--wait-timeout", "300", *options)

    def containers(self, service: str) -> list[str]:
        return self.run("ps", "--quiet", service).split()

    def all_containers(self) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        return run("docker", "ps", "--all", "--quiet", "--no-trunc", "--filter", label).split()

    def url(self, endpoint: str) -> str:
        return f"http://127.0.0.1:{self.port}/serve/{endpoint}"

    def status(self, endpoint: str) -> int:
        return ask(self.url(endpoint), SEED).status

    def environment(self) -> dict[str, str]:
        """What the documented `env` command prints, as a shell would take it."""
        command = ["exec", "-T", "control-plane", "python3", "-m"]
        lines = self.run(*command, "transformer_serving.desk.local.container", "env").splitlines()
        rows = (line.removeprefix("export ").split("=", 1) for line in lines)
        return {**os.environ, **{name: value.strip("'") for name, value in rows}}

    def cli(self, *arguments: str) -> str:
        """Our command line on the host, pointed at this stack by its environment alone."""
        state = self.env_file.parent / "no-embedded-stack"
        return run(CLI, *arguments, "--state", str(state), cwd=ROOT, env=self.environment())

    def deploy(self, bundle: Path, endpoint: str) -> dict[str, Any]:
        done = self.cli("deploy", str(bundle), "--endpoint", endpoint, "--timeout", "240", "--json")
        values: dict[str, Any] = json.loads(done)
        return values


def env_file(path: Path, changes: dict[str, str]) -> Path:
    """docker/example.env with some lines changed, as a user's copy of it."""
    lines = (ROOT / "docker" / "example.env").read_text("utf-8").splitlines()
    left = dict(changes)
    for number, line in enumerate(lines):
        name = line.split("=", 1)[0]
        if name in left:
            lines[number] = f"{name}={left.pop(name)}"
    assert not left
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def figures(engine: None) -> Iterator[ComposeFigures]:
    """What the tests measure; written where `make compose-figures` takes it from."""
    found = ComposeFigures()
    yield found
    found.write(FIGURES)


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    with docker_engine():
        yield


def secrets_of_builds() -> dict[str, str]:
    configuration, certificates = pip_configuration()
    return {"PIP_CONF": str(configuration), "CA_BUNDLE": str(certificates)}


def build_images(folder: Path) -> Compose:
    """All images of the kit, on what they are based on, by the documented command."""
    make_stand_ins()
    compose = Compose(
        "build", env_file(folder / "build.env", secrets_of_builds()), ["compose.yaml"], 0
    )
    # Of two processes the second finds every layer made.
    with locked("images"):
        compose.run("build")
    return compose


@pytest.fixture(scope="session")
def build_secrets() -> dict[str, str]:
    return secrets_of_builds()


@pytest.fixture(scope="session")
def images(engine: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The three images; their names by service."""
    compose = build_images(tmp_path_factory.mktemp("build"))
    services = json.loads(compose.run("config", "--format", "json"))["services"]
    return {name: services[name]["image"] for name in ("inference", "triton", "control-plane")}


@pytest.fixture(scope="session")
def bundles() -> Path:
    target = ROOT / "build" / "demo"
    build_demo_models(target, precision=None, report=lambda _: None)
    return target


def small_stack(port: int, control_plane: int) -> dict[str, str]:
    """Variables of a stack on these ports that fits beside others and hears of changes soon."""
    return {
        "TRANSFORMER_SERVING_PORT": str(port),
        "TRANSFORMER_SERVING_CONTROL_PLANE_PORT": str(control_plane),
        "CLEARML_SERVING_POLL_FREQ": POLL,
        "CLEARML_TRITON_POLL_FREQ": POLL,
        "INFERENCE_MEMORY": "1g",
        "TRITON_MEMORY": "4g",
    }


@pytest.fixture(scope="session")
def stack(
    images: dict[str, str],
    build_secrets: dict[str, str],
    bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Compose]:
    """Three inference containers behind the balancer, with the control plane; torn down after."""
    port, control_plane = free_ports(2)
    changes = {
        **build_secrets,
        **small_stack(port, control_plane),
        # "No request fails" is said of updates and deaths, not of a machine that stalls for 2 s.
        "TRANSFORMER_SERVING_MAX_WAIT_S": "15",
    }
    path = env_file(tmp_path_factory.mktemp("stack") / "stack.env", changes)
    running = Compose(f"serving-test-{os.getpid()}", path, ["compose.yaml", "scale.yaml"], port)
    try:
        running.up("--scale", "inference=3")
        running.deploy(bundles / "transformer_model", "transformer_model")
        yield running
    finally:
        logs = running.run("logs", "--no-color", "--timestamps")
        (ROOT / "build" / "compose-tests" / "last-stack.log").write_text(logs)
        running.run("down", "--volumes", "--timeout", "5")


def kill(container: str) -> None:
    """End a container as the kernel would; to `docker kill` the restart policy does not answer."""
    pid = run("docker", "inspect", "--format", "{{.State.Pid}}", container).strip()
    subprocess.run(["kill", "-9", pid], check=True)


def kill_tritonserver(container: str) -> None:
    """End the server inside a container, by the pid that it has on this machine."""
    rows = run("docker", "top", container, "-eo", "pid,comm").splitlines()[1:]
    (pid,) = [row.split()[0] for row in rows if row.split()[1] == "tritonserver"]
    subprocess.run(["kill", "-9", pid], check=True)


def started(container: str) -> str:
    return run("docker", "inspect", "--format", "{{.State.StartedAt}}", container).strip()


def health(container: str) -> str:
    return run("docker", "inspect", "--format", "{{.State.Health.Status}}", container).strip()
