"""Requests whose time is over when their worker leaves: each is answered, counted and logged."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port
from tests.gateway.conftest import JSON, ROOT
from tests.gateway.figures import durations, of, read
from transformer_serving.gateway.figures.folder import VARIABLE
from transformer_serving.gateway.figures.page import page
from transformer_serving.gateway.server import worker_process
from transformer_serving.gateway.server.listener import hold, listen
from transformer_serving.gateway.server.worker_order import MAKE_WAY, Report, WorkerOrder

SOON_S = 60
APP = """
import asyncio, os, time
from starlette.responses import Response, StreamingResponse
from preprocess.generation.answer import StreamAnswer
from tests.gateway.played_host import App, Ours, Processor, host_of
from transformer_serving.contract.worker.request_context import current_caller
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.settings import read_settings


class Host(App):
    async def __call__(self, scope, receive, send):
        while scope["type"] == "lifespan":
            told = (await receive())["type"]
            await send({"type": told + ".complete"})
            if told.endswith("shutdown"):
                return
        if scope["path"] == "/serve/begun":
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        if scope["path"] == "/serve/flows":
            await StreamingResponse(events())(scope, receive, send)
            return
        await asyncio.Event().wait()


class Older(Response):
    # A stream of a kit that knows only of callers that leave.
    is_stream, code = True, "left"

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await receive()


async def events():
    yield b"begun"
    await asyncio.Event().wait()


class Played(Processor):
    async def _answer(self, url):
        if url == "older":
            return Older()
        if url == "owns":
            # Of code that is not of this kit, which nobody watches.
            return StreamingResponse(events())
        if url == "streams":
            closed = lambda *reason: None
            return StreamAnswer(
                events(), {}, closed, time.monotonic() + 600,
                tell=lambda error: error.kind.code.encode(),
            )
        if url == "texts":
            # As an older kit's queue before an engine, which takes every end for the caller's.
            await asyncio.wait({current_caller.get()})
            left = Response(b"", 499)
            left.code = "left"
            return left
        return await super()._answer(url)


class Asked(Ours):
    operations = ("v2.infer",)


NAMES = ("never", "older", "owns", "streams", "texts")
processor = Played(dict.fromkeys((*NAMES, "hosts", "begun", "flows"), "never"))
for name in NAMES:
    processor.built(name, Asked())
host = host_of(processor)
host.app = Host()
app = FrontDoor(host, read_settings())
"""


class Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int
    grpc: str

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Raises HTTPException where the connection ends before the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SOON_S)
        try:
            connection.request(method, path, body, JSON)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, name: str) -> tuple[int, bytes]:
        return self.ask("POST", f"/serve/{name}", b'{"text": "a"}')

    def upload(self) -> bytes:
        """What is answered to a body of which nothing more comes."""
        with socket.create_connection(("127.0.0.1", self.port), SOON_S) as connection:
            head = b"POST /serve/never HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            connection.sendall(head + b'content-length: 100000\r\n\r\n{"text": ')
            return b"".join(iter(lambda: connection.recv(1000), b""))

    def infer(self) -> str:
        """The status that a call of gRPC fails with."""
        asked = triton.InferInput("args", [1], "FP32")
        asked.set_data_from_numpy(np.zeros(1, np.float32))
        with (
            triton.InferenceServerClient(self.grpc) as client,
            pytest.raises(InferenceServerException) as raised,
        ):
            client.infer("never", [asked])
        return str(raised.value.status())

    def running(self) -> float:
        seen = read(self.ask("GET", "/metrics")[1].decode())
        name = "gateway_requests_in_flight"
        return sum(value for (figure, _), value in seen.items() if figure == name)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    figures = tmp_path / "figures"
    figures.mkdir()
    monkeypatch.setenv(VARIABLE, str(figures))
    (tmp_path / "played_app.py").write_text(APP)
    number = free_port()
    with ExitStack() as stack:
        listener = stack.enter_context(listen("127.0.0.1", 0, 16))
        stack.enter_context(hold("127.0.0.1", number))
        reports, theirs = os.pipe()
        parent, ours = os.pipe()
        order = WorkerOrder(
            "played_app", listener.fileno(), theirs, parent, 16, 0.5, 600.0,
            grpc=f"127.0.0.1:{number}",
        )  # fmt: skip
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", worker_process.MODULE, order.line()],
                env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
                pass_fds=(order.listener, parent, theirs), stderr=log,
            )  # fmt: skip
        try:
            while Report.STARTED.value not in os.read(reports, 100):
                assert process.poll() is None
            yield Worker(process, listener.getsockname()[1], f"127.0.0.1:{number}")
        finally:
            process.kill()
            process.wait(SOON_S)
            for file in (reports, theirs, parent, ours):
                os.close(file)


@pytest.mark.parametrize("told", [signal.SIGTERM, MAKE_WAY])
def test_what_is_not_answered_in_time_is_unavailable(
    worker: Worker, told: signal.Signals, tmp_path: Path
) -> None:
    whole = ("never", "texts", "hosts")
    asking: list[Callable[[], Any]] = [
        *(partial(worker.post, name) for name in whole),
        worker.upload, worker.infer,
        partial(worker.post, "streams"),
    ]  # fmt: skip
    broken = ("older", "owns", "begun", "flows")
    with ThreadPoolExecutor(len(asking) + len(broken)) as pool:
        answers: list[Future[Any]] = [pool.submit(ask) for ask in asking]
        cut = [pool.submit(worker.post, name) for name in broken]
        wait_until(lambda: worker.running() == len(answers) + len(cut), SOON_S)
        worker.process.send_signal(told)
        *plain, upload, call, stream = [one.result(SOON_S) for one in answers]
        for one in cut:
            # Nothing says so in it: it is not to look whole.
            with pytest.raises(http.client.IncompleteRead):
                one.result(SOON_S)
    assert worker.process.wait(SOON_S) == 0
    assert [status for status, _ in plain] == [503] * len(whole)
    assert all(b'"code":"unavailable"' in body for _, body in plain)
    assert upload.startswith(b"HTTP/1.1 503")
    assert call == "StatusCode.UNAVAILABLE"
    assert stream == (200, b"begununavailable")
    seen = read(page().decode())
    # The upload and the call of gRPC are for that endpoint, too.
    counted = {"never": 3, **dict.fromkeys(("texts", "hosts", "streams", *broken), 1)}
    for name, times in counted.items():
        assert durations(seen, name) == {("503", "unavailable"): times}
        assert of(seen, "gateway_requests_in_flight", endpoint=name) == 0
    log = (tmp_path / "log").read_text()
    assert "the worker leaves, 10 requests that still run are ended" in log
    # What had begun is given no second answer, which Granian takes for a fault.
    assert '"endpoint": "owns"' not in log
    assert '"endpoint": "texts", "status": 503, "code": "unavailable"' in log
