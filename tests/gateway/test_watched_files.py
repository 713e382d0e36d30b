from __future__ import annotations

from pathlib import Path

from transformer_serving.contract.replacement import replace_file
from transformer_serving.gateway.watched_files import WatchedFiles


def test_each_change_is_told_once(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    files = WatchedFiles([one, other])
    assert not files.changed()
    for change in (
        lambda: one.write_text("ab"),
        lambda: replace_file(one, "cd"),
        lambda: other.write_text(""),
        lambda: other.unlink(),
        lambda: one.rename(other),
    ):
        change()
        assert files.changed()
        assert not files.changed()


def test_no_files_never_change() -> None:
    assert not WatchedFiles([]).changed()
