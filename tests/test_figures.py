"""Every figure's name and form: as Prometheus wants them, and as docs/observability.md has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.status import EndpointStatus

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "observability.md"
_ROW = re.compile(r"^\| (transformer_serving_\w+|process_\w+) \| (\w+) \| ([^|]*)\| .+ \| .+ \|$")


@pytest.fixture(scope="module")
def of_workers(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("figures"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.figures_of_all"], cwd=ROOT,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def of_controller() -> str:
    page = MetricsPage(None)
    proven = EndpointStatus(
        "texts", "m", 1, True, "onnxruntime", True, None, None, (1,), "x", 0.0, "proven", 1,
        proof_seconds=2.5, largest_difference=1e-4, lowest_cosine=0.9999,
    )  # fmt: skip
    page.show([proven], 1795492800.25, triton_ready=True, triton_starts=1)
    return page.text()


@pytest.mark.parametrize("page", ["of_workers", "of_controller"])
def test_promtool_has_nothing_to_say(page: str, request: pytest.FixtureRequest) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    text = request.getfixturevalue(page)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def named(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def labels_of(metric: Metric) -> set[str]:
    return {label for sample in metric.samples for label in sample.labels} - {"le"}


def test_the_docs_table_has_every_figure(of_workers: str, of_controller: str) -> None:
    metrics = text_string_to_metric_families(of_workers + of_controller)
    made = {named(one): (one.type, labels_of(one)) for one in metrics}
    told = {}
    for line in PAGE.read_text("utf-8").splitlines():
        if found := _ROW.match(line):
            labels = {label.strip() for label in found[3].split(",")} - {""}
            assert found[1] not in told, f"{found[1]} is told of twice"
            told[found[1]] = (found[2], labels)
    assert told == made
