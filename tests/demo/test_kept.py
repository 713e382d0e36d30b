"""What a folder of demo bundles is built from decides whether it is built again."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from transformer_serving.desk.demo import kept


def lines_of(target: Path, models: str) -> tuple[list[str], list[Path]]:
    """What is reported of one bring_up_to_date, and the folders that were built."""
    told: list[str] = []
    built: list[Path] = []
    recipe = kept.Recipe(("none",), models, built.append)
    kept.bring_up_to_date(target, recipe, told.append)
    return told, built


def test_built_once_and_again_where_the_models_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_intact", lambda target, names: True)
    assert lines_of(tmp_path, "a") == ([], [tmp_path])
    told, built = lines_of(tmp_path, "a")
    assert built == []
    assert "up to date" in told[0]
    assert lines_of(tmp_path, "b")[1] == [tmp_path]


def test_a_bundle_that_is_gone_is_built_again(tmp_path: Path) -> None:
    assert lines_of(tmp_path, "a")[1] == [tmp_path]
    told, built = lines_of(tmp_path, "a")
    # Writing it again with the same model fails too: there is none.
    assert built == [tmp_path]
    assert "writing the bundles again" in told[0]


def test_who_waits_for_another_build_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    first: Future[None] = Future()

    def tell(step: str) -> None:
        told.append(step)
        first.set_result(None)

    with ThreadPoolExecutor(1) as threads, kept._alone(tmp_path, told.append):
        recipe = kept.Recipe(("none",), "a", lambda target: None)
        second = threads.submit(kept.bring_up_to_date, tmp_path, recipe, tell)
        first.result(60)
        assert not second.done()
    assert told == [f"waiting for another build in {tmp_path} to end"]


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".train.killed").mkdir()
    lines_of(tmp_path, "a")
    assert not (tmp_path / ".train.killed").exists()


def test_hash_follows_seed_names_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    hashes = {kept.hash_of([tmp_path], seed="")}
    hashes.add(kept.hash_of([tmp_path], seed="x"))
    file.write_text("two")
    hashes.add(kept.hash_of([tmp_path], seed=""))
    file.rename(tmp_path / "b.txt")
    hashes.add(kept.hash_of([tmp_path], seed=""))
    assert len(hashes) == 4
