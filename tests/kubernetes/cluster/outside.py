"""Who is outside of the cluster: `kubectl port-forward`, our command line, and clients."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.compose.conftest import CLI, ROOT, SEED
from tests.compose.load import Load
from tests.compose.machine import run
from tests.free_ports import free_ports
from tests.kubernetes.chart import NAMESPACE
from tests.kubernetes.cluster.release import NAME, Release
from transformer_serving.desk.deploy.golden import ask

ENDPOINT = "transformer_model"
PORT = 8080
CLIENTS = 8


def load(release: Release, clients: int = CLIENTS, pause_s: float = 0.0) -> Load:
    """At the Service's own address, on kept connections."""
    host = release.address("inference")
    return Load(PORT, ENDPOINT, clients, host=host, pause_s=pause_s)


def status(release: Release) -> int:
    return ask(f"http://{release.address('inference')}:{PORT}/serve/{ENDPOINT}", SEED).status


@contextmanager
def forwarded(release: Release, **services: int) -> Iterator[dict[str, int]]:
    """`kubectl port-forward` of Services, by component and port: ports of this machine."""
    ports = dict(zip(services, free_ports(len(services)), strict=True))
    running = [
        subprocess.Popen(
            release.cluster.kubectl_command(
                "--namespace", NAMESPACE, "port-forward",
                f"service/{NAME}-{component.replace('_', '-')}", f"{ports[component]}:{port}",
            ),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for component, port in services.items()
    ]  # fmt: skip
    try:
        for process in running:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Forwarding from"), line
        yield ports
    finally:
        for process in running:
            process.terminate()
            process.communicate(timeout=10)


def deploy(release: Release, bundle: Path, endpoint: str) -> None:
    """As docs/kubernetes.md has it: from outside, through `kubectl port-forward`."""
    with forwarded(release, control_plane=8008, inference=PORT) as ports:
        command = ["python3", "-m", "transformer_serving.desk.local.container", "env"]
        printed = release.kubectl("exec", f"{NAME}-control-plane-0", "--", *command)
        for port, forwarded_port in ((8008, ports["control_plane"]), (PORT, ports["inference"])):
            printed = printed.replace(f"127.0.0.1:{port}", f"127.0.0.1:{forwarded_port}")
        rows = re.findall(r"^export (\w+)='?([^'\n]*)'?$", printed, re.MULTILINE)
        run(
            CLI, "deploy", str(bundle), "--endpoint", endpoint, "--timeout", "240", "--state",
            str(release.cluster.folder / "no-embedded-stack"), cwd=ROOT,
            env={**os.environ, **dict(rows)},
        )  # fmt: skip
