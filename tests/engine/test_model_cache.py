"""Models on a volume that several controllers share."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from transformer_serving.engine.controller.files import model_cache
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.model_cache import ModelCache
from transformer_serving.engine.controller.files.room import Share
from transformer_serving.engine.controller.files.turn import turn
from transformer_serving.engine.errors import NoRoom


class Source:
    """Where a model is fetched; `fetched` counts, and a copy is gone after its use."""

    def __init__(self, folder: Path, *, is_folder: bool = False) -> None:
        self._folder, self._is_folder = folder, is_folder
        self.bytes, self.fetched = b"model", 0
        # Where it came to, and how often the volume of the first place was full.
        self.places: list[Path | None] = []
        self.full = 0

    @contextmanager
    def __call__(self, unfinished: Path | None, _share: Share) -> Iterator[LocalCopy]:
        self.places.append(unfinished)
        if len(self.places) <= self.full:
            raise NoRoom("the disk has no room for it", len(self.bytes))
        self.fetched += 1
        path = self._folder / "model.onnx"
        if self._is_folder:
            path.mkdir(parents=True)
            path = path / "weights"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.bytes)
        yield LocalCopy(path.parent if self._is_folder else path, ours=True)
        path.unlink()
        if self._is_folder:
            path.parent.rmdir()


def read(cache: ModelCache, content: str, source: Source) -> bytes:
    with cache.model(content, source) as copy:
        path = copy.path
        assert path.name == "model.onnx"
        return (path / "weights" if path.is_dir() else path).read_bytes()


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_second_triton_fetches_nothing(tmp_path: Path, is_folder: bool) -> None:
    source = Source(tmp_path / "source", is_folder=is_folder)
    one, other = ModelCache(tmp_path / "shared"), ModelCache(tmp_path / "shared")
    assert read(one, "m 1", source) == read(other, "m 1", source) == b"model"
    assert source.fetched == 1
    assert read(other, "m 2", source) == b"model"
    assert source.fetched == 2


def test_who_asks_again_gets_it_from_its_source(tmp_path: Path) -> None:
    """And so does everybody after: a damaged copy is no model's end."""
    source = Source(tmp_path / "source")
    one, other = ModelCache(tmp_path / "shared"), ModelCache(tmp_path / "shared")
    assert read(one, "m", source) == b"model"
    (kept,) = (tmp_path / "shared").glob("*/model.onnx")
    kept.write_bytes(b"damaged")
    assert read(other, "m", source) == b"damaged"
    assert read(other, "m", source) == b"model"
    assert read(ModelCache(tmp_path / "shared"), "m", source) == b"model"
    assert source.fetched == 2


def test_without_a_volume_every_fetch_is_its_own(tmp_path: Path) -> None:
    source = Source(tmp_path / "source")
    cache = ModelCache(None)
    assert read(cache, "m", source) == read(cache, "m", source) == b"model"
    assert source.fetched == 2


def test_a_volume_that_takes_nothing_is_no_reason_not_to_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Loggers are the process's: a test before may have left them quieter.
    caplog.set_level(logging.WARNING, model_cache.__name__)
    (tmp_path / "shared").write_bytes(b"a file in its place")
    assert read(ModelCache(tmp_path / "shared"), "m", Source(tmp_path / "source")) == b"model"
    assert "no shared copy of model.onnx" in caplog.text


def test_what_nobody_asks_for_any_more_makes_room(tmp_path: Path) -> None:
    """Of a model whose download broke: it would take its part of the state's room for a day."""
    downloads = tmp_path / "downloads"
    for name in ("gone", "wanted", "comes"):
        (downloads / place(name)).mkdir(parents=True)
        (downloads / place(name) / "part").write_bytes(b"half")
    (downloads / f"{place('gone')}.lock").touch()
    (downloads / "foreign").mkdir()
    cache = ModelCache(None, downloads)
    with turn(downloads / f"{place('comes')}.lock", downloads / place("comes")):
        cache.keep_only(["wanted"])
        left = {path.name for path in downloads.iterdir()}
    assert left == {place("wanted"), place("comes"), f"{place('comes')}.lock", "foreign"}
    ModelCache(None).keep_only([])
    ModelCache(None, tmp_path / "none").keep_only([])


def copies(shared: Path, **hours: float) -> None:
    """Copies of five bytes that were taken so many hours ago."""
    for name, ago in hours.items():
        folder = shared / (name if name == "foreign" else place(name))
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"other")
        moment = time.time() - ago * 3600
        os.utime(folder, (moment, moment))


def place(name: str) -> str:
    """The folder of a copy, as it is named there."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def test_a_full_volume_loses_what_was_taken_longest_ago(tmp_path: Path) -> None:
    shared, source = tmp_path / "shared", Source(tmp_path / "source")
    copies(shared, newer=2, oldest=5, older=3, foreign=9)
    source.bytes, source.full = b"larger than 5", 1
    cache = ModelCache(shared, tmp_path / "downloads")
    with cache.model("m", source) as copy:
        assert copy.path.read_bytes() == source.bytes
    assert [folder is not None and folder.parent for folder in source.places] == (
        [shared / ".downloads"] * 2
    )
    # Somebody's own folder on the same volume stays, and no room of it is counted on.
    kept = {path.name for path in shared.iterdir() if not path.name.startswith(".")}
    assert len(kept) == 2
    assert (shared / "foreign" / "model.onnx").exists()
    assert (shared / (kept - {"foreign"}).pop() / "model.onnx").read_bytes() == source.bytes
    copies(shared, newer=2, oldest=5, older=3)
    source.bytes, source.places = b"model", []
    assert read(cache, "n", source) == b"model"
    assert not (shared / place("oldest")).exists()
    assert (shared / place("older")).exists()


def test_a_volume_that_stays_full_is_no_reason_not_to_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may be at a copy that was just taken, and all of the others are too small."""
    caplog.set_level(logging.WARNING, model_cache.__name__)
    shared, source = tmp_path / "shared", Source(tmp_path / "source")
    copies(shared, taken=0.5, old=2)
    source.bytes, source.full = b"larger", 1
    assert read(ModelCache(shared, tmp_path / "downloads"), "m", source) == b"larger"
    first, second = source.places
    assert first is not None
    assert second is not None
    assert first.parent == shared / ".downloads"
    assert second == tmp_path / "downloads" / first.name
    assert {place("taken"), place("old")} <= {path.name for path in shared.iterdir()}
    assert f"not by way of {shared}: the disk has no room for it" in caplog.text
    # The line of others is free again.
    assert not list((tmp_path / "shared" / ".downloads").glob("*/"))


def test_a_copy_takes_the_place_of_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, source = tmp_path / "shared", Source(tmp_path / "source", is_folder=True)
    copies(shared, older=2, oldest=3)
    space = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: space._replace(free=1))
    assert read(ModelCache(shared), "m", source) == b"model"
    assert not (shared / place("oldest")).exists()
    assert (shared / place("older")).exists()


def test_an_unfinished_copy_is_none_and_goes_after_a_day(tmp_path: Path) -> None:
    source, shared = Source(tmp_path / "source"), tmp_path / "shared"
    fresh, old = (shared / f".{place(name)}" for name in ("fresh", "old"))
    unused, foreign = shared / place("unused"), shared / "foreign"
    for folder, days in ((fresh, 0.5), (old, 2), (unused, 31), (foreign, 31)):
        folder.mkdir(parents=True)
        moment = time.time() - days * 86_400
        os.utime(folder, (moment, moment))
    assert read(ModelCache(shared), "m", source) == b"model"
    assert fresh.is_dir()
    assert foreign.is_dir()
    assert not old.exists()
    assert not unused.exists()
