"""What vLLM has compiled, in its cache as vLLM lays it out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from transformer_serving.engine.controller.files.compiled import CACHE_VARIABLE, Compiled
from transformer_serving.engine.controller.files.repository import Repository


def compiled_at(cache: Path, *seconds: int) -> Path:
    """One folder for each time, named by it."""
    folder = cache / "torch_compile_cache"
    for number in seconds:
        (folder / str(number) / "rank_0_0").mkdir(parents=True)
        os.utime(folder / str(number), (number, number))
    return folder


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_each_fetch_leaves_as_much_as_there_are_models_for(tmp_path: Path) -> None:
    """Of versions that went nobody finds it again, and the volume is the models' too."""
    folder = compiled_at(tmp_path / "vllm", *range(10))
    (folder.parent / "other").mkdir()
    compiled = Compiled({CACHE_VARIABLE: str(tmp_path / "vllm")}, tmp_path)
    repository = Repository(tmp_path / "models", compiled)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "model.json").write_text('{"model": "."}')
    token = repository.stage("texts", bundle, "")
    # For the one that comes.
    assert names(folder) == {"8", "9"}
    repository.install("texts", {1: token}, "")
    compiled_at(tmp_path / "vllm", 10, 11, 12)
    repository.stage("texts", bundle, "")
    assert names(folder) == {"9", "10", "11", "12"}
    assert names(folder.parent) == {"torch_compile_cache", "other"}
    # A fetch that finds too little room comes to none of this.
    repository.remove("texts")
    assert names(folder) == set()


def test_a_model_that_goes_while_they_are_counted_costs_no_other_its_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy whose fetch failed so late nobody would delete."""
    repository = Repository(tmp_path / "models", Compiled({}, tmp_path))
    bundle = tmp_path / "bundle"
    bundle.mkdir()

    def glob(folder: Path, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(folder / pattern)

    monkeypatch.setattr(Path, "glob", glob)
    token = repository.stage("texts", bundle, "")
    repository.discard("texts", token)
    assert not repository.has_files("texts", token)


@pytest.mark.parametrize("named", ["", "elsewhere", "vllm"])
def test_a_cache_that_is_not_the_containers_own_is_left_alone(tmp_path: Path, named: str) -> None:
    folder = compiled_at(tmp_path / "elsewhere", 1, 2, 3)
    cache = str(tmp_path / named) if named == "elsewhere" else named
    Compiled({CACHE_VARIABLE: cache} if named else {}, tmp_path / "state").keep(1)
    Compiled({CACHE_VARIABLE: str(tmp_path / "none")}, tmp_path).keep(1)
    assert names(folder) == {"1", "2", "3"}
