"""A reader finds the old file or the new one, and nothing else is left."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.replacement import replace_file, replacing


@pytest.mark.parametrize("content", ["über\n", b"\x00\xff", ""])
@pytest.mark.parametrize("durable", [True, False])
def test_the_content_stands_there_and_nothing_beside_it(
    tmp_path: Path, content: str | bytes, durable: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("a longer text that was there before")
    replace_file(path, content, durable=durable)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(("mode", "found"), [(None, 0o640), (0o600, 0o600), (0o644, 0o644)])
def test_the_mode_is_that_asked_for_else_the_users_own(
    tmp_path: Path, mode: int | None, found: int
) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "file", "text", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == found


def test_what_fails_leaves_the_file_and_the_folder_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail() -> None:
        with replacing(path) as new:
            new.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_in_another_folder_of_the_disk_it_can_be_a_link(tmp_path: Path) -> None:
    for name in ("store", "shown"):
        (tmp_path / name).mkdir()
    for target in ("1", "2"):
        with replacing(tmp_path / "shown" / "link", aside=tmp_path / "store") as new:
            new.symlink_to(target)
            assert new.parent.name == "store"
    assert os.readlink(tmp_path / "shown" / "link") == "2"
    assert not os.listdir(tmp_path / "store")


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_writers_beside_each_other_leave_one_of_theirs_whole(
    tmp_path_factory: pytest.TempPathFactory, kilobytes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("writers") / "file"
    contents = [bytes([size]) * 1024 * size for size in kilobytes]
    writers = [threading.Thread(target=replace_file, args=(path, one)) for one in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in contents
    assert os.listdir(path.parent) == ["file"]
