"""KEDA's part, played here: a real Prometheus reads the workers, external.metrics.k8s.io answers
with the queries of the chart's own ScaledObject, and a real autoscaler has their thresholds.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, quote

import yaml

from tests.compose.conftest import wait_for
from tests.compose.machine import install
from tests.free_ports import free_ports
from tests.kubernetes.chart import LOCAL, NAMESPACE, Manifest, merged, one, rendered
from tests.kubernetes.cluster.aggregated import AggregatedApi, Answer
from tests.kubernetes.cluster.components import Cluster
from tests.kubernetes.cluster.outside import PORT
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.monitoring.alerts import INFERENCE_JOB

GROUP = "external.metrics.k8s.io"
_HPA_ACCOUNT = {
    "kind": "ServiceAccount", "name": "horizontal-pod-autoscaler", "namespace": "kube-system",
}  # fmt: skip
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_LOOK_S = 2.0


def scaled_object(**autoscaling: object) -> Manifest:
    """Of the release that the tests have, as the chart renders it."""
    chosen = {"enabled": True, "prometheus": "http://prometheus.test", **autoscaling}
    return one(
        rendered(merged(LOCAL, {"triton": {"autoscaling": chosen}})), "ScaledObject", "demo-triton"
    )


def autoscaler(scaled: Manifest) -> dict[str, Any]:
    """What KEDA makes of a ScaledObject, in the form that the cluster's version has."""
    spec = scaled["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    metrics = [
        {
            "type": "External",
            "external": {
                "metric": {"name": f"query-{number}"},
                "target": {"type": "AverageValue", "averageValue": row["metadata"]["threshold"]},
            },
        }
        for number, row in enumerate(spec["triggers"])
    ]
    return {
        "metadata": {"name": "triton-by-tokens"},
        "spec": {
            "scaleTargetRef": spec["scaleTargetRef"],
            "minReplicas": spec["minReplicaCount"],
            "maxReplicas": spec["maxReplicaCount"],
            "metrics": metrics,
            "behavior": behavior,
        },
    }


class Prometheus:
    """Debian's, with the pods of inference as targets. It cannot ask the cluster's API itself, so
    that a file names them, as the chart's PodMonitor says to an operator.
    """

    def __init__(self, cluster: Cluster) -> None:
        install("prometheus")
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        self._api = cluster.api
        folder = cluster.folder / "prometheus"
        folder.mkdir()
        self._targets = folder / "pods.json"
        self._closed = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True, name="targets")
        self._looking.start()
        configuration = folder / "prometheus.yml"
        found = {"files": [str(self._targets)], "refresh_interval": "2s"}
        job = {"job_name": "pods", "scrape_interval": "2s", "file_sd_configs": [found]}
        configuration.write_text(yaml.safe_dump({"scrape_configs": [job]}))
        cluster.start_beside(
            "prometheus", "prometheus", f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )  # fmt: skip

    def close(self) -> None:
        """Name no more pods."""
        self._closed.set()
        self._looking.join()

    def value(self, query: str) -> float | None:
        """None for an empty answer."""
        url = f"{self.url}/api/v1/query?query={quote(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            rows = json.loads(answer.read())["data"]["result"]
        return float(rows[0]["value"][1]) if rows else None

    def wait(self, query: str) -> None:
        def answers() -> bool:
            try:
                return self.value(query) is not None
            except OSError:
                return False

        wait_for(answers, f"Prometheus answers {query}")

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_S):
            path = f"/api/v1/namespaces/{NAMESPACE}/pods"
            chosen = "app.kubernetes.io/component=inference"
            pods = self._api.items(path, labelSelector=chosen)
            rows = [_target(pod) for pod in pods if "podIP" in pod["status"]]
            replace_file(self._targets, json.dumps(rows))


def _target(pod: Manifest) -> dict[str, Any]:
    name = pod["metadata"]["name"]
    labels = {"job": INFERENCE_JOB, "instance": name, "namespace": NAMESPACE, "pod": name}
    return {"targets": [f"{pod['status']['podIP']}:{PORT}"], "labels": labels}


class WaitingTokens(AggregatedApi):
    """query-0, query-1: the ScaledObject's triggers."""

    def __init__(self, cluster: Cluster, prometheus: Prometheus, queries: list[str]) -> None:
        kinds = {f"query-{number}": "ExternalMetricValueList" for number in range(len(queries))}
        super().__init__(cluster, GROUP, "v1beta1", kinds, self._value)
        self._prometheus, self._queries = prometheus, queries
        self._api = cluster.api

    def allow(self) -> None:
        """As KEDA's own installation does: the autoscaler may read them."""
        name = "external-metrics"
        rule = {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["get", "list"]}
        self._api.create(f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": [rule]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        self._api.create(
            f"{_RBAC}/clusterrolebindings",
            {"metadata": {"name": name}, "roleRef": role, "subjects": [_HPA_ACCOUNT]},
        )

    def _value(self, path: list[str], url: SplitResult) -> Answer | None:
        if len(path) != 3 or not path[2].startswith("query-"):
            return None
        value = self._prometheus.value(self._queries[int(path[2].removeprefix("query-"))])
        if value is None:
            return None
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        row = {"metricName": path[2], "metricLabels": {}, "timestamp": now, "value": f"{value:.0f}"}
        return {"kind": "ExternalMetricValueList", "items": [row]}
