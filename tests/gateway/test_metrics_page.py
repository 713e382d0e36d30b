"""What the page of figures shows of endpoints that come and go, written by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.gateway.figures import read


def test_endpoints_that_went_are_shown_no_more(tmp_path: Path) -> None:
    for folder in ({}, {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}):
        done = subprocess.run(
            [sys.executable, "-c", GONE], env={**os.environ, **folder},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        rows = [dict(labels) for name, labels in read(done.stdout) if name == "texts_total"]
        assert rows == [{"endpoint": "here"}]


GONE = """
import sys
from preprocess.stats import EndpointFigures
from transformer_serving.gateway.figures.page import page
for name in ("here", "gone"):
    EndpointFigures(name)
sys.stdout.write(page({"here"}).decode())
"""


def test_one_endpoints_rows_stand_alone(tmp_path: Path) -> None:
    """Beside them none of another, of a key, of a worker or of nobody."""
    for folder in ({}, {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}):
        done = subprocess.run(
            [sys.executable, "-c", ALONE], env={**os.environ, **folder},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert {dict(labels).get("endpoint") for _, labels in read(done.stdout)} == {"here"}
        assert "mine" not in done.stdout
        assert "pid=" not in done.stdout


ALONE = """
import sys
from prometheus_client import Gauge
from preprocess.queue.admission import Admission
from preprocess.stats import EndpointFigures
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.figures.page import page
metrics = Metrics()
metrics.asked("mine")
Admission(1000, 2.0)
worker = Gauge("transformer_serving_a", "A.", ("endpoint",), multiprocess_mode="liveall")
worker.labels("here").set(1)
for name in ("here", "there", ""):
    EndpointFigures(name)
    metrics.refused("overloaded", name)
sys.stdout.write(page({"here"}, alone=True).decode())
"""


def test_what_is_told_of_golden_requests(tmp_path: Path) -> None:
    """A row a worker and endpoint; none of an endpoint that is served no more."""
    done = subprocess.run(
        [sys.executable, "-c", GOLDENS],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    figures = read(done.stdout)
    seen = {
        (name, dict(labels).get("endpoint")): value
        for (name, labels), value in figures.items()
        if name.startswith("gateway_golden")
    }
    bundles = [dict(labels) for name, labels in figures if name == "gateway_bundle_info"]
    assert [(row["endpoint"], row["bundle"], row["task"]) for row in bundles] == [
        ("c", "2", "rerank")
    ]
    assert seen.pop(("gateway_golden_round_timestamp_seconds", None)) > 1.7e9
    assert seen == {("gateway_golden_ok", "a"): 0.0, ("gateway_golden_ok", "c"): 1.0}


def test_a_worker_without_a_round_has_no_time_of_one(tmp_path: Path) -> None:
    """0 would be a round of 1970: one that is stale, of a worker that answers."""
    for folder in ({}, {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}):
        done = subprocess.run(
            [sys.executable, "-c", NOT_YET], env={**os.environ, **folder},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert not [name for name, _ in read(done.stdout) if "golden_round" in name]


NOT_YET = """
import sys
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.figures.page import page
metrics = Metrics()
sys.stdout.write(page().decode())
"""


def test_what_generates_text_is_told_with_each_round(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GENERATING],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    rows = [dict(labels)["endpoint"] for name, labels in read(done.stdout) if "generates" in name]
    assert sorted(rows) == ["chat", "chat/2"]


GENERATING = """
import asyncio
import sys
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.figures.page import page
names = [["chat/1", "chat"], ["chat", "chat/2"]]
metrics = Metrics(generating=lambda: names.pop(0))
asyncio.run(metrics.goldens({}))
asyncio.run(metrics.goldens({}))
sys.stdout.write(page().decode())
"""


GOLDENS = """
import asyncio
import sys
from transformer_serving.gateway.golden_rounds import GoldenResult
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.figures.page import page
metrics = Metrics()
def told(endpoint, state, bundle):
    return GoldenResult(endpoint, state, "", 0.0, True, None, bundle, "rerank")
asyncio.run(metrics.goldens({name: told(name, "ok", "1") for name in "ab"}))
asyncio.run(metrics.goldens({"a": told("a", "failed", ""), "c": told("c", "ok", "2")}))
sys.stdout.write(page().decode())
"""
