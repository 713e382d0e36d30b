"""Every documented command line, run as it is written: in a copy of the working tree, in order.

Only what the shell's environment may say differs: the names of the project and of the images, and
free ports. The ClearML server of `my.env` is the embedded control plane, on an address that
containers reach.
"""

from __future__ import annotations

import ipaddress
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.compose.conftest import BOUND_S, SEED, env_file, wait_for
from tests.compose.documents import blocks, elsewhere, lines_of, variables_of
from tests.compose.machine import ROOT, run
from tests.compose.stand_ins import make_stand_ins
from tests.compose.stock import STOCK_PATH, stock_file
from tests.free_ports import free_ports
from transformer_serving.control_plane.settings import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.deploy.golden import ask
from transformer_serving.desk.local.record import Ports, make_private, new_record, save_record

LOCAL, OWN_SERVER, GPUS = "One machine, no account", "With your ClearML server", "GPUs"
DAILY, SCALED, ROLLED = "From day to day", "N inference containers", "A new image, under load"
STOCK, SECRETS = "On top of clearml-serving's own compose file", "Secrets"
NETWORK, GRPC, VLLM = "On a network address: keys and TLS", "gRPC", "vLLM"
BACKUP, KIT = "A backup of the control plane", "Another kit"
MONITORING = "Prometheus, Alertmanager, Grafana"
RUN = {LOCAL, OWN_SERVER, DAILY, BACKUP, SCALED, ROLLED, STOCK, SECRETS, NETWORK}
# What is only read by `docker compose config` (tests/compose/test_config.py), and why.
READ = {
    GPUS: "needs an NVIDIA GPU and the image of nvcr.io",
    MONITORING: "needs images that cannot be pulled here; tests/monitoring runs their files in "
    "Debian's Prometheus and promtool",
    VLLM: "needs an NVIDIA GPU and the image of nvcr.io",
    KIT: "needs a second commit; of its lines builds, up and roll run under the other headings",
    GRPC: "test_network_address.py starts it and calls the port, with a key",
}
ELSEWHERE = {
    "docker run --rm nvcr.io/nvidia/tritonserver:25.07-py3 sh -c 'dpkg -l | grep nvinfer; "
    "tritonserver --version'": "needs the image of nvcr.io",
}
ENDPOINT = "transformer_model"


@dataclass
class Desk:
    """A shell in a copy of the working tree, as a user has it after `git clone`, `make up` and
    `make down`."""

    root: Path
    project: str
    port: int
    environment: dict[str, str]

    def block(self, heading: str) -> str:
        return self.script(blocks()[heading])

    def script(self, text: str) -> str:
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        shell = ("bash", "-euo", "pipefail", "-c", text)
        return run(*shell, cwd=self.root, env=self.environment, timeout=600)

    def status(self) -> int:
        return ask(f"http://127.0.0.1:{self.port}/serve/{ENDPOINT}", SEED).status

    def containers(self, service: str = "") -> list[str]:
        labels = [f"label=com.docker.compose.project={self.project}"]
        labels += [f"label=com.docker.compose.service={service}"] if service else []
        filters = [part for label in labels for part in ("--filter", label)]
        return run("docker", "ps", "--all", "--quiet", *filters).split()

    def down(self) -> None:
        """As documented, and the data with it."""
        self.script(lines_of(blocks()[DAILY])[-1] + " --volumes --timeout 5")


def memlock() -> str:
    """What compose's default asks for, or this machine's limit where even root may not raise it."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    raised = subprocess.run(["prlimit", "--memlock=unlimited", "true"], check=False)
    return "-1" if raised.returncode == 0 else str(hard)


@pytest.fixture(scope="module")
def desk(
    engine: None,
    build_secrets: dict[str, str],
    bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Desk]:
    make_stand_ins()
    root = tmp_path_factory.mktemp("desk") / "transformer-serving"
    for name in run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).split("\n"):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name, follow_symlinks=False)
    (root / ".venv").symlink_to(ROOT / ".venv")
    (root / "build").mkdir()
    (root / "build" / "demo").symlink_to(bundles)
    state = root / ".stack"
    make_private(state)
    save_record(state, new_record(state, Ports()))
    port, control_plane = free_ports(2)
    project = f"documented-{os.getpid()}"
    environment = {
        **os.environ,
        **build_secrets,
        "COMPOSE_PROJECT_NAME": project,
        "TRANSFORMER_SERVING_PORT": str(port),
        "TRANSFORMER_SERVING_CONTROL_PLANE_PORT": str(control_plane),
        "TRITON_MEMLOCK": memlock(),
        # Two minutes are little beside another stack and its clients.
        "TRANSFORMER_SERVING_DEPLOY_TIMEOUT_S": "400",
        # Its builds take no image from under another process's stack.
        "TRANSFORMER_SERVING_IMAGE_TAG": "documented",
    }
    there = Desk(root, project, port, environment)
    try:
        yield there
    finally:
        there.down()


@dataclass(frozen=True)
class ClearmlServer:
    """What the first six variables of my.env say."""

    variables: dict[str, str]


@pytest.fixture(scope="module")
def clearml_server(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClearmlServer]:
    gateway, (port,) = host_of_containers(), free_ports(1)
    folder = tmp_path_factory.mktemp("clearml-server")
    keys = {name: secrets.token_hex(16) for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE)}
    command = [sys.executable, "-m", "transformer_serving.control_plane"]
    options = [f"--host={gateway}", f"--port={port}", f"--data={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *options], env={**os.environ, **keys}, cwd=ROOT, stdout=log, stderr=log
        )
    address = f"http://{gateway}:{port}"
    variables = {
        **{f"CLEARML_{what}_HOST": address for what in ("WEB", "API", "FILES")},
        "CLEARML_API_ACCESS_KEY": keys[ACCESS_KEY_VARIABLE],
        "CLEARML_API_SECRET_KEY": keys[SECRET_KEY_VARIABLE],
    }
    try:
        wait_for(lambda: healthy(f"{address}/health"), "the server of my.env answers")
        created = ClearmlCli({**os.environ, **variables}).create_service("documented")
        variables["CLEARML_SERVING_TASK_ID"] = created
        env_file(desk.root / "my.env", variables)
        yield ClearmlServer(variables)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def host_of_containers() -> str:
    """This machine's address in Docker's first network."""
    shown = run("docker", "network", "inspect", "bridge", "--format", "{{json .IPAM.Config}}")
    (row,) = json.loads(shown)
    # A daemon that has just made that network says its addresses only: it took the first.
    return str(row.get("Gateway") or next(ipaddress.ip_network(row["Subnet"]).hosts()))


def healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_every_documented_line_has_its_test_or_its_reason() -> None:
    assert set(blocks()) == RUN | set(READ)
    shown = {line for script in blocks().values() for line in lines_of(script)}
    assert set(elsewhere()) <= shown | set(ELSEWHERE) | set(BUILDS)


BUILDS = (
    "docker compose -f compose/compose.yaml build triton",
    "docker compose -f compose/compose.yaml --profile local build",
)


def test_one_machine(desk: Desk) -> None:
    """And once more up in the same shell, which is to have kept no address of the desk's."""
    printed = desk.script(f"{blocks()[LOCAL]}echo\n{lines_of(blocks()[LOCAL])[0]}")
    assert '"label":"' in printed.replace(" ", "")
    assert desk.status() == 200


def test_the_builds_in_the_files_heads(desk: Desk) -> None:
    for line in BUILDS:
        desk.script(line)


@pytest.fixture
def _local(desk: Desk) -> None:
    """The stack without an account, up with its endpoint."""
    if desk.status() != 200:
        desk.block(LOCAL)


@pytest.mark.spare
@pytest.mark.usefixtures("_local")
def test_from_day_to_day(desk: Desk) -> None:
    """Its last line takes the stack down and keeps its data."""
    *daily, down = lines_of(blocks()[DAILY])
    before = set(desk.containers())
    for line in daily:
        printed = desk.script(line)
        assert "control-plane" in printed or " restart " in line
    wait_for(lambda: desk.status() == 200, "the endpoint answers again")
    assert set(desk.containers()) == before
    desk.script(down)
    assert desk.containers() == []
    desk.script(lines_of(blocks()[LOCAL])[0])
    wait_for(lambda: desk.status() == 200, "what was deployed is served again")


@pytest.mark.spare
@pytest.mark.usefixtures("_local")
def test_a_backup_comes_back(desk: Desk) -> None:
    """Into what is there, and into volumes that are new."""
    backup, _, restore, up = lines_of(blocks()[BACKUP])
    desk.block(BACKUP)
    assert desk.status() == 200
    desk.script(backup)
    desk.down()
    desk.script(f"{restore}\n{up}")
    wait_for(lambda: desk.status() == 200, "what was deployed is served again")
    desk.down()


@pytest.fixture(scope="module")
def _deployed(desk: Desk, clearml_server: ClearmlServer) -> None:
    """The stack of the server of my.env, up with its endpoint, and no other one."""
    desk.down()
    desk.block(OWN_SERVER)


@pytest.mark.usefixtures("_deployed")
def test_your_clearml_server(desk: Desk) -> None:
    assert desk.containers("control-plane") == []
    assert desk.status() == 200


@pytest.mark.spare
@pytest.mark.usefixtures("_deployed")
def test_secrets_come_from_files(desk: Desk, clearml_server: ClearmlServer) -> None:
    """Also in place of the variables, which are emptied here."""
    folder = desk.root / "secrets"
    folder.mkdir()
    kept = clearml_server.variables
    for name in ("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"):
        (folder / name.lower()).write_text(kept[name])
    left = {name: value for name, value in kept.items() if not name.endswith("_KEY")}
    env_file(desk.root / "my.env", left)
    desk.block(SECRETS)
    wait_for(lambda: desk.status() == 200, "the endpoint answers")
    shown = run("docker", "inspect", *desk.containers())
    assert kept["CLEARML_API_SECRET_KEY"] not in shown
    env_file(desk.root / "my.env", kept)


@pytest.mark.usefixtures("_deployed")
def test_on_a_network_address(desk: Desk, clearml_server: ClearmlServer) -> None:
    """With the lines that the page puts into my.env; root's own are run as root."""
    kept = clearml_server.variables
    env_file(desk.root / "my.env", {**kept, **variables_of(NETWORK)})
    assert '"label"' in desk.block(NETWORK).splitlines()[-1]
    front = f"https://127.0.0.1:{desk.port}/serve/{ENDPOINT}"
    curl = (
        f"curl -s --cacert secrets/tls/tls.crt {front} -o /dev/null -w '%{{http_code}}' -d '{{}}'"
    )
    assert desk.script(curl) == "401"
    env_file(desk.root / "my.env", kept)


@pytest.mark.spare
@pytest.mark.usefixtures("_deployed")
def test_many_containers_and_their_roll(desk: Desk, clearml_server: ClearmlServer) -> None:
    """As many as my.env says, of which the same line once more takes none away."""
    kept = clearml_server.variables
    env_file(desk.root / "my.env", {**kept, **variables_of(SCALED)})
    desk.block(SCALED)
    before = set(desk.containers("inference"))
    assert len(before) == 3
    assert desk.status() == 200
    desk.block(ROLLED)
    after = set(desk.containers("inference"))
    assert len(after) == 3
    assert not before & after
    assert desk.status() == 200
    desk.block(SCALED)
    assert set(desk.containers("inference")) == after
    desk.down()
    env_file(desk.root / "my.env", kept)


@pytest.mark.usefixtures("_deployed")
def test_on_top_of_clearml_servings_own_file(desk: Desk) -> None:
    """In the foreground, as the line has it, and ended as Ctrl-C ends it."""
    desk.down()
    stock = desk.root.parent / STOCK_PATH
    stock.parent.mkdir(parents=True)
    stock.write_text(yaml.safe_dump(stock_file(runnable=True)))
    build, up = lines_of(blocks()[STOCK])
    desk.script(build)
    log = desk.root / "build" / "foreground.log"
    with log.open("wb") as output:
        # Ctrl-C reaches docker and its compose plugin alike: a group of processes of their own.
        running = subprocess.Popen(
            ["bash", "-c", up], cwd=desk.root, env=desk.environment, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: running.poll() is not None or _answers(desk), "the endpoint answers")
        assert running.poll() is None, log.read_text()[-3000:]
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGINT)
        running.wait(BOUND_S)


def _answers(desk: Desk) -> bool:
    return desk.status() == 200
