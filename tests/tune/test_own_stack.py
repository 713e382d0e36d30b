"""The stack that is tuned on: its environment, and what is left of a setting that does not come."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stack.small_bundles import write_small
from tests.tune.test_knobs import USUAL
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.command_line import STATE_VARIABLE
from transformer_serving.desk.deploy.time_limit import Interrupted
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune import own_stack
from transformer_serving.desk.tune.own_stack import environment_of
from transformer_serving.gateway.access import ACCESS


def test_it_has_the_callers_limits_and_none_of_the_served_stacks_doors() -> None:
    kept = {
        "PATH": "/bin",
        "TRANSFORMER_SERVING_TRANSPORT": "grpc",
        "TRANSFORMER_SERVING_MAX_BODY_BYTES": "5",
    }
    doors = [row.name for row in ACCESS]
    others = [
        TRUSTED_KEYS_VARIABLE, STATE_VARIABLE, "TRANSFORMER_SERVING_GRPC_PORT",
        "TRANSFORMER_SERVING_TRITON_HTTP", "CLEARML_API_HOST", "PROMETHEUS_MULTIPROC_DIR",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ]  # fmt: skip
    given = {
        **kept,
        **dict.fromkeys((*doors, *others), "served"),
        "CLEARML_SERVING_NUM_PROCESS": "8",
    }
    assert environment_of(replace(USUAL, calls=3, workers=2), given) == {
        **kept,
        "TRANSFORMER_SERVING_CALLS_IN_FLIGHT": "3",
        "CLEARML_SERVING_NUM_PROCESS": "2",
    }


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Failure("setting_1 did not answer"), "setting_1 did not answer"),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot be brought up: No space left"),
    ],
)
def test_of_a_setting_that_does_not_come_up_nothing_is_left(
    fault: Exception, said: str, small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[tuple[str, bool]] = []

    def fails(_target: Any, bundle: Bundle, *_named: Any, **_given: Any) -> None:
        assert bundle.folder.is_dir()
        raise fault

    def remove(_target: Any, name: str, *, forget: bool) -> None:
        removed.append((name, forget))
        raise Failure(f"there is no endpoint '{name}'")

    monkeypatch.setattr(own_stack, "deploy", fails)
    monkeypatch.setattr(own_stack, "remove", remove)
    stack: Any = SimpleNamespace(state=tmp_path / "state", target=lambda: None)
    stack.state.mkdir()
    own = own_stack.OwnStack(stack, {"fp32": small}, lambda _: None, {})
    with pytest.raises(Failure, match=said):
        own.bring({"4": USUAL})
    assert removed == [("setting_1", True)]
    assert not list((stack.state / "bundles").iterdir())


def test_ctrl_c_in_the_middle_of_a_deploy_is_no_value_that_fails(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_named: Any, **_given: Any) -> None:
        raise Interrupted("deploying setting_1 was interrupted")

    monkeypatch.setattr(own_stack, "deploy", interrupted)
    stack: Any = SimpleNamespace(state=tmp_path / "state", target=lambda: None)
    stack.state.mkdir()
    own = own_stack.OwnStack(stack, {"fp32": small}, lambda _: None, {})
    with pytest.raises(KeyboardInterrupt):
        own.bring({"4": USUAL})
    with pytest.raises(KeyboardInterrupt):
        own.prove(USUAL, tmp_path / "tuned")


def test_before_the_proof_what_was_measured_goes_and_memory_is_looked_at(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton lets go of it a while later."""
    done: list[str] = []
    free = iter([1, 1, 1 << 40])

    def looked() -> Any:
        done.append("looked")
        return SimpleNamespace(available=next(free))

    def deploy(_target: Any, _bundle: Bundle, name: str, **_: Any) -> None:
        done.append(name)

    monkeypatch.setattr(own_stack, "deploy", deploy)
    monkeypatch.setattr(own_stack, "remove", lambda _, name, forget: done.append(f"no {name}"))
    stack: Any = SimpleNamespace(state=tmp_path / "state", target=lambda: None)
    stack.state.mkdir()
    own = own_stack.OwnStack(stack, {"fp32": small}, lambda _: None, {})
    written = write_small(stack.state / "bundles" / "setting_1")
    own._bundles[USUAL.bundle] = ("setting_1", written)
    monkeypatch.setattr("psutil.virtual_memory", looked)
    bundle = own.prove(USUAL, tmp_path / "tuned")
    assert done == ["no setting_1", "looked", "looked", "looked", "tuned"]
    assert not written.folder.exists()
    assert bundle.folder == tmp_path / "tuned"

    monkeypatch.setattr(own_stack, "_FREED_S", 0)
    free = iter([1] * 3)
    with pytest.raises(Failure, match="of memory are free"):
        own.prove(USUAL, tmp_path / "again")
    assert done[-1] == "looked"
