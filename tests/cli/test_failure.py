"""What the machine does not do is one line that says what and how to fix it, never a traceback."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.free_ports import free_port_base
from tests.small_disk import fill, small_disk
from tests.stack.small_bundles import write_small
from transformer_serving.desk.cli import Commands, main
from transformer_serving.desk.failure import failure_of


def test_up_names_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        fill(disk)
        base = str(free_port_base())
        done = CliRunner().invoke(main, ["up", "--state", str(disk / "s"), "--port-base", base])
        assert done.exit_code == 1
        full = f"error: no space is left on the disk of {disk / 's'}; free some and try again"
        assert done.output.splitlines()[-1] == full


def test_temporary_folders_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a deploy lets the SDK pack its bundle, say."""
    with small_disk(tmp_path / "disk", 1) as disk:
        fill(disk)
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(disk)])
        with pytest.raises(FileNotFoundError) as full:
            tempfile.mkdtemp()
        said = f"no temporary folder can be written, of ['{disk}']; free some space on their disk"
        assert str(failure_of(full.value)).startswith(said)


def test_a_copy_that_has_no_room(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/large").write_bytes(bytes(2 << 20))
    with small_disk(tmp_path / "disk", 1) as disk:
        with pytest.raises(shutil.Error) as full:
            shutil.copytree(tmp_path / "files", disk / "files")
        said = f"no space is left on the disk of {disk}/files/large; free some and try again"
        assert str(failure_of(full.value)) == said


def test_a_repository_in_a_file(tmp_path: Path) -> None:
    write_small(tmp_path / "bundle")
    (tmp_path / "file").touch()
    inside = str(tmp_path / "file/x")
    done = CliRunner().invoke(
        main, ["repository", str(tmp_path / "bundle"), "--output", inside, "--name", "x"]
    )
    assert (done.exit_code, done.output) == (1, f"error: {inside}/models: Not a directory\n")


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e12", "0", "-1"])
def test_a_time_that_no_alarm_can_be_set_for(seconds: str) -> None:
    done = CliRunner().invoke(main, ["rollback", "x", "--timeout", seconds])
    assert done.exit_code == 2
    assert "Invalid value for '--timeout'" in done.output


def test_a_reader_that_has_left_is_told_nothing() -> None:
    @click.group(cls=Commands)
    def group() -> None:
        pass

    @group.command()
    def shown() -> None:
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))

    done = CliRunner().invoke(group, ["shown"])
    assert (done.exit_code, done.output) == (1, "")


def test_what_names_no_file_says_what_it_can() -> None:
    assert str(failure_of(OSError(errno.ENOSPC, "x"))).startswith("no space is left on a disk;")
    assert str(failure_of(OSError("it broke"))) == "it broke"
