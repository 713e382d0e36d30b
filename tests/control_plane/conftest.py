"""An app in this process for the rules, a real server process for everything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from starlette.testclient import TestClient

from tests.control_plane.sdk_runs import RunSdk
from tests.free_ports import free_port
from transformer_serving.control_plane.app import create_app
from transformer_serving.control_plane.settings import ControlPlaneSettings

ACCESS_KEY, SECRET_KEY = "access-of-the-test", "secret-of-the-test"


class ApiClient:
    """Calls API methods as the SDK does: GET with a JSON body, which holds a stray `method`."""

    def __init__(self, http: TestClient) -> None:
        self.http = http
        login = http.get("/auth.login", auth=(ACCESS_KEY, SECRET_KEY))
        self.headers = {"Authorization": f"Bearer {login.json()['data']['token']}"}

    def answer(self, method: str, /, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"method": "get", **fields}
        sent = self.http.request("GET", f"/v2.23/{method}", json=body, headers=self.headers)
        return sent.status_code, sent.json()

    def call(self, method: str, /, **fields: Any) -> dict[str, Any]:
        status, body = self.answer(method, **fields)
        assert status == 200, body["meta"]
        data: dict[str, Any] = body["data"]
        return data

    def refusal(self, method: str, /, **fields: Any) -> tuple[int, int]:
        status, body = self.answer(method, **fields)
        assert body["meta"]["result_code"] == status != 200
        return status, body["meta"]["result_subcode"]

    def project(self, name: str = "Project One") -> str:
        return str(self.call("projects.create", name=name, description="")["id"])

    def task(self, name: str = "a task", **fields: Any) -> str:
        return str(self.call("tasks.create", **{"name": name, "type": "training", **fields})["id"])

    def model(self, name: str = "a model", **fields: Any) -> str:
        fields = {"name": name, "uri": f"http://files/{name}", **fields}
        return str(self.call("models.create", **fields)["id"])

    def get_task(self, identity: str) -> dict[str, Any]:
        task: dict[str, Any] = self.call("tasks.get_by_id", task=identity)["task"]
        return task

    def get_model(self, identity: str) -> dict[str, Any]:
        model: dict[str, Any] = self.call("models.get_by_id", model=identity)["model"]
        return model


@pytest.fixture
def settings(tmp_path: Path) -> ControlPlaneSettings:
    return ControlPlaneSettings(
        data=tmp_path / "data", access_key=ACCESS_KEY, secret_key=SECRET_KEY
    )


@pytest.fixture
def http(settings: ControlPlaneSettings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8008") as client:
        yield client


@pytest.fixture
def api(http: TestClient) -> ApiClient:
    return ApiClient(http)


@dataclass(slots=True)
class ServerProcess:
    """The control plane as `python -m` starts it; with `files` it may open so many, 0: as here."""

    data: Path
    port: int
    files: int = 0
    process: subprocess.Popen[bytes] | None = None
    sessions: list[requests.Session] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        keys = {
            "TRANSFORMER_SERVING_ACCESS_KEY": ACCESS_KEY,
            "TRANSFORMER_SERVING_SECRET_KEY": SECRET_KEY,
        }
        module = "transformer_serving.control_plane"
        command = [sys.executable, "-m", module, f"--port={self.port}", f"--data={self.data}"]
        if self.files:
            command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self.files), *command]
        with (self.data.parent / f"{self.data.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=os.environ | keys, stderr=log)
        deadline = time.monotonic() + 60
        while not self._healthy():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, "control plane did not answer within 60 s"
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Seconds until the process was gone."""
        assert self.process is not None
        begun = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(20)
        return time.monotonic() - begun

    def log(self) -> str:
        return (self.data.parent / f"{self.data.name}.log").read_text()

    def session(self) -> requests.Session:
        session = requests.Session()
        self.sessions.append(session)
        login = session.get(f"{self.url}/auth.login", auth=(ACCESS_KEY, SECRET_KEY), timeout=20)
        session.headers["Authorization"] = f"Bearer {login.json()['data']['token']}"
        return session

    def call(self, session: requests.Session, method: str, /, **fields: Any) -> dict[str, Any]:
        answer = session.get(f"{self.url}/v2.23/{method}", json=fields, timeout=30)
        assert answer.status_code == 200, answer.text
        data: dict[str, Any] = answer.json()["data"]
        return data

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)

    def _healthy(self) -> bool:
        try:
            return bool(requests.get(f"{self.url}/health", timeout=2).json()["status"] == "ok")
        except requests.RequestException:
            return False


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of this test alone, which may be killed; not started yet."""
    server = ServerProcess(tmp_path / "server", free_port())
    yield server
    server.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server that the tests with the real SDK share."""
    server = ServerProcess(tmp_path_factory.mktemp("shared") / "server", free_port())
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def clearml_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def clearml_environment(server: ServerProcess, clearml_home: Path) -> dict[str, str]:
    """What the unmodified clients read; nothing of the user's own ClearML settings."""
    configuration = clearml_home / "clearml.conf"
    configuration.touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLEARML_")}
    return {
        **kept,
        "CLEARML_API_HOST": server.url,
        "CLEARML_WEB_HOST": server.url,
        "CLEARML_FILES_HOST": server.url,
        "CLEARML_API_ACCESS_KEY": ACCESS_KEY,
        "CLEARML_API_SECRET_KEY": SECRET_KEY,
        "CLEARML_CONFIG_FILE": str(configuration),
        "CLEARML_CACHE_DIR": str(clearml_home / "cache"),
        "CLEARML_SUPPRESS_UPDATE_MESSAGE": "1",
        "HOME": str(clearml_home),
    }


@pytest.fixture
def threaded(tmp_path: Path) -> dict[str, str]:
    """Reports from a thread: a process for it takes the SDK ten seconds to end."""
    configuration = tmp_path / "threaded.conf"
    configuration.write_text("sdk.development.report_use_subprocess: false\n")
    return {"CLEARML_CONFIG_FILE": str(configuration)}


@pytest.fixture
def run_sdk(clearml_environment: dict[str, str], tmp_path: Path) -> RunSdk:
    """Runs a script with the real SDK, in a process of its own as users do."""

    def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(script))
        return subprocess.run(
            [sys.executable, str(path), *arguments],
            env=clearml_environment | environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )

    return run
