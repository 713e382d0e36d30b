"""What inference workers cost the embedded control plane: `python -m benchmarks control-plane`.

One real worker is recorded, at each interval of its polls, and many are played by what it asked.
The control plane is the real one, in a process of its own, whose processor time is read.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.runs.processor_time import process_seconds
from benchmarks.servers.machine import ROOT
from benchmarks.servers.many_endpoints import write_endpoints
from benchmarks.servers.process import Child, Unusable, free_ports
from benchmarks.studies.worker_calls import Call, play, recorded
from transformer_serving.control_plane.settings import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from transformer_serving.desk.bench.figures import percentile
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.step_report import StepReport

_ACCESS, _SECRET = "measured", "measured-secret"
_SETTLE_S = 5.0
# The SDK's own signs come each half minute.
_PERIOD_S = 60.0
_ENDPOINTS = 10


@dataclass(frozen=True)
class ControlPlane:
    """One that runs; `start_cpu_s` is what the start of the one worker cost it."""

    port: int
    pid: int
    environment: dict[str, str]
    folder: Path
    serving: str

    def cpu_s(self) -> float:
        return process_seconds(self.pid)

    def at(self, url: str) -> dict[str, str]:
        """The variables of a worker that takes `url` for it."""
        hosts = dict.fromkeys(("CLEARML_API_HOST", "CLEARML_WEB_HOST", "CLEARML_FILES_HOST"), url)
        return {**self.environment, **hosts, "CLEARML_SERVING_TASK_ID": self.serving}


def measured(
    workers: int, intervals: Sequence[float], seconds: float, report: StepReport
) -> dict[str, Any]:
    """By seconds between two polls: what a worker asks and what so many cost."""
    with tempfile.TemporaryDirectory() as folder, _control_plane(Path(folder)) as plane:
        found: dict[str, Any] = {"workers": workers, "endpoints": _ENDPOINTS, "seconds": seconds}
        for interval in intervals:
            report(f"one worker that polls every {interval:g} s, for {_PERIOD_S:.0f} s")
            calls, task, start_s = _one_worker(plane, interval)
            report(f"{workers} of its kind, for {seconds:.0f} s")
            found[f"{interval:g}"] = {
                "start_cpu_ms": 1000 * start_s,
                "asked_a_minute": dict(Counter(call.name for call in calls)),
                **_many(plane, calls, task, workers, seconds),
            }
    return found


@contextmanager
def _control_plane(folder: Path) -> Iterator[ControlPlane]:
    (port,) = free_ports(1)
    module = "transformer_serving.control_plane"
    child = Child(
        "control plane",
        [sys.executable, "-m", module, f"--port={port}", f"--data={folder / 'data'}"],
        folder / "control-plane.log",
        {ACCESS_KEY_VARIABLE: _ACCESS, SECRET_KEY_VARIABLE: _SECRET},
        ROOT,
    )
    child.start()
    try:
        child.wait_until(f"http://127.0.0.1:{port}/health")
        (folder / "clearml.conf").touch()
        url = f"http://127.0.0.1:{port}"
        environment = {
            **dict.fromkeys(("CLEARML_API_HOST", "CLEARML_WEB_HOST", "CLEARML_FILES_HOST"), url),
            "CLEARML_API_ACCESS_KEY": _ACCESS,
            "CLEARML_API_SECRET_KEY": _SECRET,
            "CLEARML_CONFIG_FILE": str(folder / "clearml.conf"),
            "CLEARML_CACHE_DIR": str(folder / "cache"),
        }
        serving = ClearmlCli(environment).create_service("measured")
        _add_endpoints(ClearmlApi(environment), serving)
        assert child.process is not None
        yield ControlPlane(port, child.process.pid, environment, folder, serving)
    finally:
        child.stop()


def _add_endpoints(api: ClearmlApi, serving: str) -> None:
    """In the form that clearml-serving keeps them in: what a poll reads."""
    rows = {
        f"texts-{number}": {
            "engine_type": "triton", "serving_url": f"texts-{number}", "model_id": f"{number:032x}",
            "version": "", "input_size": [[-1], [-1]], "input_type": ["int32", "int32"],
            "input_name": ["input_ids", "attention_mask"], "output_size": [[3]],
            "output_type": ["float32"], "output_name": ["output"],
        }
        for number in range(_ENDPOINTS)
    }  # fmt: skip
    write_endpoints(api, serving, rows)


def _one_worker(plane: ControlPlane, interval: float) -> tuple[list[Call], str, float]:
    """What it asks in a period, its task, and the control plane's seconds for its start."""
    (own,) = free_ports(1)
    before = plane.cpu_s()
    with recorded(plane.port) as (url, recording):
        worker = Child(
            "worker",
            [sys.executable, "-m", "transformer_serving.gateway", f"--port={own}", "--workers=1"],
            plane.folder / "worker.log",
            {**plane.at(url), "CLEARML_SERVING_POLL_FREQ": str(interval / 60)},
            ROOT,
        )
        worker.start()
        try:
            worker.wait_until(f"http://127.0.0.1:{own}/health/live")
            time.sleep(_SETTLE_S)
            start_s, task = plane.cpu_s() - before, _newest_task(plane)
            recording.restart()
            time.sleep(_PERIOD_S)
            calls = list(recording.calls)
        finally:
            worker.stop()
    if not any(call.name == "tasks.ping" for call in calls):
        raise Unusable(f"the worker gave no sign in {_PERIOD_S:.0f} s: {worker.last_words()}")
    return calls, task, start_s


def _newest_task(plane: ControlPlane) -> str:
    rows = ClearmlApi(plane.environment).call(
        "tasks.get_all", type=["inference"], order_by=["-created"], only_fields=["id"], page=0,
        page_size=1,
    )["tasks"]  # fmt: skip
    return str(rows[0]["id"])


def _many(
    plane: ControlPlane, calls: Sequence[Call], task: str, workers: int, seconds: float
) -> dict[str, float]:
    api = ClearmlApi(plane.environment)
    token = str(api.call("auth.login")["token"])
    tasks = [
        str(api.call("tasks.create", name="played", type="inference")["id"]) for _ in range(workers)
    ]
    before, began = plane.cpu_s(), time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        players = [
            pool.submit(
                partial(
                    play, [call.of_another(task, own) for call in calls], _PERIOD_S,
                    number * _PERIOD_S / workers, seconds, plane.port, token,
                )
            )
            for number, own in enumerate(tasks)
        ]  # fmt: skip
        took = sorted(one for player in players for one in player.result())
    lasted, cpu_s = time.monotonic() - began, plane.cpu_s() - before
    return {
        "calls_a_second": len(took) / lasted,
        "cpu_percent": 100 * cpu_s / lasted,
        "cpu_ms_a_call": 1000 * cpu_s / len(took),
        "p50_ms": 1000 * percentile(took, 50.0),
        "p99_ms": 1000 * percentile(took, 99.0),
    }
