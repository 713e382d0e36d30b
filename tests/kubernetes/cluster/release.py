"""The chart as a release on the cluster, by Helm's own library."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python

from tests.compose.conftest import POLL, wait_for
from tests.compose.machine import ROOT, run
from tests.kubernetes.chart import CHART, LOCAL, NAMESPACE, merged
from tests.kubernetes.cluster.components import NODE, Cluster

NAME = "demo"
_WAIT_S = 600
# What an older API server calls the two kinds that the chart has of 1.25, with the same fields.
_OLDER = {
    "autoscaling/v2": "autoscaling/v2beta2",
    "policy/v1": "policy/v1beta1",
}
# Of a probe, which has it since 1.21; a pod's own stands further left.
_PROBES_GRACE = re.compile(r"^ {12}terminationGracePeriodSeconds: \d+\n", re.MULTILINE)
_SMALL = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "3Gi"}}
# Requests that fit two cores, and a poll that sees a change soon.
VALUES = merged(
    LOCAL,
    {
        "images": {"pullPolicy": "Never"},
        "inference": {
            "resources": _SMALL,
            # As many as there are: the autoscaler is asked for more in a test of its own.
            "autoscaling": {"minReplicas": 2, "maxReplicas": 2, "scaleDownSeconds": 15},
            # "No request fails" is said of updates and deaths, not of a machine that stalls.
            "settings": {"TRANSFORMER_SERVING_MAX_WAIT_S": 15},
        },
        "triton": {
            "resources": _SMALL, "sharedMemory": "256Mi", "store": {"size": "2Gi"},
            "startupSeconds": 300,
        },
        "local": {"pollMinutes": float(POLL), "size": "1Gi"},
    },
)  # fmt: skip


@dataclass
class Release:
    cluster: Cluster
    helm: helm_python.Config
    chart: Path

    def install(self, chart: Path | None = None) -> None:
        self.helm.install(
            chart or self.chart, NAME, VALUES, namespace=NAMESPACE, create_namespace=True,
            wait="watcher", timeout=_WAIT_S,
        )  # fmt: skip

    def upgrade(self, *values: dict[str, Any], chart: Path | None = None) -> None:
        self.helm.upgrade(
            chart or self.chart, NAME, merged(VALUES, *values), namespace=NAMESPACE,
            wait="watcher", timeout=_WAIT_S,
        )  # fmt: skip

    def rollback(self) -> None:
        self.helm.rollback(NAME, wait="watcher", timeout=_WAIT_S)

    def uninstall(self) -> None:
        self.helm.uninstall(NAME, wait="watcher", timeout=_WAIT_S)

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("--namespace", NAMESPACE, *arguments)

    def restart(self, component: str) -> None:
        """Begin a rolling update."""
        self.kubectl("rollout", "restart", f"deployment/{NAME}-{component}")

    def rolled_out(self, component: str) -> None:
        """It has come to its end, and the old pods are gone."""
        self.kubectl("rollout", "status", f"deployment/{NAME}-{component}", f"--timeout={_WAIT_S}s")
        self.settled(component)

    def settled(self, component: str, count: int | None = None) -> None:
        """Until no pod comes or goes; `count`: and there are so many."""

        def still() -> bool:
            pods = self.pods(component)
            fitting = count is None or len(pods) == count
            return fitting and all(is_ready(one) and not leaves(one) for one in pods)

        wait_for(still, f"pods of {component}")

    def pods(self, component: str) -> list[dict[str, Any]]:
        chosen = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component={component}"
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        return self.cluster.api.items(path, labelSelector=chosen)

    def names(self, component: str) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods(component) if not leaves(pod)}

    def ready_addresses(self, component: str) -> set[str]:
        """Of its Service: whom the proxy and the DNS server name."""
        path = f"/api/v1/namespaces/{NAMESPACE}/endpoints/{NAME}-{component}"
        subsets = self.cluster.api.get(path).get("subsets") or []
        return {row["ip"] for subset in subsets for row in subset.get("addresses") or []}

    def address(self, component: str) -> str:
        """Of its Service, which the machine reaches, too."""
        path = f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}-{component}"
        return str(self.cluster.api.get(path)["spec"]["clusterIP"])


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(row["type"] == "Ready" and row["status"] == "True" for row in conditions)


def leaves(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def container_id(pod: dict[str, Any]) -> str:
    """Docker's, of a pod with one container."""
    (row,) = pod["status"]["containerStatuses"]
    return str(row["containerID"]).removeprefix("docker://")


def restarts(pod: dict[str, Any]) -> int:
    (row,) = pod["status"]["containerStatuses"]
    return int(row["restartCount"])


def for_older(chart: Path, target: Path) -> Path:
    """The chart as an API server before 1.25 takes it."""
    shutil.copytree(chart, target)
    description = target / "Chart.yaml"
    text, changed = re.subn(r'^kubeVersion: .*$', 'kubeVersion: ">=1.20.0-0"',
                            description.read_text(), flags=re.MULTILINE)  # fmt: skip
    assert changed == 1
    description.write_text(text)
    templates = [path for path in (target / "templates").iterdir() if path.is_file()]
    for newer, older in _OLDER.items():
        files = [path for path in templates if f"apiVersion: {newer}\n" in path.read_text()]
        assert files, newer
        for path in files:
            path.write_text(
                path.read_text().replace(f"apiVersion: {newer}\n", f"apiVersion: {older}\n")
            )
    for path in templates:
        path.write_text(_PROBES_GRACE.sub("", path.read_text()))
    return target


def chart_of(commit: str, folder: Path) -> Path:
    """The chart as a commit has it."""
    relative = CHART.relative_to(ROOT)
    with subprocess.Popen(
        ["git", "archive", commit, str(relative)], cwd=ROOT, stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    return folder / relative


def first_commit() -> str:
    """The one that the chart came with."""
    found = run(
        "git", "log", "--format=%H", "--diff-filter=A", "--", f"{CHART}/Chart.yaml", cwd=ROOT
    )
    return found.split()[-1]


def make_volume(cluster: Cluster, name: str) -> None:
    """For the control plane's claim: a folder of the node, as a volume of the kind `local`."""
    folder = cluster.folder / f"volume-{name}"
    folder.mkdir()
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
    }
    cluster.api.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
