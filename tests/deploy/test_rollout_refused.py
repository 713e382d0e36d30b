"""Where a rollout is not begun, nothing of it reaches ClearML; the whole way is in tests/stack."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.stack.small_bundles import write_small
from transformer_serving.contract.rollout import Allowed, candidate_name
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.deploy import rollout
from transformer_serving.desk.deploy.candidate_cost import Cost, afforded, engine_bytes
from transformer_serving.desk.deploy.registry import Registered
from transformer_serving.desk.failure import Failure


class Unchanged:
    """A service as `clearml-serving model list` prints it, which nothing may be changed in."""

    triton = None
    look = "the log"
    serving_id = "s"

    def __init__(self, folder: Path) -> None:
        self.lock = folder / "deploy.lock"
        self.cli = self
        self.endpoints = {"texts": {"model_id": "old"}}
        self.canaries: dict[str, Any] = {}
        self.registered: list[Registered] = []

    def check_version(self) -> None:
        pass

    def command(self, words: str) -> str:
        return command_line(words)

    def run(self, *command: str) -> str:
        assert command == ("model", "list")
        return (
            f"Endpoints:\n{json.dumps(self.endpoints)}\nModel Monitoring:\n{{}}\n"
            f"Canary:\n{json.dumps(self.canaries)}\n"
        )

    def registry(self) -> Unchanged:
        return self

    def bundles(self, name: str) -> list[Registered]:
        return self.registered


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_small(tmp_path / "bundle")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unchanged:
    monkeypatch.setattr(rollout, "refuse_in_rollout", lambda cli, name: None)
    for name in ("upload", "add_and_look", "write"):
        monkeypatch.setattr(rollout, name, lambda *_, name=name: pytest.fail(f"{name} was called"))
    return Unchanged(tmp_path)


def refused(target: Any, bundle: Bundle, told: list[str] | None = None, *, code: int = 2) -> str:
    with pytest.raises(Failure) as failed:
        rollout.start(
            target, bundle, "texts", steps=(1, 100), hold_s=1, allowed=Allowed(), timeout_s=60,
            report=lambda _: None, tell=(told if told is not None else []).append,
        )  # fmt: skip
    assert failed.value.exit_code == code
    return str(failed.value)


def test_one_with_a_canary_route_of_somebody_elses(target: Unchanged, bundle: Bundle) -> None:
    target.canaries["texts"] = {"endpoint": "texts", "load_endpoints": ["texts", "texts/2"]}
    assert refused(target, bundle) == (
        "'texts' has a canary route already; end it: clearml-serving --id s model canary "
        "--endpoint texts --weights 1 --input-endpoints texts"
    )
    # Which leads to the endpoint alone.
    target.canaries["texts"] = {"endpoint": "texts", "load_endpoints": ["texts"]}
    candidate = candidate_name("texts", bundle.manifest.bundle_version)
    target.endpoints[candidate] = {"model_id": "another"}
    assert f"there is an endpoint '{candidate}' already" in refused(target, bundle)


def test_one_whose_candidate_another_route_would_take(target: Unchanged, bundle: Bundle) -> None:
    """As soon as it is added, also in a shadow."""
    target.canaries["all"] = {"endpoint": "all", "load_endpoint_prefix": "texts/"}
    assert "canary route 'all' takes every endpoint that begins with 'texts/'" in refused(
        target, bundle
    )


def test_one_that_is_not_there(target: Unchanged, bundle: Bundle) -> None:
    target.endpoints.clear()
    assert "there is no endpoint 'texts' to compare with" in refused(target, bundle)


def test_one_beside_a_candidate_that_is_left(target: Unchanged, bundle: Bundle) -> None:
    left = candidate_name("texts", bundle.manifest.bundle_version)
    target.endpoints[left] = {"model_id": "new"}
    assert f"transformer-serving remove {left}" in refused(target, bundle)


def test_one_that_serves_the_bundle_already(target: Unchanged, bundle: Bundle) -> None:
    version = bundle.manifest.bundle_version
    target.registered.append(Registered("old", version, "", ()))
    assert refused(target, bundle) == f"'texts' serves bundle {version} already"


def test_who_runs_out_of_time_with_the_lock_blames_no_other_deploy(
    target: Unchanged, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> None:
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(target, "check_version", slow)
    said = refused(target, bundle, code=1)
    assert "; it was asking whether texts is in a rollout; " in said


def test_a_candidate_that_has_no_room(
    target: Unchanged, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = Cost("texts", 1, engine_bytes(bundle), None).needed
    monkeypatch.setattr(rollout, "free_bytes", lambda _: needed - 1)
    told: list[str] = []
    assert "too little memory for a candidate; nothing was begun" in refused(target, bundle, told)
    assert "MB are free here" in told[0]


@pytest.mark.parametrize("cost", [Cost("c", 1, 10, 20), Cost("c", 1, 10, None)])
def test_one_that_just_fits_has_room(cost: Cost) -> None:
    afforded(cost, lambda _: None)
    with pytest.raises(Failure, match="too little memory"):
        afforded(Cost("c", 1, 10, 19), lambda _: None)
    afforded(Cost("c", 1, 10, 10, 0.25, shadow=True), lambda _: None)
