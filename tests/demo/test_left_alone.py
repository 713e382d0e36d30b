"""Whose model stands under a demo's name: the demo's own, of whatever checkout, or the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.deploy.played import NAME, Target
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.demo.left_alone import served_instead
from transformer_serving.desk.failure import Failure

SOURCE = {"model": "transformer_model", "revision": None, "model_type": "bert"}


def written(folder: Path, source: dict[str, Any], **parts: Any) -> Bundle:
    bundle = write_small(folder / f"{len(list(folder.iterdir()))}", Parts(**parts))
    return replace(bundle, manifest=replace(bundle.manifest, source=source))


@pytest.fixture
def demo(tmp_path: Path) -> Bundle:
    return written(tmp_path, SOURCE)


def instead(folder: Path, demo: Bundle, configured: str | None, **standing: Bundle) -> str | None:
    return served_instead(cast("Any", Target(folder, configured, **standing)), demo, NAME)


def test_the_demo_and_an_earlier_one_are_the_demos(tmp_path: Path, demo: Bundle) -> None:
    assert instead(tmp_path, demo, None) is None
    assert instead(tmp_path, demo, "m", m=demo) is None
    earlier = written(tmp_path, dict(SOURCE), scale=2.0, revision="of another checkout")
    assert earlier.manifest.bundle_version != demo.manifest.bundle_version
    assert instead(tmp_path, demo, "m", m=earlier) is None


@pytest.mark.parametrize(
    "differs",
    [
        lambda folder: written(folder, {**SOURCE, "model": "mine"}, scale=2.0),
        lambda folder: written(folder, {**SOURCE, "model_type": "distilbert"}, scale=2.0),
        lambda folder: written(folder, SOURCE, scale=2.0, labels=("a", "b", "c")),
        lambda folder: written(folder, {}, scale=2.0),
    ],
    ids=["name", "type", "labels", "no source"],
)
def test_what_a_user_deployed_is_named(
    differs: Callable[[Path], Bundle], tmp_path: Path, demo: Bundle
) -> None:
    own = differs(tmp_path)
    said = instead(tmp_path, demo, "m", m=own)
    assert said is not None
    assert said.startswith(f"serves bundle {own.manifest.bundle_version}, of the model ")


def test_what_another_brought_or_nobody_can_read_is_the_users(
    tmp_path: Path, demo: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written(tmp_path, SOURCE, scale=2.0)
    target = Target(tmp_path, "m", m=own)
    target.configured = "stock"
    asked = cast("Any", target), demo, NAME
    assert served_instead(*asked) == "serves a model that no 'deploy' has brought"

    def damaged(row: Any) -> Any:
        raise Failure("it is damaged")

    target.configured = "m"
    monkeypatch.setattr(target.kept, "fetched", damaged)
    assert served_instead(*asked) == f"serves bundle {own.manifest.bundle_version}"
