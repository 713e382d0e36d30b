"""Who starts or stops a stack is alone with it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.engine.triton_server import wait_until
from transformer_serving.desk.clearml_tools.cli import COMMAND_S
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import stack, turn
from transformer_serving.desk.local.record import Ports, StackRecord, load_record, save_record
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.desk.local.turn import own_turn


def nothing(_: str) -> None:
    return


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with own_turn(tmp_path, said.append):
            order.append("second")

    waiting = threading.Thread(target=second)
    with own_turn(tmp_path, nothing):
        waiting.start()
        wait_until(lambda: bool(said), 20)
        order.append("first")
    waiting.join(20)
    assert order == ["first", "second"]
    assert said[0].startswith("waiting for process ")


def test_the_longest_start_is_waited_for() -> None:
    assert turn._WAIT_S > 2 * stack._STARTING_S + COMMAND_S


def test_who_keeps_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "_WAIT_S", 0.0)
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from transformer_serving.desk.local.turn import own_turn\n"
        "with own_turn(Path(sys.argv[1]), print):\n print('mine', flush=True)\n sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "mine\n"
        with (
            pytest.raises(Failure, match=f"process {holder.pid} starts or stops the stack"),
            own_turn(tmp_path, nothing),
        ):
            pytest.fail("it is another's turn")
        # Who stops it does not wait for one that may itself wait for what is stopped.
        monkeypatch.setattr(turn, "_INSISTS_S", 0.0)
        said: list[str] = []
        assert stack.stop(tmp_path, said.append) == 0
        assert f"waiting for process {holder.pid}" in said
    finally:
        holder.kill()
        holder.communicate()
    # That of a process that was killed is free.
    with own_turn(tmp_path, nothing):
        pass


def test_a_folder_that_takes_no_lock_keeps_nobody_from_stopping(tmp_path: Path) -> None:
    """As on a disk that is read-only now."""
    (tmp_path / "up.lock").mkdir()
    assert stack.stop(tmp_path, nothing) == 0
    with pytest.raises(OSError, match="directory"), own_turn(tmp_path, nothing):
        pytest.fail("it has no turn")


def test_two_that_start_make_one_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the keys, the supervisor and the service of the first."""
    up: list[bool] = []
    both = threading.Barrier(2, timeout=20)
    services = iter(("one", "two"))

    def parts(
        state: Path, record: StackRecord, _supervisor: Supervisor, _report: object
    ) -> StackRecord:
        if record.serving_id is None:
            record = record.with_serving_id(next(services))
            save_record(state, record)
        return record

    monkeypatch.setattr(stack, "_start_parts", parts)
    monkeypatch.setattr(stack, "check_ports", lambda *_: None)
    monkeypatch.setattr(Supervisor, "is_up", lambda _: bool(up))
    monkeypatch.setattr(Supervisor, "start", lambda _, _settings: up.append(True))
    found: list[StackRecord] = []

    def start() -> None:
        both.wait()
        found.append(stack.start(tmp_path / "state", Ports(), nothing).record)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(up) == 1
    assert found[0] == found[1] == load_record(tmp_path / "state")
    assert found[0].serving_id == "one"


def test_down_makes_no_folder(tmp_path: Path) -> None:
    stack.stop(tmp_path / "nowhere", nothing)
    assert not (tmp_path / "nowhere").exists()
