"""metrics.k8s.io, as metrics-server serves it: what the kubelet measures of each pod."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import Any
from urllib.parse import SplitResult, parse_qs

from tests.kubernetes.cluster.aggregated import AggregatedApi, Answer
from tests.kubernetes.cluster.components import Cluster

# Over which the kubelet's own figure of processor time is.
_WINDOW = "10s"


class Metrics(AggregatedApi):
    def __init__(self, cluster: Cluster) -> None:
        kinds = {"pods": "PodMetrics"}
        super().__init__(cluster, "metrics.k8s.io", "v1beta1", kinds, self._pods)
        self._kubelet = f"{cluster.kubelet_url}/stats/summary"
        self._api = cluster.api
        self._to_kubelet = cluster.authority.client(cluster.authority.sign("metrics-client"))
        # The kubelet signs its certificate itself.
        self._to_kubelet.check_hostname = False
        self._to_kubelet.verify_mode = ssl.CERT_NONE

    def _pods(self, path: list[str], url: SplitResult) -> Answer | None:
        if len(path) != 3 or path[0] != "namespaces" or path[2] != "pods":
            return None
        query = parse_qs(url.query)
        chosen = {"labelSelector": query["labelSelector"][0]} if "labelSelector" in query else {}
        pods = self._api.items(f"/api/v1/namespaces/{path[1]}/pods", **chosen)
        wanted = {pod["metadata"]["name"] for pod in pods}
        rows = [row for row in self.measured(path[1]) if row["metadata"]["name"] in wanted]
        return {"kind": "PodMetricsList", "items": rows}

    def measured(self, namespace: str) -> list[dict[str, Any]]:
        """Each pod of the namespace that the kubelet has figures of."""
        with urllib.request.urlopen(self._kubelet, context=self._to_kubelet, timeout=10) as answer:
            pods = json.loads(answer.read())["pods"]
        return [
            _row(pod)
            for pod in pods
            if pod["podRef"]["namespace"] == namespace and _complete(pod.get("containers") or [])
        ]


def _complete(containers: list[dict[str, Any]]) -> bool:
    return bool(containers) and all(
        "usageNanoCores" in one.get("cpu", {}) and "workingSetBytes" in one.get("memory", {})
        for one in containers
    )


def _row(pod: dict[str, Any]) -> dict[str, Any]:
    containers = [
        {
            "name": one["name"],
            "usage": {
                "cpu": f"{one['cpu']['usageNanoCores']}n",
                "memory": str(one["memory"]["workingSetBytes"]),
            },
        }
        for one in pod["containers"]
    ]
    return {
        "metadata": {key: pod["podRef"][key] for key in ("name", "namespace")},
        "timestamp": pod["containers"][0]["cpu"]["time"],
        "window": _WINDOW,
        "containers": containers,
    }
