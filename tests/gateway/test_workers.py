"""Workers that are killed are replaced at once, whatever the others do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import ROOT, Server, Session
from transformer_serving.contract.file_stamp import stamp_of
from transformer_serving.gateway.access import OPEN
from transformer_serving.gateway.figures.folder import VARIABLE, figures_folder, take_ends
from transformer_serving.gateway.server import command, supervisor, worker, worker_process
from transformer_serving.gateway.server.listener import listen, listen_on_socket
from transformer_serving.gateway.server.supervisor import Supervisor
from transformer_serving.gateway.server.worker import Worker
from transformer_serving.gateway.server.worker_order import BEAT_S, Report, WorkerOrder
from transformer_serving.gateway.server.worker_process import WorkerProcess
from transformer_serving.gateway.settings import GRPC_PORT

# Of a worker that was killed: the limit for one that hangs is a minute.
SOON_S = 45
HUNG_S = 120
# Between questions: asked without a pause they slow the very start that they wait for.
PAUSE_S = 0.01
STARTED = re.compile(r"worker \d+ serves")
SLOW_HEAD = (
    b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    b"content-length: 13\r\n\r\n"
)
SLOW_BODY = b'{"text": "a"}'
IN_FLIGHT = re.compile(rb'gateway_requests_in_flight{endpoint="ours"} 1\.0')


def replaced(server: Server, dead: psutil.Process) -> psutil.Process:
    """The new worker in the place of the one that is killed now."""
    before = server.workers()
    started = time.monotonic()
    dead.send_signal(signal.SIGKILL)
    wait_until(lambda: [one for one in server.workers() if one not in before], SOON_S)
    print(f"replaced after {time.monotonic() - started:.2f} s")  # noqa: T201
    return next(one for one in server.workers() if one not in before)


def test_a_killed_worker_is_replaced_beside_one_that_hangs(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    wait_until(lambda: len(STARTED.findall(server.log.read_text())) >= 2, 120)
    hanging, killed = server.workers()
    hanging.send_signal(signal.SIGSTOP)
    try:
        # The second one is killed in its start, before it can answer the question for its health.
        replaced(server, replaced(server, killed))
        assert hanging in server.workers()
    finally:
        hanging.send_signal(signal.SIGCONT)
        server.wait_for("/health/ready")
    try:
        # Both ends, whichever worker gives the page.
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) >= 3, 120)
        figures = server.ask("GET", "/metrics").raw.decode()
        assert "\ntransformer_serving_gateway_worker_restarts_total 2.0\n" in figures
        since = re.findall(r"^transformer_serving_gateway_start_time_\S+ (\S+)$", figures, re.M)
        assert len(set(since)) == 1
    finally:
        server.stop()


@pytest.mark.long
@pytest.mark.parametrize("started", [True, False])
def test_workers_leave_when_their_parent_was_killed(session: Session, started: bool) -> None:
    """Else they would keep the port from the parent that comes next. The control plane hangs."""
    server = session.gateway("--workers=2").start()
    workers: list[psutil.Process] = []
    try:
        enough = 2 if started else 1
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) >= enough, 120)
        workers = server.workers()
        assert len(workers) == 2
        session.control_plane.process.send_signal(signal.SIGSTOP)
        server.process.kill()
        wait_until(lambda: not any(worker.is_running() for worker in workers), SOON_S)
    finally:
        session.control_plane.process.send_signal(signal.SIGCONT)
        server.stop()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_workers_that_start_at_once_have_tasks_of_their_own(session: Session) -> None:
    """Without CLEARML_TASK_NO_REUSE two of three have the same one in most starts."""
    environment = {**session.environment}
    del environment["CLEARML_TASK_NO_REUSE"]
    server = replace(session, environment=environment).gateway("--workers=3").start()
    try:
        made = re.compile(r"^ClearML Task: (.*) task id=(\w+)$", re.MULTILINE)
        wait_until(lambda: len(made.findall(server.log.read_text())) >= 3, 120)
        found = made.findall(server.log.read_text())
    finally:
        server.stop()
    assert {what for what, _ in found} == {"created new"}
    assert len({task for _, task in found}) == 3


@pytest.mark.long
def test_a_worker_that_hangs_is_replaced(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    try:
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) == 2, 120)
        hanging, _ = server.workers()
        hanging.send_signal(signal.SIGSTOP)
        wait_until(lambda: hanging not in server.workers(), HUNG_S)
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) == 3, 120)
        assert f"worker {hanging.pid} was silent" in server.log.read_text()
    finally:
        server.stop()


def test_all_are_renewed_at_sighup_while_requests_go_on(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    answers = set()

    def renewed() -> bool:
        answers.add(server.post("ours", {"text": "a"}).status)
        return len(server.workers()) == 2 and not set(before) & set(server.workers())

    try:
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) == 2, 120)
        before = server.workers()
        server.process.send_signal(signal.SIGHUP)
        wait_until(renewed, 120)
        assert answers == {200}
    finally:
        assert server.stop() == 0


def test_a_lone_worker_is_renewed_without_a_moment_that_is_not_ready(session: Session) -> None:
    """Its successor takes no request before its first golden round is done."""
    server = session.gateway().start().wait_for("/health/endpoints/ours")
    told = set()
    try:
        for _ in range(2):
            before = server.workers()
            server.process.send_signal(signal.SIGHUP)
            end = time.monotonic() + 120
            while set(before) & set(server.workers()):
                assert time.monotonic() < end, server.stacks()
                for path in ("/health/ready", "/health/endpoints/ours"):
                    told.add((path, server.ask("GET", path).status))
                time.sleep(PAUSE_S)
        assert told == {("/health/ready", 200), ("/health/endpoints/ours", 200)}
    finally:
        assert server.stop() == 0


def test_a_hangup_of_the_whole_group_is_one_renewal(session: Session) -> None:
    """As where a terminal closes: no worker makes way before it has a successor."""
    server = session.gateway().start().wait_for("/health/endpoints/ours")
    told = set()
    try:
        (worker,) = server.workers()
        worker.send_signal(signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 120
        while worker in server.workers():
            assert time.monotonic() < end, server.stacks()
            told.add(server.ask("GET", "/health/ready").status)
            time.sleep(PAUSE_S)
        assert told == {200}
        assert f"worker {worker.pid} makes way" in server.log.read_text()
    finally:
        assert server.stop() == 0


def ignores_hangups(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (mask,) = re.findall(r"^SigIgn:\t(\w+)$", status, re.MULTILINE)
    return bool(int(mask, 16) >> signal.SIGHUP - 1 & 1)


def test_a_terminal_that_closes_means_nothing_under_nohup(session: Session) -> None:
    server = session.gateway("--workers=2")
    server.command.insert(0, "nohup")
    server.start()
    try:
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) == 2, 120)
        before = server.workers()
        for worker in before:
            worker.send_signal(signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        assert all(ignores_hangups(one) for one in (psutil.Process(server.process.pid), *before))
        # One that made way would take no more, and then leave.
        assert server.post("ours", {"text": "a"}).status == 200
        assert server.workers() == before
        assert "makes way" not in server.log.read_text()
    finally:
        assert server.stop() == 0


@pytest.fixture
def order() -> Iterator[WorkerOrder]:
    """For a worker that the test itself starts; its listener and its parent's pipe are open."""
    listener = listen("127.0.0.1", 0, 16)
    parent, ours = os.pipe()
    yield WorkerOrder("silent", listener.fileno(), -1, parent, 16, 5.0, 10.0)
    listener.close()
    for number in (parent, ours):
        os.close(number)


@pytest.mark.parametrize("paused", [True, False])
def test_time_in_which_nothing_ran_is_nobodys_silence(
    order: WorkerOrder, paused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container is paused for longer than a worker may be silent, or one worker is silent."""
    now, pauses = [1000.0], [100.0] if paused else [0.25] * 400
    clock = SimpleNamespace(
        monotonic=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + (pauses.pop() if pauses else seconds)),
    )
    for module in (supervisor, worker_process):
        monkeypatch.setattr(module, "time", clock)
    (tmp_path / "silent.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(worker_process, "MODULE", "silent")
    with socket.socket() as unused:
        made = Supervisor(unused, 1, order, 0.0)
        made._replace()
        (silent,) = made._workers
        try:
            while pauses:
                made._rest()
            made._replace()
            assert (silent.silent_seconds < 1) is paused
            if not paused:
                wait_until(lambda: silent.status == -signal.SIGKILL, SOON_S)
            assert (silent.status is None) is paused
        finally:
            silent.kill("is the test's")
            wait_until(lambda: silent.status is not None, SOON_S)
            silent.close()


def test_each_end_in_a_start_is_told_to_those_that_serve(
    order: WorkerOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was handed from one that died in its start to the next, while another one served."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "figures"))
    (tmp_path / "dies.py").write_text("raise SystemExit(9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(worker_process, "MODULE", "dies")
    monkeypatch.setattr(supervisor, "_PAUSE_S", 0.0)
    monkeypatch.setattr(supervisor, "_RENEWAL_PAUSE_S", 0.0)
    with figures_folder(), socket.socket() as unused:
        made = Supervisor(unused, 2, order, 0.0)
        made._any_started = True
        serving: Any = Made([], set(), order)
        made._workers.append(serving)
        made._replace()
        for _ in range(3):
            dying = made._workers[-1]
            wait_until(lambda one=dying: one.status is not None, SOON_S)
            made._replace()
        assert take_ends() == 3
        made._outdated = [serving]
        made._renew()
        wait_until(lambda: made._successor is None or made._successor.status is not None, SOON_S)
        made._renew()
        assert take_ends() == 1
        wait_until(lambda: made._workers[-1].status is not None, SOON_S)
        made._workers[-1].close()


class Made:
    """A worker's process that serves; the system has no room for those of the given numbers."""

    silent_seconds = 0.0
    status = None
    started = True

    def __init__(self, counted: list[WorkerOrder], full: set[int], order: WorkerOrder) -> None:
        counted.append(order)
        self.pid, self.tls, self.order = len(counted), None, order
        if self.pid in full:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.told: list[signal.Signals] = []

    @property
    def was_told(self) -> bool:
        return bool(self.told)

    def hear(self) -> None:
        pass

    def close(self) -> None:
        pass

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.told.append(number)


@pytest.fixture
def made_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    """A supervisor on a clock of its own, by the numbers of the processes that cannot be made."""
    now = [1000.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    monkeypatch.setattr(supervisor, "time", clock)
    with socket.socket() as unused:

        def made(count: int, full: set[int]) -> Supervisor:
            counted = list[WorkerOrder]()
            monkeypatch.setattr(
                supervisor, "WorkerProcess", lambda order, tls: Made(counted, full, order)
            )
            order = WorkerOrder("unused", unused.fileno(), -1, -1, 16, 5.0, 10.0)
            return Supervisor(unused, count, order, 0.0)

        yield made


def rounds(made: Supervisor, seconds: float) -> list[int]:
    """The workers that serve then; the supervisor must not have ended."""
    for _ in range(round(seconds / supervisor._ROUND_S)):
        made._hear()
        assert made._replace() == 0
        made._renew()
        made._rest()
    return [worker.pid for worker in made._workers]


def test_one_that_cannot_be_forked_ends_none_of_the_others(
    made_in: Callable[..., Supervisor], caplog: pytest.LogCaptureFixture
) -> None:
    made = made_in(2, {2, 3, 5, 6})
    assert rounds(made, 0.5) == [1]
    assert rounds(made, 5) == [1, 4]
    assert caplog.text.count("no process can be started for a worker") == 1
    assert "INFERENCE_PIDS" in caplog.text
    made._on_renew()
    assert rounds(made, 1) == [1, 4]
    # One after the other, after a pause for each that could not be made.
    assert rounds(made, 15) == [7, 8]
    assert caplog.text.count("no process can be started for a worker") == 2


@pytest.mark.parametrize("serves", [True, False])
def test_nobody_comes_to_a_dead_ones_successor_before_it_is_ready_where_another_serves(
    made_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    """It took its part of the questions for health, and the whole container was taken out."""
    monkeypatch.setattr(Made, "started", False)
    made = made_in(2, set())
    made._replace()
    first: list[Any] = list(made._workers)
    assert [one.order.when_ready for one in first] == [False, False]
    first[0].started, first[1].status = serves, -signal.SIGKILL
    for _ in range(2):
        made._replace()
        made._not_before = 0.0
    workers: list[Any] = made._workers
    stayed, new = workers
    assert stayed is first[0]
    assert new.order.when_ready is serves


@pytest.fixture
def _signals() -> Iterator[None]:
    """What the supervisor takes goes back to whose it was."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_where_not_even_one_can_be_forked_it_ends(made_in: Callable[..., Supervisor]) -> None:
    """As where each ends in its start: who started it must see that."""
    assert made_in(2, set(range(100))).run() == 3


def test_a_process_that_could_not_be_made_leaves_no_pipe_open(
    order: WorkerOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        WorkerProcess(order)
    assert os.listdir("/proc/self/fd") == before


ENDED_FROM_WITHIN = """
import asyncio, atexit, sys, time
from transformer_serving.gateway.asgi import send_json

# As ClearML's own work at the exit, without its server.
atexit.register(time.sleep, 600)
ENDS = {"/exit": sys.exit, "/stop": lambda: asyncio.get_running_loop().stop()}


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for what in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{what}.complete"})
    elif scope["path"] in ENDS:
        ENDS[scope["path"]]()
        await send_json(send, 200, "ended")
    else:
        await send_json(send, 200, "whole", before_the_end=lambda: asyncio.sleep(1))
"""


@pytest.mark.parametrize("path", ["/exit", "/stop"])
def test_one_whose_loop_was_ended_from_within_leaves_at_once(
    order: WorkerOrder, path: str, tmp_path: Path
) -> None:
    """What runs has its answer; nobody waits for what Python does at its exit."""
    (tmp_path / "ended.py").write_text(ENDED_FROM_WITHIN)
    reports, theirs = os.pipe()
    order = replace(order, module="ended", reports=theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", worker_process.MODULE, order.line()],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        pass_fds=(order.listener, order.parent, theirs),
    )
    os.close(theirs)
    try:
        while Report.STARTED.value not in os.read(reports, 100):
            assert process.poll() is None
        with socket.socket(fileno=os.dup(order.listener)) as listener:
            address = listener.getsockname()
        with (
            socket.create_connection(address, SOON_S) as running,
            socket.create_connection(address, SOON_S) as ending,
        ):
            running.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            # Without the last byte, for which it waits.
            answer = running.recv(1000)
            ending.sendall(b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode())
            while piece := running.recv(1000):
                answer += piece
        assert answer.endswith(b'"whole"')
        assert process.wait(SOON_S) == 1
    finally:
        process.kill()
        process.wait(SOON_S)
        os.close(reports)


@pytest.mark.parametrize(
    ("flag", "given", "told"),
    [
        *(("--port", port, "port: 0 to 65,535") for port in ("70000", "65536", "-1", "a")),
        *(
            ("--backlog", number, "number of connections: 1 to 2,147,483,647")
            for number in ("0", "a", "9999999999")
        ),
    ],
)
def test_what_is_no_port_is_no_start(
    flag: str, given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system takes a number modulo 65,536."""
    with pytest.raises(SystemExit) as ended:
        command.main([f"{flag}={given}"])
    assert ended.value.code == 2
    assert f"argument {flag}: {given} is no {told}\n" in capsys.readouterr().err


@pytest.mark.parametrize("told_to_leave", [False, True])
async def test_nobody_waits_without_end_for_one_to_be_ready(
    told_to_leave: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, worker.log.name)
    monkeypatch.setattr(worker, "_READY_S", 60.0 if told_to_leave else 0.2)
    told = asyncio.Event()
    if told_to_leave:
        told.set()
    app = SimpleNamespace(not_ready=lambda: "first golden requests under way")
    async with asyncio.timeout(30):
        await worker._readiness(app, told)
    assert ("first golden requests under way" in caplog.text) is not told_to_leave


class Clock:
    """A minute and a half beyond what a loop may hang, in sleeps that take no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > worker._LOOP_HUNG_S + 90:
            raise InterruptedError


async def test_a_worker_whose_loop_hangs_gives_no_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its process runs: the supervisor replaces what is silent."""
    clock, told = Clock(), list[float]()
    monkeypatch.setattr(worker, "time", clock)
    order: Any = SimpleNamespace(report=lambda _: told.append(clock.now))
    one = Worker(order)
    clock.now = 50.0
    one._turn()
    with pytest.raises(InterruptedError):
        one._beat()
    assert told[0] == 50.0
    assert told[-1] == 50.0 + worker._LOOP_HUNG_S - BEAT_S


def test_one_that_does_not_leave_in_its_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("NEVER_STARTS", str(hangs))
    monkeypatch.chdir(ROOT)
    parent, ours = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        order = WorkerOrder(
            "tests.gateway.never_starts", listener.fileno(), -1, parent, 8,
            graceful_seconds=0.0, leave_seconds=600.0,
        )  # fmt: skip
        one = WorkerProcess(order)
    try:
        wait_until(hangs.exists, SOON_S)
        one.tell()
        one.kill_if_late()
        assert one.status is None
        assert caplog.text == ""
        one._leave_by = 0.0
        one.kill_if_late()
        wait_until(lambda: one.status is not None, SOON_S)
        one.kill_if_late()
        assert one.status == -signal.SIGKILL
        assert caplog.text.count("has not left 600 s after its signal") == 1
    finally:
        one.kill("is the test's")
        one.close()
        for descriptor in (parent, ours):
            os.close(descriptor)


@pytest.mark.parametrize(("hard", "connections"), [(600, 300), (1200, 688)])
def test_as_many_connections_as_there_are_files_for(hard: int, connections: int) -> None:
    """Whatever the soft limit was: it is raised."""
    code = (
        "import resource; from transformer_serving.gateway.server.worker import _connections; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard})); "
        "print(_connections(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(connections), str(hard), str(hard)]


@pytest.mark.parametrize("hard", [1_000_000, resource.RLIM_INFINITY])
def test_no_more_connections_than_can_be_served(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: allowed.append(limits))
    assert worker._connections() == 65_024
    assert allowed == [(65_536, hard)]


def test_a_renewal_that_fails_is_tried_again(session: Session) -> None:
    server = session.gateway().start().wait_for("/health/ready")
    try:
        (before,) = server.workers()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(server.workers()) == 2, SOON_S)
        for one in server.workers():
            if one != before:
                one.kill()
        wait_until(lambda: server.workers() and before not in server.workers(), 120)
        assert "ended in its start; the old ones serve on" in server.log.read_text()
        assert server.ask("GET", "/health/ready").status == 200
    finally:
        assert server.stop() == 0


def test_one_that_cannot_start_ends_it(session: Session) -> None:
    server = session.gateway(TRANSFORMER_SERVING_TRUSTED_KEYS="no key at all").start()
    try:
        assert server.process.wait(120) == 3
    finally:
        server.stop()
    log = server.log.read_text()
    assert "TRANSFORMER_SERVING_TRUSTED_KEYS" in log
    assert "no worker could be started" in log


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_another_ones_port_is_an_error(option: str) -> None:
    """Also where the other one would share it. The command, but that it waits for no holder."""
    code = (
        "import sys; from transformer_serving.gateway.server import command, listener; "
        "listener._PATIENCE_S = 0.2; command.main(sys.argv[1:])"
    )
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", code, "--port=0", f"{option}={port}"], cwd=ROOT,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; end who listens there, "
        f"or name another with {option}\n"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host=192.0.2.1", "--port=0"], "name another with --host or --port"),
        (["--uds=/no/such/folder/a.sock"], "name another with --uds"),
    ],
)
def test_an_address_that_is_none_here_is_an_error(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPEN.name, "1")
    with pytest.raises(SystemExit) as ended:
        command.main(options)
    error = str(ended.value)
    assert error.startswith("error: cannot listen on ")
    assert error.endswith(f"; {told}")


def test_one_port_is_not_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(GRPC_PORT.name, "8080")
    with pytest.raises(SystemExit) as ended:
        command.main(["--port=8080"])
    assert ended.value.code == 2
    told = "error: --port and --grpc-port are both 8080; name two\n"
    assert capsys.readouterr().err == told


def test_a_unix_socket_in_the_place_of_one_that_was_left(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = session.gateway(f"--uds={path}").start()
    try:
        wait_until(lambda: b" 200 " in over(path, b"GET /health/ready"), 120)
        assert over(path, b"POST /serve/ours").startswith(b"HTTP/1.1 400")
    finally:
        assert server.stop() == 0
    assert not path.exists()


def test_who_still_listens_on_a_socket_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gateway.sock"
    last = listen_on_socket(path, 8)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: last.close())
    monkeypatch.setattr("transformer_serving.gateway.server.listener.time", clock)
    with listen_on_socket(path, 8) as listener, socket.socket(socket.AF_UNIX) as asker:
        assert last.fileno() == -1
        asker.connect(str(path))
        listener.accept()[0].close()


def test_who_hangs_on_a_socket_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is full, and it keeps its path."""
    monkeypatch.setattr("transformer_serving.gateway.server.listener._PATIENCE_S", 0.3)
    path = tmp_path / "gateway.sock"
    with ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as open_ones:
        open_ones.enter_context(listen_on_socket(path, 1))
        with contextlib.suppress(BlockingIOError):
            while True:
                queued = open_ones.enter_context(socket.socket(socket.AF_UNIX))
                queued.setblocking(False)
                queued.connect(str(path))
        refused = thread.submit(listen_on_socket, path, 1).exception(SOON_S)
        assert isinstance(refused, OSError)
        assert (refused.errno, path.is_socket()) == (errno.EADDRINUSE, True)


def test_a_leaving_gateway_leaves_its_successors_socket(session: Session, tmp_path: Path) -> None:
    """The first one has closed its listener and still answers when the second one comes."""
    path = tmp_path / "gateway.sock"
    patient = {"TRANSFORMER_SERVING_GRACEFUL_SECONDS": "300"}
    first, second = (session.gateway(f"--uds={path}", **patient) for _ in range(2))
    first.start()
    try:
        wait_until(lambda: b" 200 " in over(path, b"GET /health/ready"), 120)
        with socket.socket(socket.AF_UNIX) as slow:
            slow.connect(str(path))
            slow.sendall(SLOW_HEAD + SLOW_BODY[:1])
            wait_until(lambda: IN_FLIGHT.search(page_over(path)), SOON_S)
            first.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not over(path, b"GET /health/live"), SOON_S)
            before = stamp_of(path)
            second.start()
            wait_until(lambda: stamp_of(path) not in (before, None), SOON_S)
            assert first.process.poll() is None
            slow.sendall(SLOW_BODY[1:])
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            assert first.process.wait(SOON_S) == 0
        assert path.is_socket()
        wait_until(lambda: b" 200 " in over(path, b"GET /health/ready"), 120)
    finally:
        first.stop()
        second.stop()
    assert not path.exists()


def page_over(path: Path) -> bytes:
    """The figures, to their end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def over(path: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(str(path))
        connection.sendall(line + b" HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        return connection.recv(65536)
    return b""
