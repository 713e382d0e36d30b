"""A lock that waits as long as its holder gets on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from transformer_serving.engine.controller.files.turn import turn


def test_one_waits_for_the_other_while_that_gets_on(tmp_path: Path) -> None:
    work, order = tmp_path / "work", []
    work.mkdir()
    holds = threading.Event()

    def hold() -> None:
        with turn(tmp_path / "a.lock", work) as ours:
            assert ours
            holds.set()
            # Longer than the other's patience, though never quiet for as long as that.
            for number in range(20):
                (work / "part").write_bytes(b"x" * number)
                time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(60)
    with turn(tmp_path / "a.lock", work, patience_s=4.0) as ours:
        order.append("second")
        assert ours
    thread.join()
    assert order == ["first", "second"]


def test_a_holder_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    with turn(tmp_path / "a.lock", tmp_path / "work") as held:
        assert held
        with turn(tmp_path / "a.lock", tmp_path / "work", patience_s=0.1) as ours:
            assert not ours
    with turn(tmp_path / "a.lock", tmp_path / "work") as ours:
        assert ours


def test_a_folder_may_go_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder clears up just then."""
    work, scan = tmp_path / "work", os.scandir
    (work / "part").mkdir(parents=True)

    def scandir(path: Any) -> Any:
        if Path(path) == work / "part":
            (work / "part").rmdir()
        return scan(path)

    with turn(tmp_path / "a.lock", work) as held:
        assert held
        monkeypatch.setattr(os, "scandir", scandir)
        with turn(tmp_path / "a.lock", work, patience_s=0.1) as ours:
            assert not ours
    assert not (work / "part").exists()


def test_who_waits_has_the_file_that_is_there(tmp_path: Path) -> None:
    """The holder deletes its own: two that lock different files would both have the turn."""
    lock, held, taken = tmp_path / "a.lock", threading.Event(), threading.Event()
    rivals = threading.Barrier(2)
    inside: list[int] = []

    def hold() -> None:
        with turn(lock, tmp_path / "work") as ours:
            assert ours
            held.set()
            assert taken.wait(60)

    def wait(number: int) -> None:
        rivals.wait(60)
        with turn(lock, tmp_path / "work") as ours:
            assert ours
            assert lock.exists()
            inside.append(number)
            assert inside == [number]
            time.sleep(0.2)
            inside.remove(number)

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(hold)
        assert held.wait(60)
        rest = [pool.submit(wait, number) for number in range(2)]
        # Both look once while it is held, and lock the file that its holder is about to delete.
        time.sleep(0.2)
        taken.set()
        for done in (first, *rest):
            done.result(60)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_lets_go(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; "
        "from transformer_serving.engine.controller.files.turn import turn\n"
        "with turn(Path(sys.argv[1]), Path(sys.argv[1])) as ours: print(ours, flush=True); input()"
    )
    lock = tmp_path / "a.lock"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        process.kill()
    with turn(lock, tmp_path / "work", patience_s=5.0) as ours:
        assert ours


def test_a_volume_that_numbers_its_files_anew_gives_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which file is there cannot be said: who waits does without, and not for ever."""
    monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    with turn(tmp_path / "a.lock", tmp_path / "work") as ours:
        assert not ours


def test_a_file_that_cannot_be_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that fails just then costs nothing of what was done in the turn."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("played")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with turn(tmp_path / "a.lock", tmp_path / "work") as ours:
            assert ours
    assert (tmp_path / "a.lock").exists()
    with turn(tmp_path / "a.lock", tmp_path / "work") as ours:
        assert ours


def test_a_volume_that_takes_no_file_gives_no_turn(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with turn(tmp_path / "file" / "a.lock", tmp_path) as ours:
        assert not ours
