"""Failures of changes: what kind each is, and for how long it is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import requests

from transformer_serving.contract.errors import ContractError
from transformer_serving.engine.controller.failures import FailedChanges, kind_of
from transformer_serving.engine.controller.proving.prover import ProofFailed
from transformer_serving.engine.controller.records import (
    DIFFERS,
    FAILED,
    REMOVAL,
    Kind,
    ModelRecord,
    Version,
)
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.triton.server import BackendDied, LoadFailed, TritonAway
from transformer_serving.engine.errors import EngineError, NotStored, StorageError, TooLargeSoFar


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LoadFailed("no"), Kind.REFUSED),
        (ContractError("no"), Kind.REFUSED),
        (FileNotFoundError(2, "no file"), Kind.REFUSED),
        (KeyError("a fault of ours"), Kind.REFUSED),
        (StorageError("no answer"), Kind.UNREACHED),
        (requests.ConnectionError("no answer"), Kind.UNREACHED),
        (OSError(28, "No space left on device"), Kind.UNREACHED),
        (NotStored("404"), Kind.MISSING),
        (TritonAway("away"), Kind.AWAY),
        (BackendDied("died"), Kind.DIED),
    ],
)
def test_what_a_failure_says_of_the_model(error: Exception, kind: Kind) -> None:
    assert kind_of(error) is kind


def test_what_is_fetched_in_vain_is_fetched_seldom(tmp_path: Path) -> None:
    failed = FailedChanges(StateFile(tmp_path / "state.json"), 0.0)
    failed.take("no-size", "a", TooLargeSoFar("no room"), 0.0)
    failed.take("size", "a", StorageError("no room"), 0.0)
    pauses = {model: one.retry_at for (model, _), one in failed.now.items()}
    assert pauses == {"no-size": DIFFERS.first_s, "size": FAILED.first_s}


def test_two_versions_of_a_model_fail_beside_each_other(tmp_path: Path) -> None:
    failed = FailedChanges(StateFile(tmp_path / "state.json"), 0.0)
    for now in (0.0, 10.0):
        failed.take("m", "a", LoadFailed("a"), now)
        failed.take("m", "b", LoadFailed("b"), now)
    assert {key: one.tries for key, one in failed.now.items()} == {("m", "a"): 2, ("m", "b"): 2}
    failed.over("m", "a")
    assert set(failed.now) == {("m", "b")}


def test_a_start_pauses_for_what_may_have_ended_the_controller_before(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = StateFile(path)
    failed = FailedChanges(state, 0.0)
    failed.begin("refused", "a", 0.0)
    assert not path.exists(), "readers would find no status"
    state.publish({"controller": {}})
    failed.take("refused", "a", LoadFailed("no"), 0.0)
    for _ in range(4):
        failed.take("died", "a", BackendDied("no memory"), 0.0)
    failed.begin("done", "a", 0.0)
    failed.over("done", "a")
    failed.begin("refused", "a", 20.0)
    after = FailedChanges(StateFile(path), 30.0).now
    # The refused one is told as it would be if its load had ended all.
    assert {key: one.kind for key, one in after.items()} == {
        ("died", "a"): Kind.DIED,
        ("refused", "a"): Kind.AWAY,
    }
    assert after["refused", "a"].tries == 2
    assert failed.now["died", "a"].retry_at == 1024.0
    assert after["died", "a"].retry_at == 330.0


@pytest.mark.parametrize("kept", ["x", [1], [{"model": "m"}], [{"model": "m", "kind": "new"}]])
def test_kept_failures_that_cannot_be_read_cost_no_record(tmp_path: Path, kept: object) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"models": {}, "failures": kept}))
    assert FailedChanges(StateFile(path), 0.0).now == {}
    assert path.exists()


def test_what_is_given_up_is_as_it_was_before(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json")
    state.publish({"controller": {}})
    failed = FailedChanges(state, 0.0)
    failed.take("m", "a", BackendDied("a"), 0.0)
    before = dict(failed.now)
    failed.begin("m", "a", 10.0)
    failed.given_up("m", "a")
    assert failed.now == before
    assert FailedChanges(StateFile(tmp_path / "state.json"), 20.0).now == before


def test_what_is_no_longer_asked_for_is_over(tmp_path: Path) -> None:
    failed = FailedChanges(StateFile(tmp_path / "state.json"), 0.0)
    failed.take("m", "a", LoadFailed("a"), 0.0)
    failed.take("m", REMOVAL, EngineError("denied"), 0.0)
    failed.take("left", REMOVAL, EngineError("denied"), 0.0)
    failed.forget({("m", "a")}, set())
    assert len(failed.now) == 3
    failed.forget({("m", "b")}, {"m"})
    assert set(failed.now) == {("left", REMOVAL)}


@pytest.fixture
def started(tmp_path: Path) -> Callable[[], FailedChanges]:
    """Of a controller that starts at 100 s with what the one before has left."""

    def started() -> FailedChanges:
        state = StateFile(tmp_path / "state.json")
        state.publish({"controller": {}})
        return FailedChanges(state, 100.0)

    return started


def test_a_load_that_failed_of_itself_is_none_that_ended_the_controller(
    started: Callable[[], FailedChanges],
) -> None:
    failed = started()
    failed.begin("m", "a", 0.0)
    assert set(started().now) == {("m", "a")}
    failed.take("m", "a", LoadFailed("no"), 1.0)
    assert started().now == {}


def test_what_serves_after_a_start_did_not_fail(started: Callable[[], FailedChanges]) -> None:
    """Triton loaded it, and the controller ended before it said so; a failure of its own stays."""
    started().begin("m", "a", 0.0)
    failed = started()
    failed.take("m", "b", BackendDied("no memory"), 100.0)
    for fingerprint in "ab":
        failed.serves("m", fingerprint)
    assert set(failed.now) == set(started().now) == {("m", "b")}
    again = started()
    again.take("m", "b", BackendDied("no memory"), 200.0)
    again.serves("m", "b")
    assert set(again.now) == {("m", "b")}


def test_what_is_no_longer_asked_for_is_over_after_a_start_too(
    started: Callable[[], FailedChanges],
) -> None:
    failed = started()
    failed.take("m", "a", BackendDied("no memory"), 0.0)
    failed.forget(set(), {"m"})
    assert started().now == {}


def test_the_load_that_took_triton_along_is_known_by_its_record(
    started: Callable[[], FailedChanges],
) -> None:
    failed = started()
    assert not failed.took_along(None)
    for fingerprint, error, harms in (
        ("away", TritonAway("away"), True),
        ("died", BackendDied("no memory"), True),
        ("refused", LoadFailed("no"), False),
    ):
        record = ModelRecord("m", "endpoint", fingerprint, (), "")
        assert not failed.took_along(record)
        failed.take("m", fingerprint, error, 0.0)
        assert failed.took_along(record) is harms


def test_a_bundle_whose_proof_failed_is_named(started: Callable[[], FailedChanges]) -> None:
    failed = started()
    unproven = SimpleNamespace(bundle_version=7, model_id="0123")
    failed.take("m", "a", ProofFailed("differs", cast("Version", unproven)), 0.0)
    assert failed.now["m", "a"].unproven_bundle == 7
