"""The Triton container's two processes, played by shells: started again, ended, told to end."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_first_loads import ONE, record, state
from tests.small_disk import fill, small_disk
from transformer_serving.contract.settings.polls import SERVING_POLL, TRITON_POLL
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.engine import container
from transformer_serving.engine.backends.shared_area import FOLDER
from transformer_serving.engine.container import Container
from transformer_serving.engine.container_commands import GRACE_VARIABLE, commands, end_seconds
from transformer_serving.engine.controller.first_loads import awaited
from transformer_serving.engine.controller.records import FailedChange, Kind
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.image_pin import PINNED_TENSORRT, PINNED_TRITON, difference
from transformer_serving.engine.shared_memory import area_prefix

pytestmark = pytest.mark.usefixtures("signals_given_back")

BOUND_S = 60


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def wait_for_three_lines(path: Path) -> None:
    deadline = time.monotonic() + BOUND_S
    while not path.exists() or len(path.read_text().splitlines()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_triton_that_ends_at_once_ends_the_container(tmp_path: Path) -> None:
    log, pid = tmp_path / "triton.log", tmp_path / "pid"
    controller = shell(f"echo $$ > {pid}; exec sleep 600")
    triton = shell(f"until [ -s {pid} ]; do sleep 0.05; done; echo no space left; exit 3")
    assert Container(triton, controller, tmp_path).run() == 3
    assert log.read_text() == "no space left\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_either_is_started_again_and_sigterm_ends_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "_QUICK_END_S", 0.0)
    monkeypatch.setattr(container, "_CONTROLLER_PAUSE_S", 0.0)
    tritons, controllers = tmp_path / "tritons", tmp_path / "controllers"

    def stop() -> None:
        wait_for_three_lines(tritons)
        wait_for_three_lines(controllers)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    running = Container(
        shell(f"echo x >> {tritons}; exit 1"),
        shell(f"echo x >> {controllers}; exit 1"),
        tmp_path,
    )
    assert running.run() == 0
    stopping.join()


@pytest.mark.slow
def test_what_a_triton_has_left_ends_before_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As vLLM's engine, which keeps the memory of its GPU; whoever starts it may group it."""
    monkeypatch.setattr(container, "_QUICK_END_S", 0.0)
    left, next_one = tmp_path / "left", tmp_path / "next"
    grouped = "import os; os.setpgid(0, 0); os.execvp('sleep', ['sleep', '600'])"
    first = f'{sys.executable} -c "{grouped}" & echo $! > {left}; kill -9 $$'

    def stop() -> None:
        deadline = time.monotonic() + BOUND_S
        while not next_one.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    triton = shell(f"[ -e {left} ] && touch {next_one} && exec sleep 600; {first}")
    assert Container(triton, shell("exec sleep 600"), tmp_path).run() == 0
    stopping.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(left.read_text()), 0)
    assert [record.args for record in caplog.records if "were left" in record.msg] == [(1,)]


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first"])
def test_a_controller_that_hangs_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Also in a volume that is new, before it has written anything."""
    monkeypatch.setattr(container, "_CONTROLLER_PAUSE_S", 0.0)
    controllers = tmp_path / "controllers"
    if not is_first:
        StateFile(tmp_path / "controller.json").publish(state(ONE, models=("a",)))

    def stop() -> None:
        wait_for_three_lines(controllers)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    third = f"[ $(wc -l < {controllers}) -ge 3 ] && exec sleep 600"
    hangs = shell(f"echo x >> {controllers}; {third}; kill -STOP $$")
    assert Container(shell("exec sleep 600"), hangs, tmp_path, silence_s=0.1).run() == 0
    stopping.join()


# A child that heeds no SIGTERM, nor what it becomes; it has said so once that is so.
DEAF = "trap '' TERM; echo x >> {told}; exec sleep 600"


def test_what_does_not_end_when_it_is_told_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a line in the container has ended its first process, nobody else kills the rest."""
    monkeypatch.setattr(container, "_KILLED_S", float(BOUND_S))
    told = (tmp_path / "triton", tmp_path / "controller")

    def stop() -> None:
        deadline = time.monotonic() + BOUND_S
        while not all(path.exists() for path in told):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    triton, controller = (shell(DEAF.format(told=path)) for path in told)
    running = Container(triton, controller, tmp_path, end_s=0.1)
    assert running.run() == 0
    stopping.join()
    killed = [record.args[0] for record in caplog.records if "killed" in record.msg]  # type: ignore[index]
    assert killed == ["the controller", "tritonserver"]
    children: tuple[Any, ...] = (running._triton, running._controller)
    assert [child.ended() for child in children] == [-signal.SIGKILL] * 2


def test_what_the_kernel_holds_is_waited_for_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in a driver's call is not gone when it is killed: here, as nothing kills it."""
    monkeypatch.setattr(container, "_KILLED_S", 0.0)
    child = container._Child(shell("exec sleep 600"), None)
    child.start()
    process: Any = child._process
    with monkeypatch.context() as patch:
        patch.setattr(process, "kill", lambda: None)
        child.kill()
        assert child.ended() is None
    child.kill()
    assert process.wait(BOUND_S) == -signal.SIGKILL


def unhindered(handler: Any, held: threading.Event | None) -> bool:
    """Whether the handler of SIGTERM ends while its own thread is at the event and has its lock."""
    done = threading.Event()

    def interrupted() -> None:
        with held._cond if held is not None else nullcontext():  # type: ignore[attr-defined]
            handler(signal.SIGTERM, None)
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    return done.wait(60)


def test_sigterm_never_waits_for_whom_it_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: Any = Container(shell("exit 1"), shell("exit 1"), tmp_path)
    assert unhindered(running._leave, getattr(running, "_stopping", None) or None)
    for name in ("BKG_THREAD_REPORT", "SUPPRESS_UPDATE_MESSAGE", "LOG_LEVEL"):
        # Which it sets for good where they are not.
        monkeypatch.setenv(f"CLEARML_{name}", "")
    controller = importlib.import_module("transformer_serving.engine.controller.__main__")
    ended = threading.Event()
    monkeypatch.setattr(controller, "_LEAVE_S", 0.0)
    monkeypatch.setattr("os._exit", lambda _: ended.set())
    stop = threading.Event()
    controller._leave_when_told(stop)
    assert unhindered(signal.getsignal(signal.SIGTERM), stop)
    assert stop.wait(BOUND_S)
    assert ended.wait(BOUND_S)


def test_a_new_start_says_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Triton is up before its controller has looked at it, and no model is loaded yet."""
    path, seen = tmp_path / "controller.json", tmp_path / "seen.json"
    file = StateFile(path)
    file.commit("a", record("a"))
    file.publish(state(ONE, models=("a",)))
    failed = FailedChange("f", "it was not loaded to the end", 1.0, 1, 11.0, kind=Kind.AWAY)
    assert awaited(json.loads(path.read_text())) is None
    file.keep_failures({("a", "f"): failed})
    os.utime(path, (1_000, 1_000))
    Container(shell(f"cp -p {path} {seen}; exit 3"), shell("exec sleep 600"), tmp_path).run()
    with pytest.raises(KeyError):
        awaited(json.loads(seen.read_text()))
    # The controller is not there yet, and its beat neither.
    assert seen.stat().st_mtime == 1_000
    after = StateFile(path)
    assert after.records() == {"a": record("a")}
    assert after.failures() == {("a", "f"): failed}


def test_a_first_start_has_no_beat_before_its_controllers(tmp_path: Path) -> None:
    path, seen = tmp_path / "controller.json", tmp_path / "seen.json"
    Container(shell(f"cp -p {path} {seen}; exit 3"), shell("exec sleep 600"), tmp_path).run()
    with pytest.raises(KeyError):
        awaited(json.loads(seen.read_text()))
    assert seen.stat().st_mtime == 0


def test_the_shared_memory_of_the_container_before_is_gone_before_a_start(tmp_path: Path) -> None:
    """A pod's outlives its containers."""
    left = FOLDER / f"{area_prefix(tmp_path / 'models')}left"
    of_another = FOLDER / f"{area_prefix(tmp_path / 'others')}left"
    for area in (left, of_another):
        area.touch()
    try:
        running = Container(shell(f"test ! -e {left} && exit 3"), shell("exec sleep 600"), tmp_path)
        assert running.run() == 3
        assert of_another.exists()
    finally:
        for area in (left, of_another):
            area.unlink(missing_ok=True)


def test_a_start_on_a_disk_that_takes_nothing_is_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    StateFile(tmp_path / "controller.json").publish(state(ONE, models=("a",)))
    monkeypatch.setattr("transformer_serving.engine.controller.state.replace_file", full)
    assert Container(shell("exit 3"), shell("exec sleep 600"), tmp_path).run() == 3


def test_only_the_controller_is_given_the_key(tmp_path: Path) -> None:
    told = {name: tmp_path / name for name in ("triton", "controller")}
    wait = f"until [ -s {told['controller']} ]; do sleep 0.05; done"
    triton = shell(f'echo "<$THE_KEY>" > {told["triton"]}; {wait}; exit 1')
    controller = shell(f'echo "<$THE_KEY>" > {told["controller"]}; exec sleep 600')
    Container(triton, controller, tmp_path, {"THE_KEY": "secret"}).run()
    assert {name: path.read_text() for name, path in told.items()} == {
        "triton": "<>\n",
        "controller": "<secret>\n",
    }


def test_the_log_for_the_controller_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "_LOG_BYTES", 100)
    log = tmp_path / "triton.log"
    Container(shell("seq -w 1 50; exit 1"), shell("exec sleep 600"), tmp_path).run()
    lines = log.read_text().splitlines()
    assert lines[-1] == "50"
    assert 0 < len(lines) < 50


def test_a_log_without_room_neither_ends_triton_nor_the_containers_own(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "triton.log").symlink_to("/dev/full")
    # Its first line that nobody reads would end it: 9.
    triton = shell("seq 1 100000 || exit 9; exit 3")
    assert Container(triton, shell("exec sleep 600"), tmp_path).run() == 3
    assert capfdbinary.readouterr().out.endswith(b"\n100000\n")


def test_once_there_is_room_the_controller_reads_again(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        filler = fill(disk)
        told = tmp_path / "told"
        room = f"until [ -e {told} ]; do sleep 0.05; done"
        triton = shell(f"seq 1 2000 || exit 9; {room}; echo there is room; exit 3")

        def make_room() -> None:
            seen = b""
            deadline = time.monotonic() + BOUND_S
            while b"\n2000\n" not in seen and time.monotonic() < deadline:
                seen += capfdbinary.readouterr().out
                time.sleep(0.05)
            filler.unlink()
            told.touch()

        making = threading.Thread(target=make_room)
        making.start()
        assert Container(triton, shell("exec sleep 600"), disk).run() == 3
        making.join()
        lines = (disk / "triton.log").read_text().splitlines()
        # What stands before it is whole: a part of a line would be taken for another one.
        assert lines == [*map(str, range(1, len(lines))), "there is room"]
        assert len(lines) < 2000


def test_commands_follow_the_variables(tmp_path: Path) -> None:
    variables = {
        "CLEARML_TRITON_POLL_FREQ": "0.5",
        "TRANSFORMER_SERVING_VERSION_COMPATIBLE": "1",
        "TRANSFORMER_SERVING_KEEP_TASKS_SECONDS": "450",
    }
    triton, controller = commands(variables, tmp_path, "secret")
    assert "--backend-config=tensorrt,version-compatible=true" in triton
    assert "--metrics-address=0.0.0.0:8003" in controller
    assert "--metrics-address=127.0.0.1" in triton
    assert not [word for word in controller if "secret" in word]
    assert {"--poll-seconds=30", "--grace-seconds=90", "--filter=*"} <= set(controller)
    assert "--keep-tasks-seconds=450" in controller
    assert not [word for word in controller if word.startswith("--model-cache")]
    assert "--keep-tasks-seconds=0" in commands({}, tmp_path, "secret")[1]
    shared = {"TRANSFORMER_SERVING_MODEL_CACHE": "/run/models"}
    assert "--model-cache=/run/models" in commands(shared, tmp_path, "secret")[1]
    assert not [word for word in controller if word.startswith("--store-bytes")]
    limited = {"TRANSFORMER_SERVING_STORE_BYTES": "20401094656"}
    assert "--store-bytes=20401094656" in commands(limited, tmp_path, "secret")[1]
    assert "--exit-timeout-secs=10" in triton
    with pytest.raises(ValueError, match="CLEARML_TRITON_POLL_FREQ must be .*: set one, or none$"):
        commands({"CLEARML_TRITON_POLL_FREQ": "often"}, tmp_path, "secret")
    with pytest.raises(ValueError, match="KEEP_TASKS_SECONDS must be a number of at least 0"):
        commands({"TRANSFORMER_SERVING_KEEP_TASKS_SECONDS": "-1"}, tmp_path, "secret")


@pytest.mark.parametrize(
    ("triton", "workers", "grace", "seconds"),
    [("", "", "", 42), ("1", "1.0", "", 150), ("0.1", "5", "", 336), ("5", "0.1", "", 336),
     ("2", "", "", 270), ("720", "720", "", 86430), ("720", "720", "86430", 86430),
     ("86400", "86400", "", 10368030), ("0.1", "0.1", "30", 30), ("0.1", "0.1", "13", 13)],
)  # fmt: skip
def test_the_previous_bundle_serves_on_until_every_worker_has_looked(
    tmp_path: Path, triton: str, workers: str, grace: str, seconds: int
) -> None:
    variables = {
        TRITON_POLL.name: triton, SERVING_POLL.name: workers, GRACE_VARIABLE: grace
    }  # fmt: skip
    given = {name: value for name, value in variables.items() if value}
    assert f"--grace-seconds={seconds}" in commands(given, tmp_path, "secret")[1]


@pytest.mark.parametrize(
    ("triton", "workers", "fits"), [("1", "1", 150), ("0.1", "5", 336), ("0.3", "0.2", 60)]
)
def test_a_grace_that_is_over_before_both_polls_names_the_one_that_fits(
    tmp_path: Path, triton: str, workers: str, fits: int
) -> None:
    """Else each worker asks, after each deploy, for a bundle that is unloaded."""
    variables = {TRITON_POLL.name: triton, SERVING_POLL.name: workers, GRACE_VARIABLE: "30"}
    with pytest.raises(ValueError, match=rf"{GRACE_VARIABLE} \(30\) .* set {fits}, or none"):
        commands(variables, tmp_path, "secret")


def test_keys_that_are_none_end_the_container_with_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse every bundle, and in a rollout stand for a pod that serves them."""
    monkeypatch.setattr(container, "refuse_difference", lambda: None)
    monkeypatch.setattr(container, "STATE", tmp_path / "state")
    monkeypatch.setattr(container, "Container", None)
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, "release:AAAA")
    with pytest.raises(SystemExit) as ended:
        container.main()
    assert str(ended.value).startswith(f"error: {TRUSTED_KEYS_VARIABLE}: entry 1 is no NAME:KEY")
    assert not (tmp_path / "state").exists()


def test_triton_ends_before_its_container_is_killed(tmp_path: Path) -> None:
    longer = {"TRANSFORMER_SERVING_TRITON_EXIT_SECONDS": "600"}
    assert (end_seconds({}), end_seconds(longer)) == (30, 620)
    # A pod's grace is computed by the chart.
    assert "--exit-timeout-secs=600" in commands(longer, tmp_path, "secret")[0]
    longer["TRANSFORMER_SERVING_STOP_SECONDS"] = "620"
    assert "--exit-timeout-secs=600" in commands(longer, tmp_path, "secret")[0]
    longer["TRANSFORMER_SERVING_STOP_SECONDS"] = "60"
    with pytest.raises(ValueError, match=r"_STOP_SECONDS \(60\), .* set that to 620 or more$"):
        commands(longer, tmp_path, "secret")


@pytest.mark.parametrize("text", ["60.5", "60.0", "6e1", "+60"])
def test_the_seconds_of_a_stop_are_digits(text: str) -> None:
    """Compose puts an s behind them for Docker, which takes some of these, and HAProxy none."""
    with pytest.raises(ValueError, match="_STOP_SECONDS must be a whole number from 1 to 86400"):
        end_seconds({"TRANSFORMER_SERVING_STOP_SECONDS": text})
    assert end_seconds({"TRANSFORMER_SERVING_STOP_SECONDS": "60"}) == 30


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, "TRITON_SERVER_VERSION is not set"),
        ({"TRITON_SERVER_VERSION": "2.52.0"}, "Triton 2.52.0 is not the pinned 2.51.0"),
        (
            {"TRITON_SERVER_VERSION": "2.51.0", "TRT_VERSION": "10.6.0.26"},
            "TensorRT 10.6.0.26 is not the pinned 10.5.0.18",
        ),
        ({"TRITON_SERVER_VERSION": "2.51.0"}, None),
        ({"TRITON_SERVER_VERSION": "2.51.0", "TRT_VERSION": "10.5.0.18+cuda12.6"}, None),
    ],
)
def test_another_image_than_the_pin(stated: dict[str, str], said: str | None) -> None:
    pins = {PINNED_TRITON: "2.51.0", PINNED_TENSORRT: "10.5.0.18"}
    found = difference({**pins, **stated})
    assert found is None if said is None else (found is not None and said in found)
