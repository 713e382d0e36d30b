"""What a killed command leaves is removed by the next, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_serving.desk import scratch
from transformer_serving.desk.scratch import scratch_beside

PREFIX = ".convert."
CODE = """
import sys
from pathlib import Path
from transformer_serving.desk.scratch import scratch_beside
with scratch_beside(Path(sys.argv[1]), ".convert.") as folder:
    (folder / "export.onnx").write_text("weights")
    print(folder, flush=True)
    sys.stdin.read()
"""


def begun(target: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a scratch, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(target)],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(target: Path) -> Path:
    process, folder = begun(target)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (folder / "export.onnx").exists()
    return folder


def test_who_has_no_room_for_the_lock_has_a_scratch_all_the_same(tmp_path: Path) -> None:
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    code = CODE.replace('(folder / "export.onnx").write_text("weights")', "pass")
    done = subprocess.run(
        [sys.executable, "-c", f"{full}{code}", str(tmp_path / "bundle")],
        text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_left_goes_and_a_living_ones_stays(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    living, kept = begun(target)
    left = killed(tmp_path / "another")
    try:
        with scratch_beside(target, PREFIX) as own:
            assert set(tmp_path.iterdir()) == {kept, own}
        assert set(tmp_path.iterdir()) == {kept}
        assert not left.exists()
    finally:
        living.communicate("")
    assert living.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_surely_a_killed_ones_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "bundle"
    left = killed(target)
    link, plain = tmp_path / f"{PREFIX}link", tmp_path / f"{PREFIX}plain"
    # As of one that is only being made, or of a bundle named 'convert' that steps aside.
    plain.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link.symlink_to(left.rename(elsewhere / "left"))
    left = elsewhere / "left"
    with scratch_beside(target, PREFIX):
        assert link.is_symlink()
        assert plain.exists()
        assert (left / "export.onnx").exists()
    with monkeypatch.context() as played:
        played.setattr(os, "getuid", lambda: 12345)
        with scratch_beside(elsewhere / "x", "left"):
            assert (left / "export.onnx").exists()
    other = tmp_path / "boot"
    other.write_text("of another machine\n")
    with monkeypatch.context() as played:
        played.setattr(scratch, "_BOOT", other)
        with scratch_beside(elsewhere / "x", "left"):
            assert (left / "export.onnx").exists()
    with scratch_beside(elsewhere / "x", "left"):
        assert not left.exists()


def test_where_there_are_no_locks_it_works_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_lock: object) -> bool:
        raise OSError("no locks available")

    monkeypatch.setattr(scratch, "taken", none)
    with scratch_beside(tmp_path / "new" / "bundle", PREFIX) as own:
        assert own.parent == tmp_path / "new"
    assert list((tmp_path / "new").iterdir()) == []
