"""The controller as a process: the real SDK, clearml-serving's own commands, a real Triton."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.cli.test_ended import goes_on
from tests.engine.serving import preprocess_of, write_sealed
from tests.engine.test_service import answers, ready
from tests.engine.text_models import write_onnx
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from tests.free_ports import free_ports
from tests.without_frameworks import path_without_frameworks

ROOT = Path(__file__).parents[2]
ACCESS_KEY, SECRET_KEY = "access-of-the-test", "secret-of-the-test"
TENSORS = [
    *("--input-size", "[-1]", "[-1]", "--input-type", "int32", "int32"),
    *("--input-name", "input_ids", "attention_mask"),
    *("--output-size", "[3]", "--output-type", "float32", "--output-name", "output"),
]
AUXILIARY = ["--aux-config", 'platform="onnxruntime_onnx"', "max_batch_size=8"]


@dataclass
class Stack:
    """Control plane, Triton and controller, each a process of its own."""

    folder: Path
    triton: TritonServer
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    serving_id: str = ""

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CLEARML_")}
        url = f"http://127.0.0.1:{self.port}"
        hosts = dict.fromkeys(("CLEARML_API_HOST", "CLEARML_WEB_HOST", "CLEARML_FILES_HOST"), url)
        return {
            **kept,
            **hosts,
            "CLEARML_API_ACCESS_KEY": ACCESS_KEY,
            "CLEARML_API_SECRET_KEY": SECRET_KEY,
            "CLEARML_CONFIG_FILE": str(self.folder / "clearml.conf"),
            "CLEARML_CACHE_DIR": str(self.folder / "cache"),
            "CLEARML_BKG_THREAD_REPORT": "1",
            "TRANSFORMER_SERVING_ACCESS_KEY": ACCESS_KEY,
            "TRANSFORMER_SERVING_SECRET_KEY": SECRET_KEY,
            "PYTHONPATH": path_without_frameworks(self.folder, ROOT),
        }

    def start(self, name: str, *arguments: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *map(str, arguments)],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_control_plane(self) -> None:
        module = "transformer_serving.control_plane"
        self.start("control-plane", module, "--port", self.port, "--data", self.folder / "data")
        wait_until(self._healthy, 60)

    def start_controller(self) -> None:
        self.start(
            "controller",
            "transformer_serving.engine.controller",
            f"--serving-id={self.serving_id}",
            f"--triton-grpc={self.triton.grpc}",
            f"--repository={self.triton.repository}",
            f"--state={self.folder / 'state.json'}",
            "--poll-seconds=0.3",
            "--grace-seconds=3",
            f"--triton-log={self.triton.log}",
        )
        pid = self.processes["controller"].pid
        wait_until(lambda: self.status()["controller"].get("pid") == pid, 60)

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Left to itself, ClearML's SDK waits for minutes for a control plane that is away."""
        self.processes[name].send_signal(number)
        self.processes[name].wait(30)

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def cli(self, *arguments: str) -> str:
        program = str(Path(sys.executable).with_name("clearml-serving"))
        own = ("--id", self.serving_id) if self.serving_id else ()
        return self.run(program, *own, *arguments)

    def upload(self, name: str, path: Path) -> str:
        said = self.cli(
            *("model", "upload", "--name", name, "--project", "tests", "--framework", "onnx"),
            *("--path", str(path)),
        )
        found = re.search(r"new Model ID=(\w+)", said)
        assert found, said
        return found[1]

    def add(self, endpoint: str, model_id: str, preprocess: bytes | None = None) -> None:
        code: tuple[str, ...] = ()
        if preprocess is not None:
            path = self.folder / "preprocess.py"
            path.write_bytes(preprocess)
            code = ("--preprocess", str(path))
        self.cli(
            *("model", "add", "--engine", "triton", "--endpoint", endpoint),
            *("--model-id", model_id, *code, *TENSORS, *AUXILIARY),
        )

    def status(self) -> dict[str, Any]:
        path = self.folder / "state.json"
        text = path.read_text() if path.is_file() else '{"controller": {}, "endpoints": []}'
        return dict(json.loads(text))

    def row(self, endpoint: str) -> dict[str, Any]:
        rows = {row["endpoint"]: row for row in self.status()["endpoints"]}
        return dict(rows.get(endpoint, {}))

    def wait(self, endpoint: str, **wanted: Any) -> dict[str, Any]:
        log = self.folder / "controller.log"
        wait_until(
            lambda: self.row(endpoint).items() >= wanted.items(),
            60,
            lambda: f"{self.row(endpoint)} instead of {wanted}\n{log.read_text()[-2000:]}",
        )
        return self.row(endpoint)

    def _healthy(self) -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/health", timeout=2).ok
        except requests.RequestException:
            return False


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    (folder / "clearml.conf").touch()
    with running_triton(folder / "triton") as triton:
        stack = Stack(folder, triton, free_ports(1)[0])
        try:
            stack.start_control_plane()
            found = re.search(r"id=(\w+)", stack.cli("create", "--name", "served"))
            assert found
            stack.serving_id = found[1]
            stack.start_controller()
            yield stack
        finally:
            for process in stack.processes.values():
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def _sentiment(stack: Stack) -> None:
    """An endpoint that serves, for those who look at what becomes of one."""
    model, number, code = write_sealed(stack.folder / "sentiment", scale=2.0)
    stack.add("sentiment", stack.upload("sentiment", model), code)
    stack.wait("sentiment", ready=True, bundle_version=number)


def test_endpoints_of_the_real_commands_are_served_updated_and_removed(stack: Stack) -> None:
    model, before, code = write_sealed(stack.folder / "a")
    first = stack.upload("updated", model)
    stack.add("updated", first, code)
    row = stack.wait("updated", ready=True, bundle_version=before)
    assert row["verified"]
    assert row["model_id"] == first
    # The same file name again: the same address in the file store, other bytes.
    model, after, code = write_sealed(stack.folder / "b", scale=2.0)
    second = stack.upload("updated", model)
    stack.add("updated", second, code)
    both = sorted((before, after))
    stack.wait("updated", ready=True, bundle_version=after, versions_loaded=both)
    assert answers(stack.triton, "updated", after, 2.0)
    stack.wait("updated", versions_loaded=[after], reason=None)


def test_a_preprocess_file_that_was_exchanged_is_refused(stack: Stack) -> None:
    """By its own `model add`, as anybody with the keys can; the bundle's number stays as it was."""
    model, number, code = write_sealed(stack.folder / "exchanged", scale=3.0)
    uploaded = stack.upload("exchanged", model)
    stack.add("exchanged", uploaded, code + b"import os\n")
    stack.wait("exchanged", ready=False, bundle_version=None)
    wait_until(lambda: f"is not the one of bundle {number}" in str(stack.row("exchanged")), 60)
    stack.add("exchanged", uploaded, code)
    stack.wait("exchanged", ready=True, bundle_version=number)


@pytest.mark.usefixtures("_sentiment")
def test_what_else_a_serving_task_can_hold(stack: Stack) -> None:
    """One process of clearml-serving's own classes: its commands take seconds each."""
    source = write_onnx(stack.folder / "local", file_name="mine.onnx")
    watched = write_onnx(stack.folder / "watched", scale=5.0)
    code = stack.folder / "preprocess.py"
    code.write_text(preprocess_of(303))
    current, number = (stack.row("sentiment")[name] for name in ("model_id", "bundle_version"))
    script = f"""
        from clearml import InputModel
        from clearml_serving.serving.model_request_processor import ModelRequestProcessor
        local, _ = (
            InputModel.import_model(weights_url="file://" + path, name=name, project="tests")
            for name, path in (("local", "{source}"), ("watched", "{watched}"))
        )
        tensors = dict(
            input_name=["input_ids", "attention_mask"], input_type=["int32"] * 2,
            input_size=[[-1], [-1]], output_name="output", output_type="float32", output_size=[3],
            auxiliary_cfg={{"platform": '"onnxruntime_onnx"', "max_batch_size": 8}},
            engine_type="triton",
        )
        processor = ModelRequestProcessor(task_id="{stack.serving_id}")
        processor.deserialize(skip_sync=True)
        processor.add_endpoint(dict(serving_url="by/hand", model_id=local.id, **tensors))
        processor.add_endpoint(
            dict(serving_url="sentiment", model_id="{current}", **tensors), preprocess_code="{code}"
        )
        processor.add_model_monitoring(
            dict(base_serving_url="auto", monitor_name="watched", monitor_project="tests",
                 max_versions=2, **tensors)
        )
        processor.serialize()
        # What the inference app does at its start and at every poll.
        processor.deserialize()
        processor._update_monitored_models()
        processor.deserialize()
    """
    stack.run(sys.executable, "-c", textwrap.dedent(script))
    reason = f"preprocess.py is of bundle 303, the model of bundle {number}; deploy them together"
    assert stack.wait("sentiment", reason=reason)["ready"]
    row = stack.wait("by/hand", ready=True)
    assert (row["model"], row["verified"], row["versions_loaded"]) == ("by_hand", False, [1])
    assert source.is_file(), "a file:// address is copied, never moved"
    assert stack.wait("auto/1", ready=True)["model"] == "auto_1"
    assert answers(stack.triton, "auto_1", 1, 5.0)
    stack.cli("model", "remove", "--endpoint", "by/hand")
    wait_until(lambda: not ready(stack.triton, "by_hand", 1), 60)
    wait_until(lambda: not (stack.triton.repository / "by_hand").exists(), 60)


@pytest.mark.usefixtures("_sentiment")
def test_a_crash_of_everything_with_the_control_plane_down(stack: Stack) -> None:
    stack.end("controller", signal.SIGKILL)
    stack.end("control-plane", signal.SIGKILL)
    stack.triton.kill()
    stack.triton.start()
    stack.start_controller()
    stack.wait("sentiment", ready=True)
    assert answers(stack.triton, "sentiment", stack.row("sentiment")["bundle_version"], 2.0)
    wait_until(lambda: "no answer" in str(stack.status()["controller"]["control_plane_error"]), 120)
    stack.end("controller")
    stack.start_control_plane()
    stack.start_controller()
    wait_until(lambda: stack.status()["controller"]["last_sync_ok"], 60)
    assert stack.row("sentiment")["ready"]
    # Its first report begins its task again.
    time.sleep(1.5)
    # Asked for before its end: whoever outlives it is no child of its any more.
    own = psutil.Process(stack.processes["controller"].pid).children(recursive=True)
    stack.end("controller")
    wait_until(lambda: not any(map(goes_on, own)), 60, lambda: f"left behind: {own}")


@pytest.mark.usefixtures("_sentiment")
def test_the_engine_has_a_task_of_its_own_that_tells_of_changes(stack: Stack) -> None:
    # One that runs would begin its task again.
    if stack.processes["controller"].poll() is None:
        stack.end("controller")
    script = f"""
        from clearml import Task
        from transformer_serving.engine.controller.control_plane import clearml_edge
        engine = clearml_edge.ClearmlControlPlane("{stack.serving_id}")
        engine.report_figures('nv_inference_count{{model="m",version="7"}} 25')
        engine.close()
        serving = Task.get_task(task_id="{stack.serving_id}")
        found = Task.get_tasks(project_name=serving.get_project_name(), task_name="triton engine")
        print(len(found), found[0].name, found[0].task_type, found[0].status)
        print(found[0].get_reported_console_output(number_of_reports=50))
        found[0].reload()
        print(found[0].get_last_scalar_metrics())
    """
    said = stack.run(sys.executable, "-c", textwrap.dedent(script))
    assert "1 served - triton engine inference stopped" in said
    assert f"sentiment: ready bundle {stack.row('sentiment')['bundle_version']}" in said
    assert "nv_inference_count" in said
    assert "m.v7" in said
