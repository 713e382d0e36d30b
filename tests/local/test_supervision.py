"""supervisord with small parts: found again, stopped in order, started again with a pause."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port_base
from tests.small_disk import fill, small_disk
from transformer_serving.contract.settings.preprocess import MAX_STREAMS, TRITON_HTTP
from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.cli import main
from transformer_serving.desk.doctor.finding import FAILURE, SKIPPED
from transformer_serving.desk.doctor.machine import check_ports
from transformer_serving.desk.doctor.parts import check_parts
from transformer_serving.desk.doctor.subject import subject_of
from transformer_serving.desk.doctor.triton import check_triton
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import METRICS_KEY_VARIABLE
from transformer_serving.desk.local import (
    leftovers as left,
    monitoring,
    stack,
    supervision,
    watchdog,
)
from transformer_serving.desk.local.leftovers import end_processes, leftovers, lives
from transformer_serving.desk.local.parts import BY_NAME, beat_file
from transformer_serving.desk.local.record import (
    Ports,
    StackRecord,
    new_record,
    require_record,
    save_record,
    state_directory,
)
from transformer_serving.desk.local.sockets import socket_folder, sockets_of
from transformer_serving.desk.local.supervision import Process, SilentSupervisor, Supervisor
from transformer_serving.desk.local.watchdog import Watchdog
from transformer_serving.desk.tune.traffic import refuse_traffic
from transformer_serving.desk.watch.look import look_at
from transformer_serving.gateway.access import KEYS_FILE
from transformer_serving.gateway.settings import GRACEFUL_SECONDS, WORKERS

STAYS = "import time; time.sleep(600)"
Start = Callable[..., Supervisor]


def nothing(_: str) -> None:
    return


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Another TMPDIR at each call, as another shell has one; short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:

        def another() -> Path:
            monkeypatch.setattr("tempfile.tempdir", tempfile.mkdtemp(dir=folder))
            return Path(tempfile.gettempdir())

        another()
        yield another


@pytest.fixture
def start(tmp_path: Path, temporary: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a supervisor whose parts run the given lines of Python."""
    configuration = supervision.configuration

    def small(state: Path, **parts: str) -> Supervisor:
        state.mkdir(exist_ok=True)

        def command(found: re.Match[str]) -> str:
            script = state / f"{found[1]}.py"
            script.write_text(parts.get(found[1], STAYS))
            return f"../{script.name}"

        plan = re.sub(r"-m transformer_serving\S+ (\S+)", command, configuration())
        monkeypatch.setattr(supervision, "configuration", lambda: plan)
        save_record(state, new_record(state, Ports()))
        supervisor = Supervisor(state)
        supervisor.start()
        for name in parts:
            supervisor.start_part(name)
        return supervisor

    started = []

    def noted(state: Path = tmp_path, **parts: str) -> Supervisor:
        started.append(state)
        return small(state, **parts)

    yield noted
    for state in started:
        Supervisor(state).stop()


def supervisor_of(state: Path) -> psutil.Process:
    return psutil.Process(int((state / "supervisor.pid").read_text()))


def pid_of(supervisor: Supervisor, name: str) -> int | None:
    return supervisor.processes()[name].pid


def test_a_shell_with_another_tmpdir_finds_it(
    start: Start, tmp_path: Path, temporary: Callable[[], Path]
) -> None:
    supervisor = start(triton=STAYS)
    keeper, part = supervisor_of(tmp_path), psutil.Process(pid_of(supervisor, "triton"))
    temporary()
    assert pid_of(Supervisor(tmp_path), "triton") == part.pid
    sockets = sockets_of(tmp_path)
    assert stack.stop(tmp_path, nothing) == 0
    assert not sockets.exists()
    assert not lives(keeper)
    assert not lives(part)


def test_down_leaves_no_folder_of_sockets_unless_somebody_keeps_something_there(
    tmp_path: Path, temporary: Callable[[], Path]
) -> None:
    place = temporary()
    stack.stop(tmp_path, nothing)
    save_record(tmp_path, new_record(tmp_path, Ports()))
    kept = sockets_of(tmp_path) / "letter"
    kept.touch()
    stack.stop(tmp_path, nothing)
    assert kept.exists()
    kept.unlink()
    stack.stop(tmp_path, nothing)
    require_record(tmp_path)
    assert not list(place.iterdir())


def test_what_a_running_stack_does_not_hear_is_named(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKERS.name, "1")
    monkeypatch.delenv(MAX_STREAMS.name, raising=False)
    monkeypatch.setattr(stack, "_start_parts", lambda _state, record, *_: record)
    start(triton=STAYS)

    def unheard() -> tuple[str, ...]:
        return stack.start(tmp_path, None, nothing).unheard

    monkeypatch.setenv(MAX_STREAMS.name, MAX_STREAMS.default)
    monkeypatch.setenv(TRITON_HTTP.name, "triton:8000")
    assert unheard() == ()
    monkeypatch.delenv(WORKERS.name)
    assert unheard() == ()
    monkeypatch.setenv(WORKERS.name, "2")
    monkeypatch.setenv(MAX_STREAMS.name, "3")
    assert unheard() == (WORKERS.name, MAX_STREAMS.name)
    said = CliRunner().invoke(main, ["up", "--state", str(tmp_path)]).output
    assert f"not taken over: {WORKERS.name}, {MAX_STREAMS.name}; stop it first" in said
    monkeypatch.setenv(WORKERS.name, "0")
    with pytest.raises(Failure, match=WORKERS.name) as refused:
        stack.start(tmp_path, None, nothing)
    assert refused.value.exit_code == 2


def test_a_shell_without_the_figures_key_takes_none_from_a_stack_that_runs(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its gateway looks at keys the stack knows, and not the shell."""
    monkeypatch.setattr(monitoring, "program", lambda part: f"/usr/bin/{part}")
    monkeypatch.setattr(stack, "_start_parts", lambda _state, record, *_: record)
    keys, key_file = tmp_path / "keys.json", monitoring.folder(tmp_path) / "metrics_key"
    keys.write_text(json.dumps({"keys": []}))
    with monkeypatch.context() as first:
        first.setenv(KEYS_FILE.name, str(keys))
        start(triton=STAYS)
    with pytest.raises(Failure, match="keys add NAME --metrics"):
        stack.start(tmp_path, None, nothing, watched=True)
    assert require_record(tmp_path).monitoring == ()
    for shown in ("ts_first", "ts_second"):
        with monkeypatch.context() as with_key:
            with_key.setenv(METRICS_KEY_VARIABLE, shown)
            stack.start(tmp_path, None, nothing, watched=True)
        stack.start(tmp_path, None, nothing, watched=True)
        assert key_file.read_text() == shown


def test_a_prometheus_that_runs_is_told_of_an_alertmanager_that_joins_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom it tells it reads at its start alone; the hint after `up` is to install one."""
    installed: list[str] = []
    monkeypatch.setattr(monitoring, "program", lambda part: part if part in installed else None)

    def start_all(_: Path, record: StackRecord, keeper: Supervisor, __: object) -> StackRecord:
        for name in record.monitoring:
            keeper.start_part(name)
        return record

    monkeypatch.setattr(stack, "_start_parts", start_all)
    supervisor = start(triton=STAYS)
    triton = pid_of(supervisor, "triton")

    def prometheus() -> int | None:
        stack.start(tmp_path, None, nothing, watched=True)
        assert {name for name, row in supervisor.processes().items() if row.pid} == {
            "triton", *installed,
        }  # fmt: skip
        return pid_of(supervisor, "prometheus")

    installed.append("prometheus")
    alone = prometheus()
    assert prometheus() == alone
    installed.append("alertmanager")
    told = prometheus()
    assert told != alone
    assert prometheus() == told
    assert pid_of(supervisor, "triton") == triton


def test_parts_find_a_file_of_the_callers_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEYS_FILE.name, "keys.json")
    part = psutil.Process(pid_of(start(triton=STAYS), "triton"))
    wait_until(lambda: KEYS_FILE.name in part.environ(), 20)
    assert part.environ()[KEYS_FILE.name] == str(tmp_path / "keys.json")


@pytest.mark.parametrize("name", ["50% off", "Project #2", "a ;b", "%(here)s", 'a"b', "a\\b"])
def test_a_folder_may_have_any_name(start: Start, tmp_path: Path, name: str) -> None:
    """supervisord has signs of its own, and no folder of a user's that has them may stop it."""
    supervisor = start(tmp_path / name, triton=STAYS)
    part = psutil.Process(pid_of(supervisor, "triton"))
    # It has none for a moment, between its fork and its program.
    wait_until(lambda: part.environ().get(MARK) == str(tmp_path / name), 20)
    assert (tmp_path / name / "logs" / "triton.log").exists()
    assert stack.stop(tmp_path / name, nothing) == 0
    assert not lives(part)


def test_why_it_does_not_start_is_said(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "configuration", lambda: "no configuration")
    with pytest.raises(Failure, match="did not start: Error: File contains no section headers"):
        Supervisor(tmp_path).start()


@pytest.mark.parametrize("through", ["link", "link/..", "state/../state"])
def test_a_stack_is_found_however_its_folder_is_named(
    start: Start, tmp_path: Path, through: str
) -> None:
    state = state_directory(str(tmp_path / "state"))
    supervisor = start(state, triton=STAYS)
    part = psutil.Process(pid_of(supervisor, "triton"))
    inside = state / "inside"
    inside.mkdir()
    (tmp_path / "link").symlink_to(inside if through == "link/.." else state)
    named = state_directory(str(tmp_path / through))
    assert named == state
    assert stack.stop(named, nothing) == 0
    assert not lives(part)


def test_one_whose_folder_has_another_name_since_is_ended(start: Start, tmp_path: Path) -> None:
    """It would keep its ports and its memory, and no command would end it; one of another folder,
    even a copy, is not taken for it."""
    state, renamed, copied = (tmp_path / name for name in ("state", "renamed", "copied"))
    supervisor = start(state, triton=STAYS)
    keeper, part = supervisor_of(state), psutil.Process(pid_of(supervisor, "triton"))
    shutil.copytree(state, copied)
    state.rename(renamed)
    stack.stop(copied, nothing)
    assert lives(keeper)
    assert lives(part)
    assert {one.pid for one in leftovers(renamed)} == {keeper.pid, part.pid}
    stack.stop(renamed, nothing)
    assert not lives(keeper)
    assert not lives(part)


def test_one_that_an_older_kit_started_by_a_link_is_ended(start: Start, tmp_path: Path) -> None:
    """It kept the name as it was given."""
    state, link = tmp_path / "state", tmp_path / "link"
    state.mkdir()
    link.symlink_to(state)
    supervisor = start(link, triton=STAYS)
    keeper, part = supervisor_of(link), psutil.Process(pid_of(supervisor, "triton"))
    stack.stop(state_directory(str(link)), nothing)
    assert not lives(keeper)
    assert not lives(part)


@pytest.mark.slow
def test_one_whose_sockets_were_tidied_away_is_ended_with_its_parts(
    start: Start, tmp_path: Path
) -> None:
    """The supervisor before them: it would start again what ends."""
    supervisor = start(triton=STAYS)
    keeper, part = supervisor_of(tmp_path), psutil.Process(pid_of(supervisor, "triton"))
    shutil.rmtree(sockets_of(tmp_path))
    assert not supervisor.is_up()
    stack.stop(tmp_path, nothing)
    assert not lives(keeper)
    assert not lives(part)
    assert not list(leftovers(tmp_path))


def test_a_supervisor_that_does_not_answer_is_not_down(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is what it keeps swept by an `up`, nor is it said to be down."""
    supervisor = start(triton=STAYS)
    keeper, part = supervisor_of(tmp_path), psutil.Process(pid_of(supervisor, "triton"))
    keeper.suspend()
    silent = f"the supervisor (pid {keeper.pid}) does not answer: it is stopped, or this machine"
    fix = f"let it go on: kill -CONT {keeper.pid}; or end the whole stack: transformer-serving down"
    try:
        with monkeypatch.context() as impatient:
            impatient.setattr(supervision, "_ANSWER_S", 0.5)
            for command in ("status", "up", "remove none", "restore none"):
                done = CliRunner().invoke(main, [*command.split(), "--state", str(tmp_path)])
                assert done.exit_code == 1, done.output
                assert f"error: {silent}" in done.output
                assert fix in done.output
            assert (look_at(tmp_path).fault or "").startswith(silent)
            with pytest.raises(SilentSupervisor):
                refuse_traffic(tmp_path, seconds=0.0)
            subject = subject_of(tmp_path)
            (finding,) = check_parts(subject)
            assert (finding.status, finding.why[: len(silent)]) == (FAILURE, silent)
            assert finding.fix.startswith(fix)
            assert [finding.status for finding in check_ports(subject)] == [SKIPPED]
            # Nobody can start it, as of one that is down: 'up' refuses.
            assert [finding.status for finding in check_triton(subject)] == [FAILURE]
        assert lives(part)
    finally:
        keeper.resume()
    assert pid_of(Supervisor(tmp_path), "triton") == part.pid


def test_the_record_of_a_copied_folder_leads_to_its_own_sockets(tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    save_record(copied, new_record(tmp_path / "first", Ports()))
    assert sockets_of(copied) == socket_folder(copied)


@pytest.mark.slow
def test_the_parts_end_in_their_order_however_long_one_takes(start: Start, tmp_path: Path) -> None:
    """The front door answers what it has before Triton is told to leave."""
    ready, ended, order = tmp_path / "ready", tmp_path / "ended", tmp_path / "order"
    leaves = (
        "import pathlib, signal, sys, time\n"
        "def leave(*_):\n"
        "    {}\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        f"open({str(ready)!r}, 'a').write('r')\n"
        "time.sleep(600)\n"
    )
    # Longer than what is left by a crash is given.
    slow = f"time.sleep(6); pathlib.Path({str(ended)!r}).touch()"
    first = f"pathlib.Path({str(order)!r}).write_text(str(pathlib.Path({str(ended)!r}).exists()))"
    start(triton=leaves.format(first), inference=leaves.format(slow))
    wait_until(lambda: ready.exists() and ready.read_text() == "rr", 20)
    keeper = supervisor_of(tmp_path)
    stack.stop(tmp_path, nothing)
    assert order.read_text() == "True"
    assert not lives(keeper)
    assert not (tmp_path / "supervisor.pid").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grace", "takes_s", "waited_s"), [("", 600, 2), ("30", 4, 36)], ids=["usual", "longer"]
)
def test_the_front_door_has_as_long_to_end_as_its_user_says(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: str, takes_s: int,
    waited_s: int,
) -> None:  # fmt: skip
    """Also where nothing in the shell of `down` says so."""
    monkeypatch.setattr("transformer_serving.desk.local.environment.PART_STOP_S", 1)
    for module in (supervision, left):
        monkeypatch.setattr(module, "PART_STOP_S", 1)
    monkeypatch.setattr(left, "_STOP_S", 2.0)
    monkeypatch.setenv(GRACEFUL_SECONDS.name, grace)
    patience: list[float] = []

    def end(processes: list[psutil.Process], patience_s: float, *meanwhile: Any) -> None:
        patience.append(patience_s)
        end_processes(processes, patience_s, *meanwhile)

    monkeypatch.setattr(left, "end_processes", end)
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    leaves = (
        "import pathlib, signal, sys, time\n"
        "def leave(*_):\n"
        f"    time.sleep({takes_s}); pathlib.Path({str(ended)!r}).touch()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        f"open({str(ready)!r}, 'a').write('r')\n"
        "time.sleep(600)\n"
    )
    supervisor = start(inference=leaves)
    part = psutil.Process(pid_of(supervisor, "inference"))
    wait_until(ready.exists, 60)
    monkeypatch.delenv(GRACEFUL_SECONDS.name)
    stack.stop(tmp_path, nothing)
    assert ended.exists() == (grace != "")
    # Of the supervisor, which waits for the part.
    assert patience[0] == waited_s
    assert not lives(part)


@pytest.mark.slow
def test_one_that_ends_soon_waits_and_up_starts_it_at_once(start: Start, tmp_path: Path) -> None:
    """Also where it lived for a second: its imports end it, and it would be started without end."""
    stays = tmp_path / "stays"
    script = (
        "import os, sys, time\n"
        f"time.sleep(600 if os.path.exists({str(stays)!r}) else 1.5)\n"
        "sys.exit(1)\n"
    )
    supervisor = start(triton=script)
    wait_until(lambda: supervisor.processes()["triton"].state == supervision.WAITING, 20)
    stays.touch()
    supervisor.start_part("triton")
    pid = pid_of(supervisor, "triton")
    assert pid is not None
    supervisor.start_part("triton")
    assert pid_of(supervisor, "triton") == pid


# Answers once other parts have begun.
_ANSWERS = """
import http.server, os, time
while not all(os.path.exists(f"../{name}.begun") for name in BESIDE):
    time.sleep(0.05)
class Ok(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", PORT), Ok).serve_forever()
"""


@pytest.mark.parametrize(
    ("service", "beside"),
    [(None, {"triton", "watchdog"}), ("own", {"triton", "controller", "watchdog"})],
    ids=["first", "again"],
)
def test_what_needs_no_control_plane_starts_beside_it(
    service: str | None,
    beside: set[str],
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And all else once it answers, and there is a service."""
    supervisor = start()
    record = replace(
        require_record(tmp_path), ports=Ports.from_base(free_port_base()), serving_id=service
    )
    for name in BY_NAME:
        begins = f"open('../{name}.begun', 'w').close()\n{STAYS}"
        (tmp_path / f"{name}.py").write_text(begins)
    plane = f"BESIDE, PORT = {beside}, {record.ports.control_plane}\n{_ANSWERS}"
    (tmp_path / "control-plane.py").write_text(plane)
    wait, run = stack.wait_until_healthy, []

    def running() -> set[str]:
        return {name for name, process in supervisor.processes().items() if process.pid}

    def waited(state: Path, of: StackRecord, keeper: Supervisor, names: tuple[str, ...]) -> None:
        if names == ("control-plane",):
            wait(state, of, keeper, names)
        run.append(running())

    monkeypatch.setattr(stack, "wait_until_healthy", waited)
    monkeypatch.setattr(ClearmlCli, "create_service", lambda *_: "own")
    started = stack._start_parts(tmp_path, record, supervisor, nothing)
    everything = {"control-plane", "triton", "controller", "inference", "watchdog"}
    assert run == [{"control-plane", *beside}, everything]
    assert started.serving_id == "own"


def test_who_starts_a_stack_that_is_stopped_meanwhile_hears_it(
    start: Start, tmp_path: Path
) -> None:
    """At once, with the first part and the last one."""
    supervisor = start(triton=STAYS)
    record = require_record(tmp_path)
    assert stack.stop(tmp_path, lambda _: None) == 0
    with pytest.raises(Failure, match="triton could not be started: the stack was stopped"):
        supervisor.start_part("triton")
    with pytest.raises(Failure, match="triton could not be waited for: the stack was stopped"):
        stack.wait_until_healthy(tmp_path, record, supervisor, ("triton",))


def test_a_supervisor_that_answers_late_is_waited_for(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is busy with what was started."""
    start(watchdog=STAYS)
    record, keeper = require_record(tmp_path), supervisor_of(tmp_path)
    asked = []

    def late(state: Path) -> list[psutil.Process]:
        """Called for the words of the failure."""
        asked.append(state)
        if len(asked) > 1:
            keeper.resume()
        beat_file(tmp_path, BY_NAME["watchdog"]).touch()
        return []

    monkeypatch.setattr(supervision, "supervisors", late)
    monkeypatch.setattr(supervision, "_ANSWER_S", 0.5)
    keeper.suspend()
    try:
        stack.wait_until_healthy(tmp_path, record, Supervisor(tmp_path), ("watchdog",))
    finally:
        keeper.resume()
    assert len(asked) > 1


class Looked(Supervisor):
    """Says of the watchdog's process that it has another pid at each look, where it `restarts`; the
    part is well from the third look on."""

    def __init__(self, state: Path, *, restarts: bool) -> None:
        super().__init__(state)
        self.looks, self.restarts = 0, restarts

    def processes(self) -> dict[str, Process]:
        self.looks += 1
        if self.looks == 3:
            beat_file(self.state, BY_NAME["watchdog"]).touch()
        found = super().processes()
        if self.restarts:
            found["watchdog"] = replace(found["watchdog"], pid=self.looks)
        return found


def test_a_part_that_goes_on_starting_is_waited_for_longer(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends again and again is not, and who gives up says what goes on."""
    start(watchdog=STAYS)
    record = require_record(tmp_path)
    monkeypatch.setattr(stack, "_WAIT_S", 0.0)
    starting = Looked(tmp_path, restarts=False)
    stack.wait_until_healthy(tmp_path, record, starting, ("watchdog",))
    assert starting.looks == 3
    beat_file(tmp_path, BY_NAME["watchdog"]).unlink()
    with pytest.raises(Failure, match="watchdog did not become healthy within 0 s") as failed:
        stack.wait_until_healthy(tmp_path, record, Looked(tmp_path, restarts=True), ("watchdog",))
    said = str(failed.value)
    assert (
        f"what was started goes on: see it with 'transformer-serving status --state {tmp_path}'"
        in said
    )
    assert said.endswith(f"end it: transformer-serving down --state {tmp_path}")


_WITH_FEW_FILES = """
import os, resource, sys
from pathlib import Path
from transformer_serving.desk.cli import main
from transformer_serving.desk.doctor import machine, subject
from transformer_serving.desk.local import stack, supervision
import rich.console, rich.table, rich.text
looked_at = subject.Subject(Path(sys.argv[1]), {})
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
if not os.geteuid():
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(*machine.check_files(looked_at))
main(["up", "--state", sys.argv[1]])
"""


def test_too_few_open_files_are_named_before_anything_is_made() -> None:
    """supervisord would name another number, and a setting that no user of this kit has."""
    limit = "at most 512 open files are allowed here (ulimit -Hn), the stack needs 1024"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        # For user nobody, as root may raise its own limit.
        Path(folder).chmod(0o777)
        state = Path(folder, "state")
        run = [sys.executable, "-c", _WITH_FEW_FILES, str(state)]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert (done.returncode, state.exists()) == (2, False), done.stderr
    assert f"error: {limit}: raise it" in done.stderr
    assert f"status='failure', why='{limit}', fix=" in done.stdout


def test_a_full_disk_is_named_before_a_start_and_where_one_fails(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some room is left: for the record, and for nothing that a part writes."""
    with small_disk(tmp_path / "disk", 4) as state:
        state.chmod(0o700)
        supervisor = start(state, triton=STAYS)
        filler = fill(state)
        os.truncate(filler, filler.stat().st_size - (256 << 10))
        full = f"no space is left on the disk of {state}"
        monkeypatch.setattr(stack, "_WAIT_S", 0.0)
        with pytest.raises(Failure, match=full):
            stack.wait_until_healthy(state, require_record(state), supervisor, ("controller",))
        stack.stop(state, nothing)
        with pytest.raises(Failure, match=full):
            stack.start(state, None, nothing)
        assert not list(leftovers(state))
        assert not list(state.glob("tmp*"))


def test_no_pause_is_longer_than_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Watchdog(tmp_path, new_record(tmp_path, Ports()))
    waits = {"triton": Process("triton", supervision.WAITING, None, 0.0)}
    assert looks.overdue(waits) == []
    monkeypatch.setattr(watchdog, "LONGEST_PAUSE_S", -1.0)
    assert looks.overdue(waits) == ["triton"]
    runs = {"triton": Process("triton", "RUNNING", 1, 0.0)}
    assert looks.overdue(runs) == []
    assert looks.waiting == {}
    # What was stopped by somebody else is left so.
    assert looks.overdue({"triton": Process("triton", supervision.STOPPED, None, 0.0)}) == []


@pytest.mark.slow
def test_a_start_that_failed_is_tried_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program's file was away, as while an environment is made anew."""
    supervisor = start(triton="raise SystemExit(1)")
    looks = Watchdog(tmp_path, new_record(tmp_path, Ports()))
    wait_until(lambda: supervisor.processes()["triton"].state == supervision.WAITING, 20)
    assert looks.overdue(supervisor.processes()) == []
    monkeypatch.setattr(watchdog, "LONGEST_PAUSE_S", -1.0)
    rpc = supervisor._rpc
    rpc.stopProcess("triton")
    assert supervisor.processes()["triton"].state == supervision.STOPPED
    watchdog.start_overdue(supervisor, looks.overdue(supervisor.processes()))
    assert supervisor.processes()["triton"].state != supervision.STOPPED
