"""How long a pod takes from its being scheduled until it is ready, each part by its name."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import Any

from tests.kubernetes.chart import NAMESPACE
from tests.kubernetes.cluster.release import Release, is_ready

Pod = dict[str, Any]
_BOUND_S = 240.0
_PAUSE_S = 0.05


def inference_steps() -> dict[str, Callable[[Pod], bool]]:
    return {**_first_steps("inference"), "the worker answers": _answers(8080, "/health/ready"),
            **_last_steps()}  # fmt: skip


def triton_steps(endpoint: str) -> dict[str, Callable[[Pod], bool]]:
    return {
        **_first_steps("triton"),
        "Triton answers": _answers(8000, "/v2/health/ready"),
        "the model is loaded": _answers(8000, f"/v2/models/{endpoint}/ready"),
        **_last_steps(),
    }


def _first_steps(container: str) -> dict[str, Callable[[Pod], bool]]:
    return {
        "scheduled": lambda pod: _condition(pod, "PodScheduled"),
        "the init container runs": lambda pod: _began(pod, "initContainerStatuses"),
        "it found the serving service": lambda pod: _condition(pod, "Initialized"),
        f"the container {container} runs": lambda pod: _began(pod, "containerStatuses"),
    }


def _last_steps() -> dict[str, Callable[[Pod], bool]]:
    return {"its startup probe passed": _started, "ready": is_ready}


def replaced(
    release: Release, component: str, steps: dict[str, Callable[[Pod], bool]]
) -> dict[str, float]:
    """Delete a pod and watch the next: seconds from its being scheduled to each step."""
    before = release.names(component)
    # Not by kubectl, which ends when the next pod runs already.
    release.cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{sorted(before)[0]}")
    seen: dict[str, float] = {}
    left = dict(steps)
    deadline = time.monotonic() + _BOUND_S
    while left:
        assert time.monotonic() < deadline, f"not within {_BOUND_S:.0f} s: {', '.join(left)}"
        time.sleep(_PAUSE_S)
        for pod in release.pods(component):
            if pod["metadata"]["name"] not in before:
                for step in [name for name, passed in left.items() if passed(pod)]:
                    seen[step] = time.monotonic()
                    del left[step]
    began = seen.pop("scheduled")
    return {step: at - began for step, at in sorted(seen.items(), key=lambda row: row[1])}


def _condition(pod: Pod, kind: str) -> bool:
    rows = pod["status"].get("conditions", [])
    return any(row["type"] == kind and row["status"] == "True" for row in rows)


def _began(pod: Pod, kind: str) -> bool:
    rows = pod["status"].get(kind, [])
    return any("running" in row["state"] or "terminated" in row["state"] for row in rows)


def _started(pod: Pod) -> bool:
    return any(row.get("started") for row in pod["status"].get("containerStatuses", []))


def _answers(port: int, path: str) -> Callable[[Pod], bool]:
    """Whether the pod itself says 200 there, whatever the kubelet knows of it."""

    def passed(pod: Pod) -> bool:
        host = pod["status"].get("podIP")
        if not host:
            return False
        connection = http.client.HTTPConnection(host, port, timeout=1)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    return passed
