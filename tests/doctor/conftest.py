"""A healthy environment of real parts: a control plane, HTTP servers, programs on PATH, files."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bundles import write_bundle
from tests.contract.plans import Plan, build
from tests.free_ports import free_ports
from tests.stand_in import stand_in
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.local.record import Ports, StackRecord
from transformer_serving.desk.versions.lock import read_lock

ROOT = Path(__file__).parent.parent.parent
CLI = str(Path(sys.executable).with_name("transformer-serving"))
PIN = read_lock().image
# What the pin's own image would have built on the scene's GPU.
FITTING = Plan(PIN.tensorrt, 239, "8.6")
ACCESS, SECRET = "AN_ACCESS_KEY", "a secret of the tests"

# docker that knows `--version`, `version`, `compose version`, `compose ps` and `exec`, which runs
# the given Python code here, in the environment of a container: of two of inference, the second
# has another file server where the test names one.
# A shell's first line has no room for a Python whose path has a blank.
DOCKER = """#!/bin/sh
''':'
exec "{python}" -S "$0" "$@"
'''
import json, os, subprocess, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("{client}")
elif arguments[0] == "version":
    print("{engine}")
elif arguments[:2] == ["compose", "version"]:
    print("Docker Compose version v{compose}")
elif arguments[:2] == ["compose", "ps"]:
    for name in ("demo-inference-1", "demo-inference-2", "demo-triton-1"):
        print(json.dumps({{"Name": name, "State": "running"}}))
elif arguments[0] == "exec" and "inference" in arguments[1]:
    inside = dict(os.environ)
    if arguments[1].endswith("2"):
        inside["CLEARML_FILES_HOST"] = "{files}" or inside["CLEARML_FILES_HOST"]
    sys.exit(subprocess.run(["{python}", "-S", *arguments[3:]], env=inside).returncode)
else:
    sys.exit(1)
"""


@contextmanager
def answering(reply: Callable[[str], tuple[int, bytes, dict[str, str]]]) -> Iterator[str]:
    """A real HTTP server; `reply` gives status, body and headers for a path. Yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, headers = reply(self.path)
            self.send_response_only(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The kit's own control plane as a process; its address."""
    (port,) = free_ports(1)
    data = tmp_path_factory.mktemp("control-plane")
    process = subprocess.Popen(
        [
            sys.executable, "-m", "transformer_serving.control_plane",
            f"--port={port}", f"--data={data}", "--host=127.0.0.1",
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "TRANSFORMER_SERVING_ACCESS_KEY": ACCESS,
            "TRANSFORMER_SERVING_SECRET_KEY": SECRET,
        },
    )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.1)
        else:
            return


@pytest.fixture(scope="session")
def triton() -> Iterator[str]:
    """What answers like Triton's metadata route, with the embedded pin's version."""
    body = json.dumps({"name": "triton", "version": "2.51.0"}).encode()
    with answering(lambda path: (200, body, {})) as address:
        yield address


@dataclass(frozen=True)
class Scene:
    """The healthy environment; a test plants one fault in it."""

    folder: Path
    subject: Subject

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    def program(self, name: str, text: str) -> None:
        stand_in(self.programs, name, text)

    def docker(self, *, engine: str = "28.2.2", compose: str = "2.29.1", files: str = "",
               client: str = "Docker version 28.2.2, build e6534b4") -> None:  # fmt: skip
        text = DOCKER.format(
            python=sys.executable, engine=engine, compose=compose, files=files, client=client
        )
        self.program("docker", text)

    def gpu(self, driver: str = f"{PIN.driver_min}.1", capability: str = "8.6") -> None:
        self.program("nvidia-smi", f"#!/bin/sh\necho 'NVIDIA A10, {driver}, {capability}'\n")

    def endpoints(self, *rows: dict[str, Any]) -> None:
        path = self.subject.state / "triton" / "controller.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"controller": {}, "endpoints": list(rows)}))


READY = {"endpoint": "good", "model": "good", "ready": True, "verified": True, "reason": None}


@pytest.fixture
def scene(
    tmp_path: Path, control_plane: str, triton: str, endpoint_fields: dict[str, Any]
) -> Scene:
    state, bundle, log = tmp_path / "state", tmp_path / "bundle", tmp_path / "triton.log"
    state.mkdir()
    write_bundle(bundle, endpoint_fields, engine="tensorrt", content=build(FITTING))
    log.write_text('I1120 12:00:00.000001 1 server.cc:676] "started"\nE1120 a line of its own\n')
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "CLEARML_API_HOST": control_plane,
        "CLEARML_FILES_HOST": control_plane,
        "CLEARML_API_ACCESS_KEY": ACCESS,
        "CLEARML_API_SECRET_KEY": SECRET,
        "TRANSFORMER_SERVING_TRITON_HTTP": triton.removeprefix("http://"),
    }
    subject = Subject(
        state=state,
        environment=environment,
        record=StackRecord(Ports(*free_ports(4)), ACCESS, SECRET),
        bundle=bundle,
        log=log,
        usual_triton="127.0.0.1:9",
    )
    found = Scene(tmp_path, subject)
    found.docker()
    found.gpu()
    found.endpoints(READY)
    return found
