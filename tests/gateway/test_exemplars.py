"""From a bucket to a trace that is in it: of several workers, and as a real Prometheus has it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port
from tests.gateway.conftest import Server
from tests.gateway.text_serving import TextServing
from tests.otlp_receiver import Receiver, receiver
from transformer_serving.contract.worker.durations import NAME
from transformer_serving.contract.worker.tracing import ENDPOINT, RATIO
from transformer_serving.gateway.figures.exemplars import Exemplars, newest_exemplars
from transformer_serving.gateway.figures.folder import VARIABLE

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
SCRAPE = """
global: {scrape_interval: 3s, scrape_timeout: 3s}
scrape_configs:
  - job_name: inference
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


def seen(folder: Path) -> dict[str, str]:
    """The trace of each bucket, by its bound."""
    return {le: row.labels["trace_id"] for (_, _, _, le), row in newest_exemplars(folder).items()}


def test_each_bucket_has_the_newest_of_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    # Without a loop they are written at once.
    for worker, seconds, trace in (
        (os.getpid(), 0.3, "1" * 32), (os.getppid(), 0.4, "2" * 32), (os.getpid(), 99.0, "3" * 32),
    ):  # fmt: skip
        monkeypatch.setattr(os, "getpid", lambda worker=worker: worker)
        Exemplars().note("texts", "ok", 200, seconds, trace)
    assert seen(tmp_path) == {"0.5": "2" * 32, "+Inf": "3" * 32}
    assert newest_exemplars(tmp_path)["texts", "200", "ok", "0.5"].value == 0.4


def test_a_worker_that_has_ended_takes_its_own_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(os, "getpid", lambda: ended.pid)
    Exemplars().note("texts", "ok", 200, 0.3, "1" * 32)
    assert list(tmp_path.iterdir())
    assert not seen(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_has_gone_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    Exemplars().note("texts", "ok", 200, 0.3, "1" * 32)
    assert not seen(tmp_path / "gone")
    monkeypatch.delenv(VARIABLE)
    Exemplars().note("texts", "ok", 200, 0.3, "1" * 32)


@pytest.fixture(scope="module")
def traced(text_serving: TextServing) -> Iterator[tuple[Server, Receiver]]:
    with receiver() as there:
        server = text_serving.gateway(
            "--workers=2",
            **{ENDPOINT.name: there.endpoint, RATIO.name: "1", "OTEL_BSP_SCHEDULE_DELAY": "100"},
        ).start()
        try:
            server.wait_for("/health/ready")
            for _ in range(20):
                assert server.post("texts", {"text": "tea"}).status == 200
            yield server, there
        finally:
            server.stop()


def exemplars_of(server: Server) -> list[tuple[str, Exemplar]]:
    reply = server.ask("GET", "/metrics", headers={"accept": OPENMETRICS})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    return [
        (sample.labels["endpoint"], sample.exemplar)
        for family in text_string_to_metric_families(reply.raw.decode())
        if family.name == NAME
        for sample in family.samples
        if sample.exemplar
    ]


@pytest.mark.slow
def test_the_page_leads_to_traces_that_were_sent(traced: tuple[Server, Receiver]) -> None:
    server, there = traced
    wait_until(lambda: bool(exemplars_of(server)), 60)
    for endpoint, exemplar in exemplars_of(server):
        assert endpoint == "texts"
        spans = there.wait_for(1, exemplar.labels["trace_id"])
        (root,) = [span.span for span in spans if span.name == "POST /serve/{name}"]
        took = (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9
        assert exemplar.value == pytest.approx(took, rel=0.5, abs=0.001)


@pytest.mark.slow
def test_who_asks_for_the_text_form_gets_it(traced: tuple[Server, Receiver]) -> None:
    reply = traced[0].ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert b"trace_id" not in reply.raw
    assert b"# EOF" not in reply.raw


@pytest.mark.slow
def test_without_traces_there_is_one_form(text_gateway: Server) -> None:
    reply = text_gateway.ask("GET", "/metrics", headers={"accept": OPENMETRICS})
    assert reply.headers["content-type"].startswith("text/plain")


@contextlib.contextmanager
def prometheus_on(folder: Path, target: int) -> Iterator[str]:
    """Debian's Prometheus with the store for exemplars; its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    port = free_port()
    (folder / "prometheus.yaml").write_text(SCRAPE % target)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program, f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_a_prometheus_has_them(traced: tuple[Server, Receiver], tmp_path: Path) -> None:
    server, there = traced

    def asked(address: str) -> list[Any]:
        query = urllib.parse.urlencode({"query": f"{NAME}_bucket", "start": "0", "end": "4e9"})
        with contextlib.suppress(OSError):
            url = f"{address}/api/v1/query_exemplars?{query}"
            with urllib.request.urlopen(url, timeout=10) as reply:
                rows: list[Any] = json.load(reply)["data"]
                return rows
        return []

    with prometheus_on(tmp_path, server.port) as address:
        wait_until(lambda: bool(asked(address)), 120, (tmp_path / "prometheus.log").read_text)
        (row, *_) = asked(address)
    assert row["seriesLabels"]["endpoint"] == "texts"
    trace = row["exemplars"][0]["labels"]["trace_id"]
    assert any(span.name == "POST /serve/{name}" for span in there.wait_for(1, trace))
