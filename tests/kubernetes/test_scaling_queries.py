"""What KEDA is told by the ScaledObject's queries, as Prometheus's own promtool computes them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.chart import CLEARML, one, rendered
from tests.monitoring.test_scrapes import program

KEDA = {"enabled": True, "prometheus": "http://prometheus:9090", "minReplicas": 0}
REQUESTS = "transformer_serving_request_duration_seconds_count"
OURS = "demo-inference-6d5f7c9b8d-x7k2p"
# Figures of five minutes, one in 15 s, and the minute at which all is looked at.
_STEPS, _AT = 20, "4m"


def queries(name: str = "demo") -> dict[str, str]:
    """Each trigger's by the figure that it looks at."""
    objects = rendered(CLEARML, {"triton": {"autoscaling": KEDA}}, name=name)
    spec = one(objects, "ScaledObject", f"{name}-triton")["spec"]
    asked = [row["metadata"]["query"] for row in spec["triggers"]]
    figures = ("waiting_tokens", "tokens_total", "running_streams", REQUESTS)
    return dict(zip(figures, asked, strict=True))


def row(name: str, values: str, pod: str = OURS, **labels: str) -> dict[str, str]:
    """A series with the operator's labels, in promtool's words."""
    pairs = {"namespace": "serving", "pod": pod, **labels}
    inside = ",".join(f'{key}="{value}"' for key, value in pairs.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def requests(code: str, values: str, endpoint: str = "stock", pod: str = OURS) -> dict[str, str]:
    return row(REQUESTS, values, pod, endpoint=endpoint, code=code)


UP = row("up", f"1x{_STEPS}")
# Of an endpoint that has been asked nothing, as the gateway's page begins.
NOTHING = [UP, requests("ok", f"0x{_STEPS}"), requests("unavailable", f"0x{_STEPS}")]


def holds(folder: Path, query: str, series: list[dict[str, str]], expected: str) -> None:
    """The query's one row compares so with a number, or there is none for "nothing"."""
    is_so = f"count({query})" if expected == "nothing" else f"count(({query}) {expected})"
    rows = [] if expected == "nothing" else [{"labels": "{}", "value": 1}]
    asked = {"expr": is_so, "eval_time": _AT, "exp_samples": rows}
    case = {"interval": "15s", "input_series": series, "promql_expr_test": [asked]}
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))
    command = [program("promtool", "prometheus"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


WAKES = {
    "nobody asks": (NOTHING, "== 0"),
    "workers without any endpoint": ([UP], "== 0"),
    "no worker is scraped": ([], "nothing"),
    # Its code, which is not of this kit, counts nothing itself.
    "a stock endpoint is asked": ([UP, requests("ok", f"0+1x{_STEPS}")], "> 0"),
    # Prometheus takes a series' first value for no growth.
    "its first answer is an error of its own": (
        [*NOTHING, requests("other", f"_x12 1x{_STEPS - 12}")], "> 0",
    ),
    "who was here has gone": ([UP, requests("ok", f"5x4 9x{_STEPS - 4}")], "== 0"),
    "who may not ask": (
        [*NOTHING, requests("unauthorized", f"0+1x{_STEPS}"),
         requests("forbidden", f"0+1x{_STEPS}")], "== 0",
    ),
    "nobody's path": ([*NOTHING, requests("not_found", f"0+1x{_STEPS}", "")], "== 0"),
    # Nor is what they had counted a request.
    "a pod and an endpoint go": (
        [UP, requests("ok", "1000x12", pod="demo-inference-6d5f7c9b8d-gone7"),
         requests("ok", f"700x{_STEPS}"), requests("ok", "300x12", "removed")], "== 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("series", "expected"), WAKES.values(), ids=WAKES)
def test_the_first_triton_is_woken_by_who_asks_an_endpoint(
    tmp_path: Path, series: list[dict[str, str]], expected: str
) -> None:
    """And kept, for as long as that goes on."""
    holds(tmp_path, queries()[REQUESTS], series, expected)


LONG = "r" * 40
# As a Deployment's pods are called; of a long name what stands before the last five letters is cut.
PODS: Mapping[str, tuple[str, str]] = {
    OURS: ("demo", "== 7"),
    f"{LONG}-inference-6d5f7c9x7k2p": (LONG, "== 7"),
    "demo-inference-inference-6d5f7c9b8d-x7k2p": ("demo", "nothing"),
    "demo-inference-triton-6d5f7c9b8d-x7k2p": ("demo", "nothing"),
}


@pytest.mark.parametrize(("pod", "release", "expected"), [(p, *of) for p, of in PODS.items()])
def test_workers_are_those_of_its_own_release(
    tmp_path: Path, pod: str, release: str, expected: str
) -> None:
    """Of `demo`, not of a release `demo-inference` in the same namespace."""
    series = [
        row(name, f"7x{_STEPS}", pod) for name in ("transformer_serving_waiting_tokens", "up")
    ]
    holds(tmp_path, queries(release)["waiting_tokens"], series, expected)
