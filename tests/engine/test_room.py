"""The room of a volume whose limit its file system does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.engine.controller.failures import kind_of
from transformer_serving.engine.controller.files.room import Room
from transformer_serving.engine.controller.records import Kind
from transformer_serving.engine.errors import StorageError, TooLargeSoFar

MB = 1_000_000


def test_two_on_their_way_do_not_count_on_the_same_room(tmp_path: Path) -> None:
    room, downloads = Room(tmp_path, 10 * MB), tmp_path / "downloads"
    with room.share(downloads / "a") as one, room.share(downloads / "b") as other:
        one.take(3 * MB, 3 * MB)
        said = r"needs 6\.0 MB .* of the 10\.0 MB .* 4\.0 are left"
        with pytest.raises(StorageError, match=said) as refused:
            other.take(3 * MB, 3 * MB)
        # It passes by itself, and says nothing of the model.
        assert kind_of(refused.value) is Kind.UNREACHED
        # What has come of one is a part of what it needs.
        (downloads / "a").mkdir(parents=True)
        (downloads / "a" / "part").write_bytes(bytes(3 * MB))
        other.take(0, 3 * MB)
    (downloads / "a" / "part").unlink()
    with room.share(downloads / "b") as other:
        other.take(4 * MB, 5 * MB)


def test_what_says_no_size_may_need_more_than_what_is_told(tmp_path: Path) -> None:
    room = Room(tmp_path, 10 * MB)
    with room.share(tmp_path / "a") as share:
        share.take(0, 9 * MB, is_all=False)
        said = r"needs 11\.0 MB or more \(its server does not say how much\) .* 10\.0 are left"
        with pytest.raises(TooLargeSoFar, match=said) as refused:
            share.take(0, 11 * MB, is_all=False)
    assert kind_of(refused.value) is Kind.UNREACHED


def test_a_download_to_another_volume_takes_what_is_made_of_it(tmp_path: Path) -> None:
    room = Room(tmp_path / "state", 10 * MB)
    with room.share(tmp_path / "claim") as shared:
        shared.take(9 * MB, 9 * MB)
    # The SDK's own cache has no place of ours, and lies beside the state.
    with room.share(None) as own, pytest.raises(StorageError):
        own.take(9 * MB, 9 * MB)


def test_what_has_no_limit_has_the_disks(tmp_path: Path) -> None:
    with Room(tmp_path).share(None) as share:
        share.take(1 << 60, 1 << 60)
    with Room().share(tmp_path) as share:
        share.take(1 << 60, 1 << 60)


@pytest.mark.parametrize("is_moved", [True, False])
def test_what_lies_where_it_stays_is_not_waited_for(tmp_path: Path, is_moved: bool) -> None:
    """Moved, it needs no more; copied, from a claim or for its links, what is still to come."""
    room, part = Room(tmp_path / "state", 20 * MB), tmp_path / "state" / "models" / "a.part"
    source = (tmp_path / "state" if is_moved else tmp_path / "claim") / "unpacked"
    for folder in (source, part.parent):
        folder.mkdir(parents=True)
    (source / "model.onnx").write_bytes(bytes(5 * MB))
    with room.share(source) as one, room.share(tmp_path / "state" / "b") as other:
        one.take(5 * MB, 5 * MB)
        one.lay(source, part)
        if is_moved:
            source.rename(part)
        with pytest.raises(StorageError):
            other.take(0, 16 * MB)
        other.take(0, 14 * MB)
