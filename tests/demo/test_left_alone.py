"""Whose model stands under a demo's name: the demo's own, of whatever checkout, or the user's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.deploy.played import NAME, Target
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.contract.rollout import (
    OVER,
    PLANS,
    STATES,
    WENT_BACK,
    Plan,
    State,
    plans_text,
    states_text,
)
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.demo import left_alone
from transformer_serving.desk.demo.left_alone import served_instead
from transformer_serving.desk.deploy import rollout_plans
from transformer_serving.desk.failure import Failure

SOURCE = {"model": "transformer_model", "revision": None, "model_type": "bert"}


def written(folder: Path, source: dict[str, Any], **parts: Any) -> Bundle:
    bundle = write_small(folder / f"{len(list(folder.iterdir()))}", Parts(**parts))
    return replace(bundle, manifest=replace(bundle.manifest, source=source))


@pytest.fixture
def demo(tmp_path: Path) -> Bundle:
    return written(tmp_path, SOURCE)


@pytest.fixture(autouse=True)
def sections(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The service's, by one question to ClearML; what a test adds stands there too."""
    more: dict[str, str] = {}

    def configuration(cli: Any) -> dict[str, str]:
        rows = {} if cli.configured is None else {NAME: {"model_id": cli.configured}}
        return {"endpoints": json.dumps(rows), **more}

    monkeypatch.setattr(left_alone, "configuration", configuration)
    monkeypatch.setattr(rollout_plans, "configuration", configuration)
    return more


def instead(folder: Path, demo: Bundle, configured: str | None, **standing: Bundle) -> str | None:
    return asked(Target(folder, configured, **standing), demo)


def asked(target: Target, demo: Bundle) -> str | None:
    return served_instead(cast("Any", target), {NAME: demo}).get(NAME)


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
    assert asked(target, demo) == "serves a model that no 'deploy' has brought"

    def damaged(row: Any) -> Any:
        raise Failure("it is damaged")

    target.configured = "m"
    monkeypatch.setattr(target.kept, "fetched", damaged)
    assert asked(target, demo) == f"serves bundle {own.manifest.bundle_version}"


def test_the_answer_of_the_bundle_before_is_no_reason_to_take_its_place(
    tmp_path: Path, demo: Bundle
) -> None:
    """The demo answers on while the user's own is loaded, or was refused."""
    own = written(tmp_path, {**SOURCE, "model": "mine"}, scale=2.0)
    target = Target(tmp_path, "demo", demo=demo, own=own)
    target.configured = "own"
    assert asked(target, demo) == f"serves bundle {own.manifest.bundle_version}, of the model mine"


def test_a_service_without_the_names_needs_no_command(
    tmp_path: Path, demo: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each first start took seconds longer."""
    target = Target(tmp_path)
    monkeypatch.setattr(target, "run", lambda *_: pytest.fail("it was asked"))
    assert asked(target, demo) is None


def test_what_is_shared_out_is_left(
    tmp_path: Path, demo: Bundle, sections: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deploy would be refused in a rollout, and behind a canary route never be asked."""
    target = Target(tmp_path, "m", m=demo)
    plan = Plan("a1", NAME, 77, "new", "m", (50.0, 100.0), 60.0)
    sections[PLANS] = plans_text([plan])
    assert asked(target, demo) == "is in a rollout of bundle 77"
    sections[STATES] = states_text({NAME: State(plan.id, OVER, outcome=WENT_BACK)})
    assert asked(target, demo) is None

    target = Target(tmp_path)
    sections["canary"] = routes = json.dumps({NAME: {"load_endpoints": ["a", "b"]}})
    listed = f"Endpoints:\n{{}}\nModel Monitoring:\n{{}}\nCanary:\n{routes}\n"
    monkeypatch.setattr(target, "run", lambda *_: listed)
    assert asked(target, demo) == "is a canary route"
