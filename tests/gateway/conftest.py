"""The real clearml-serving app twice, behind the gateway and as it is, on one control plane."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psutil
import pytest

from tests.free_ports import free_port
from tests.without_frameworks import path_without_frameworks
from transformer_serving.gateway.server.worker_process import MODULE

if TYPE_CHECKING:
    from tests.gateway.text_serving import TextServing

ROOT = Path(__file__).parent.parent.parent
ENDPOINTS = Path(__file__).parent / "endpoints"
POLL_MINUTES = "0.01"
Headers = Mapping[str, str | bytes]
JSON = {"content-type": "application/json"}
STOCK_APP = "clearml_serving.serving.main:app"
# CPython 3.11 counts the depth of all threads' parsers together, and clearml imports in one of its
# own: a start may end so. The stack's supervisor and compose start it again, and so do we, once.
_PARSERS_FAULT = "AST constructor recursion depth mismatch"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.raw)


@dataclass
class Server:
    """One process that serves HTTP."""

    command: list[str]
    environment: dict[str, str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> Server:
        # As from a shell, also where the tests themselves run under nohup.
        command = ["env", "--default-signal=HUP", *self.command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, cwd=ROOT, stdout=log, stderr=log
            )
        return self

    def wait_for(self, path: str, seconds: float = 300) -> Server:
        """Until the path answers anything but 503."""
        deadline = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None and self.log.read_text().count(_PARSERS_FAULT) == 1:
                self.start()
            assert self.process.poll() is None, self.log.read_text()
            try:
                if self.ask("GET", path).status != 503:
                    return self
            except OSError:
                pass
            assert time.monotonic() < deadline, self.stacks()
            time.sleep(0.05)

    def stacks(self) -> str:
        """The log, with what every thread was doing; ends the process."""
        self.process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        return self.log.read_text()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Headers | None = None,
        timeout_s: float = 60,
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: Headers | None = None) -> Reply:
        """A JSON body under /serve/, where it is not bytes already."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        return self.ask("POST", f"/serve/{path}", raw, {**JSON, **(headers or {})})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def workers(self) -> list[psutil.Process]:
        """The gateway's, which are other processes than the one that looks after them."""
        found = []
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if MODULE in process.cmdline():
                    found.append(process)
        return sorted(found, key=lambda one: one.pid)

    def resident_mib(self) -> float:
        """Of the processes that serve."""
        serving = self.workers() or [psutil.Process(self.process.pid)]
        return sum(process.memory_info().rss for process in serving) / 2**20

    def tell_to_stop(self) -> None:
        # The host's app takes ten seconds to leave, whatever it was asked; nobody asks how it ends.
        is_stock = STOCK_APP in self.command
        self.process.send_signal(signal.SIGKILL if is_stock else signal.SIGTERM)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.tell_to_stop()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                # One that was stopped cannot leave with its parent.
                for process in psutil.Process(self.process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                self.process.kill()
        return self.process.wait(60)


@dataclass(frozen=True)
class Session:
    """A control plane with one serving service; `gateway` and `stock` serve it."""

    folder: Path
    environment: dict[str, str]
    control_plane: Server

    def gateway(self, *options: str, **settings: str) -> Server:
        """`python -m transformer_serving.gateway`, not started yet."""
        port = free_port()
        module = ["-m", "transformer_serving.gateway"]
        return self._server(port, [*module, f"--port={port}", *options], settings)

    def uvicorn(self, app: str, **settings: str) -> Server:
        """`uvicorn APP`, not started yet."""
        port = free_port()
        options = [app, f"--port={port}", "--no-access-log"]
        return self._server(port, ["-m", "uvicorn", *options], settings)

    def clearml_serving(self, *arguments: str) -> str:
        """The unmodified command line, on this service: without --id it takes the newest one."""
        service = self.environment["CLEARML_SERVING_TASK_ID"]
        done = subprocess.run(
            [sys.executable, "-m", "clearml_serving", f"--id={service}", *arguments],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _server(self, port: int, arguments: list[str], settings: dict[str, str]) -> Server:
        log = self.folder / f"server-{port}.log"
        environment = {**self.environment, **settings}
        return Server([sys.executable, *arguments], environment, port, log)


def clearml_environment(folder: Path, port: int) -> dict[str, str]:
    address = f"http://127.0.0.1:{port}"
    (folder / "clearml.conf").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLEARML_")}
    return {
        **kept,
        "PYTHONPATH": path_without_frameworks(folder, ROOT),
        "TRANSFORMER_SERVING_ACCESS_KEY": "GATEWAYTESTS",
        "TRANSFORMER_SERVING_SECRET_KEY": "the-key-of-the-gateway-tests",
        "CLEARML_WEB_HOST": address,
        "CLEARML_API_HOST": address,
        "CLEARML_FILES_HOST": address,
        "CLEARML_API_ACCESS_KEY": "GATEWAYTESTS",
        "CLEARML_API_SECRET_KEY": "the-key-of-the-gateway-tests",
        "CLEARML_CACHE_DIR": str(folder / "cache"),
        "CLEARML_CONFIG_FILE": str(folder / "clearml.conf"),
        "CLEARML_BKG_THREAD_REPORT": "1",
        "CLEARML_SUPPRESS_UPDATE_MESSAGE": "1",
        "CLEARML_TASK_NO_REUSE": "1",
        "CLEARML_LOG_LEVEL": "WARNING",
        "CLEARML_SERVING_POLL_FREQ": POLL_MINUTES,
        "PYTHONFAULTHANDLER": "1",
        "HOME": str(folder),
    }


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with running_session(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@contextlib.contextmanager
def running_session(folder: Path) -> Iterator[Session]:
    port = free_port()
    environment = clearml_environment(folder, port)
    control_plane = Server(
        [
            sys.executable, "-m", "transformer_serving.control_plane",
            "--host=127.0.0.1", f"--port={port}", f"--data={folder / 'data'}",
        ],
        environment, port, folder / "control-plane.log",
    )  # fmt: skip
    control_plane.start().wait_for("/health")
    try:
        done = subprocess.run(
            [sys.executable, str(ENDPOINTS / "register.py"), str(folder)], env=environment,
            cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        found = re.search(r"^id=([0-9a-f]{32})$", done.stdout, re.MULTILINE)
        assert found, done.stdout + done.stderr
        environment["CLEARML_SERVING_TASK_ID"] = found.group(1)
        yield Session(folder, environment, control_plane)
    finally:
        control_plane.stop()


@contextlib.contextmanager
def running(gateway: Server, stock: Server) -> Iterator[dict[str, Server]]:
    """Both set-ups, started and told to stop at once."""
    servers = {"gateway": gateway.start(), "stock": stock.start()}
    try:
        gateway.wait_for("/health/ready")
        stock.wait_for("/docs")
        yield servers
    finally:
        for server in servers.values():
            server.tell_to_stop()
        for server in servers.values():
            server.stop()


@pytest.fixture(scope="session")
def both(session: Session) -> Iterator[dict[str, Server]]:
    """The two ways, started at once."""
    limit = {"TRANSFORMER_SERVING_MAX_BODY_BYTES": str(LIMIT)}
    # Looking for changes as often as elsewhere, the host's app takes an eighth of a core.
    stock = session.uvicorn(STOCK_APP, CLEARML_SERVING_POLL_FREQ="0.1")
    with running(session.gateway(**limit), stock) as servers:
        yield servers


LIMIT = 1_000_000


@pytest.fixture(scope="session")
def gateway(both: dict[str, Server]) -> Server:
    return both["gateway"]


@pytest.fixture(params=["gateway", "stock"])
def way(request: pytest.FixtureRequest, both: dict[str, Server]) -> Server:
    """Each test runs over both ways."""
    return both[request.param]


def _running_texts(
    session: Session, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TextServing]:
    # It imports this module.
    from tests.gateway.text_serving import running_text_serving

    with running_text_serving(session, tmp_path_factory.mktemp("texts")) as running:
        yield running


# For who leaves its Triton, its models and its service as they are, or as they were.
text_serving = pytest.fixture(scope="session", name="text_serving")(_running_texts)
# For who kills its Triton, or changes its models or its service.
own_text_serving = pytest.fixture(scope="module", name="own_text_serving")(_running_texts)


@pytest.fixture(scope="session")
def text_gateway(text_serving: TextServing) -> Iterator[Server]:
    """Before `text_serving`, with no setting of its own; what it counts is everybody's."""
    started = text_serving.gateway(CLEARML_SERVING_POLL_FREQ="0.1").start()
    try:
        yield started.wait_for("/health/ready")
    finally:
        started.stop()
