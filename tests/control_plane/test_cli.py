"""The unmodified clearml-serving command, as a user runs it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.free_ports import free_port
from tests.without_frameworks import path_without_frameworks

if TYPE_CHECKING:
    from tests.control_plane.conftest import ServerProcess

Cli = Callable[..., str]

ENDPOINT = [
    *("--engine", "triton", "--input-name", "x", "--input-type", "int32", "--input-size", "1"),
    *("128", "--output-name", "o", "--output-type", "float32", "--output-size", "2"),
]


PREPROCESS = """
class Preprocess:
    async def process(self, data, state, collect_custom_statistics_fn=None):
        return {"got": data}
"""


@contextlib.contextmanager
def inference_app(environment: dict[str, str], service: str, folder: Path) -> Iterator[str]:
    """clearml-serving's own app as it is installed; yields once it answers."""
    port = free_port()
    app = ["clearml_serving.serving.main:app", "--host", "127.0.0.1", "--port", str(port)]
    # Its report process would outlive the kill below and hold the test up.
    configuration = folder / "threaded.conf"
    configuration.write_text("sdk.development.report_use_subprocess: false\n")
    own = {
        "CLEARML_SERVING_TASK_ID": service,
        "CLEARML_CONFIG_FILE": str(configuration),
        "PYTHONPATH": path_without_frameworks(folder),
    }
    with (folder / "app.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", *app],
            env={**environment, **own},
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while not _answers(f"{url}/docs"):
            assert process.poll() is None, (folder / "app.log").read_text()
            assert time.monotonic() < deadline, "the inference app did not answer within 120 s"
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


@pytest.fixture
def cli(clearml_environment: dict[str, str], tmp_path: Path) -> Cli:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("clearml-serving")), *arguments],
            env={**clearml_environment, "PYTHONPATH": path_without_frameworks(tmp_path)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout
        assert "Failed parsing response" not in done.stdout, done.stdout
        return done.stdout

    return run


def last_id(output: str) -> str:
    return str(re.findall(r"(?:ID|id)=([0-9a-f]{32})", output)[-1])


@pytest.fixture
def service(cli: Cli) -> str:
    return last_id(cli("create", "--name", "service of a test"))


def models_of(server: ServerProcess, *identities: str) -> list[dict[str, Any]]:
    found = server.call(server.session(), "models.get_all", id=list(identities))
    models: list[dict[str, Any]] = found["models"]
    return models


def task_of(server: ServerProcess, service: str) -> dict[str, Any]:
    task: dict[str, Any] = server.call(server.session(), "tasks.get_by_id", task=service)["task"]
    return task


def configuration(server: ServerProcess, service: str) -> dict[str, str]:
    return {name: item["value"] for name, item in task_of(server, service)["configuration"].items()}


def test_models_from_upload_to_endpoint(
    cli: Cli,
    service: str,
    server: ServerProcess,
    clearml_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    session = server.session()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "model.onnx").write_bytes(b"weights")
    (tmp_path / "preprocess.py").write_text(PREPROCESS)
    upload = ["--id", service, "model", "upload", "--project", "Cli Models"]
    folder = last_id(cli(*upload, "--name", "of folder", "--framework", "onnx", "--path", "bundle"))
    path = "bundle/model.onnx"
    file = last_id(cli(*upload, "--name", "of file", "--tags", "a", "--publish", "--path", path))
    contents = {
        model["id"]: session.get(model["uri"]).content for model in models_of(server, folder, file)
    }
    assert contents[folder].startswith(b"PK")
    assert contents[file] == b"weights"
    assert {model["id"]: model["ready"] for model in models_of(server, folder, file)} == {
        folder: False,
        file: True,
    }
    add = ["--id", service, "model", "add", "--endpoint", "t1", "--model-id", folder]
    cli(*add, "--preprocess", "preprocess.py", *ENDPOINT)
    artifacts = task_of(server, service)["execution"]["artifacts"]
    [artifact] = [item for item in artifacts if item["key"].startswith("py_code")]
    assert session.get(artifact["uri"]).text == PREPROCESS
    with inference_app(clearml_environment, service, tmp_path) as url:
        assert requests.post(f"{url}/serve/t1", json={"a": 1}, timeout=20).json() == {
            "got": {"a": 1}
        }
    assert '"serving_url": "t1"' in cli("--id", service, "model", "list")
    cli("--id", service, "model", "remove", "--endpoint", "t1")
    assert "t1" not in configuration(server, service)["endpoints"]
    assert service in cli("list")


def test_canary_auto_update_metrics_and_config(
    cli: Cli, service: str, server: ServerProcess
) -> None:
    of = ["--id", service]
    model = server.call(server.session(), "models.create", name="bert", uri="file:///bert")["id"]
    cli(*of, "model", "add", "--endpoint", "fixed", "--model-id", model, *ENDPOINT)
    auto = [*of, "model", "auto-update", "--endpoint", "auto", "--name", "bert", "--project", "Cli"]
    cli(*auto, "--max-versions", "2", *ENDPOINT)
    canary = [*of, "model", "canary", "--endpoint", "split", "--weights", "0.1", "0.9"]
    cli(*canary, "--input-endpoint-prefix", "fixed")
    cli(*of, "metrics", "add", "--endpoint", "fixed", "--variable-scalar", "x=0,1,2")
    assert "fixed" in cli(*of, "metrics", "list")
    cli(*of, "config", "--triton-grpc-server", "127.0.0.1:9001", "--metric-log-freq", "0.5")
    kept = configuration(server, service)
    assert "auto" in kept["model_monitoring"]
    assert "split" in kept["canary"]
    assert "fixed" in kept["metric_logging"]
    general = task_of(server, service)["hyperparams"]["General"]
    assert general["triton_grpc_server"]["value"] == "127.0.0.1:9001"
    cli(*of, "metrics", "remove", "--endpoint", "fixed")
    assert "fixed" not in configuration(server, service)["metric_logging"]
