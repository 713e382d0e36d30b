"""Several gateway workers: all serve before they are measured, and who sends is not full."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import gpu_page
from benchmarks.runs import processor_time
from benchmarks.runs.ab import ToolRun
from benchmarks.servers import table
from benchmarks.servers.process import Child, Unusable
from benchmarks.servers.running import Running
from benchmarks.studies import workers
from benchmarks.studies.gpu import stacks
from transformer_serving.contract.worker.log_lines import JsonLines
from transformer_serving.desk.bench import load
from transformer_serving.desk.bench.exchange import Run

NOWHERE = Running("http://127.0.0.1:9", ())


def says(message: str, *given: Any) -> str:
    """Python that writes a line of the gateway's log."""
    record = logging.LogRecord("gateway", logging.INFO, "", 1, message, given, None)
    return f"print({JsonLines().format(record)!r}, flush=True); "


FIRST = f"import time; {says('worker %d serves', 7)}time.sleep(0.5); "


def quiet(line: str) -> None:
    """Nothing is said in a test."""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is started in the gateway's place, and answers at once."""
    found = Child("gateway", [], tmp_path / "gateway.log")

    def start(*given: Any, **options: Any) -> Running:
        found.start()
        return Running(NOWHERE.base, (found,))

    monkeypatch.setattr(table, "_variables", lambda site, name, null: {})
    monkeypatch.setattr(table, "start_server", start)
    yield found
    found.stop()


def test_a_gateway_is_ready_when_all_of_its_workers_serve(child: Child) -> None:
    site: Any = None
    late = says("worker %d serves after %g s: %s", 7, 60.0, "it waits")
    child.command = [sys.executable, "-c", late + FIRST + says("worker %d serves", 8)]
    table.gateway(2)(site, quiet)
    assert "worker 8 serves" in child.log.read_text()


def test_a_child_that_does_not_say_enough_is_named_by_name(child: Child) -> None:
    child.command = [sys.executable, "-c", f"{FIRST}time.sleep(60)"]
    child.start()
    child.wait_until_said(table._SERVES, 1)
    with pytest.raises(Unusable, match="gateway said 1 times of 2 within 1 s"):
        child.wait_until_said(table._SERVES, 2, limit_s=1.0)


def test_a_child_that_has_ended_is_not_waited_for(child: Child) -> None:
    child.command = [sys.executable, "-c", "print('no gateway')"]
    child.start()
    with pytest.raises(Unusable, match="ended at its start: no gateway"):
        child.wait_until_said(table._SERVES, 1)


def test_a_sender_at_its_end_is_seen_however_many_cores_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(load, "run", lambda *given: Run((), 2.0, 2.0))
    assert workers.measured(NOWHERE, 2.0)["generator"] == 1.0


def test_wrk_is_full_where_each_of_its_threads_is(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([10.0, 18.0])
    monkeypatch.setattr(stacks, "cores", lambda: 16)
    monkeypatch.setattr(processor_time, "spent", lambda: {processor_time.LOAD: next(spent)})
    run = ToolRun(1000.0, 1.0, 1.0, 1.0, 1.0, failed=0, requests=2000)
    monkeypatch.setattr(stacks, "wrk", lambda *given, **options: run)
    # Four threads in two seconds.
    assert stacks.by_wrk(NOWHERE, 2.0)["generator"] == 1.0


def test_the_page_says_of_which_figures_the_sender_is_the_end() -> None:
    rows = {count: {"per_s": 900.0, "server": 0.3, "generator": used}
            for count, used in (("1", 0.5), ("2", 0.81), ("4", 0.97))}  # fmt: skip
    step = {"step": "workers-torch", "state": "done", "lacks": [], "gpu": [], "commit": "abc",
            "date": "2026-11-28 21:00 UTC", "machine": {"cpu": "AMD EPYC", "cores": 16},
            "versions": {}, "values": {"cores": 16, "rows": rows,
                                       gpu_page.REMARKS: workers.remarks(rows)}}  # fmt: skip
    page = gpu_page.text([step], ["workers-torch"])
    assert "| 4 | 900 | 0.30 | 0.97 |" in page
    assert (
        "before 2, 4 workers what sends used more than 80% of what it can: they may do more."
        in page
    )
    assert workers.remarks({"1": rows["1"]}) == []
