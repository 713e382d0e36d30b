"""This machine made ready for a cluster, and what the cluster leaves in its network taken away."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.compose.machine import BUILD, answers, docker_engine, install, run

# For the kubelet: forwarded ports, mounts; for the image that holds a pod's network.
_PACKAGES = (
    "ca-certificates", "conntrack", "curl", "docker.io", "gcc", "iproute2", "iptables", "libc6-dev",
    "socat", "util-linux",
)  # fmt: skip
_CAP_SYS_RESOURCE = 24
_BRIDGE = "docker0"
_OURS = re.compile(rf"KUBE-|DOCKER|{_BRIDGE}")
_RUNTIME = """#!/bin/sh
# The kubelet asks for a negative oom_score_adj, which root without CAP_SYS_RESOURCE may not set;
# Docker's own containers have 0.
bundle=$(printf '%s\\n' "$@" | sed -n '/^--bundle$/{{n;p;}}')
if [ -n "$bundle" ]; then
    sed -i -E 's/"oomScoreAdj": *-[0-9]+/"oomScoreAdj":0/' "$bundle/config.json"
fi
exec {runc} "$@"
"""


@contextmanager
def engine_for_pods() -> Iterator[None]:
    """A Docker Engine whose containers a kubelet can start."""
    running = answers()
    install(*(name for name in _PACKAGES if not (running and name == "docker.io")))
    try:
        with docker_engine(*_runtime()):
            yield
    finally:
        if not running:
            clean_network()


def _runtime() -> tuple[str, ...]:
    status = Path("/proc/self/status").read_text()
    capabilities = int(re.findall(r"^CapEff:\s+(\w+)$", status, re.MULTILINE)[0], 16)
    if capabilities >> _CAP_SYS_RESOURCE & 1:
        return ()
    BUILD.mkdir(parents=True, exist_ok=True)
    wrapper = BUILD / "runc-without-priority"
    wrapper.write_text(_RUNTIME.format(runc=shutil.which("runc")))
    wrapper.chmod(0o755)
    return f"--add-runtime=plain={wrapper}", "--default-runtime=plain"


def pod_network() -> str:
    """The machine's address on Docker's bridge, where pods are."""
    (link,) = json.loads(run("ip", "-json", "-4", "address", "show", _BRIDGE))
    (row,) = link["addr_info"]
    return str(row["local"])


def clean_network() -> None:
    """Rules and chains of the proxy, the kubelet and Docker, and Docker's bridge."""
    for table in ("nat", "filter", "mangle", "raw"):
        listed = subprocess.run(
            ["iptables", "--wait", "--table", table, "-S"],
            capture_output=True,
            text=True,
            check=False,
        )
        # A kernel without a table has no rules of ours in it.
        rules = listed.stdout.splitlines()
        chains = [rule.split()[1] for rule in rules if rule.startswith("-N ")]
        ours = [chain for chain in chains if _OURS.search(chain)]
        for rule in rules:
            if rule.startswith("-A ") and rule.split()[1] not in ours and _OURS.search(rule):
                # As iptables itself printed it, in its own quotes.
                command = f"iptables --table {table} --delete {rule.removeprefix('-A ')}"
                subprocess.run(["sh", "-c", command], check=True)
        for chain in ours:
            _iptables(table, "--flush", chain)
        for chain in ours:
            _iptables(table, "--delete-chain", chain)
    _iptables("filter", "--policy", "FORWARD", "ACCEPT")
    subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True, check=False)


def _iptables(table: str, *arguments: str) -> str:
    return run("iptables", "--wait", "--table", table, *arguments)
