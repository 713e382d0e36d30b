"""A pod's startup probe, on states as the controller writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from transformer_serving.engine.controller.control_plane.served import Problem
from transformer_serving.engine.controller.first_loads import awaited
from transformer_serving.engine.controller.records import FailedChange, Kind, ModelRecord, Version
from transformer_serving.engine.controller.status import Proving, as_json, endpoint_rows

MODULE = "transformer_serving.engine.controller.first_loads"
UNPROVEN = Proving((), lambda _: None)


def record(model: str) -> ModelRecord:
    version = Version(1, "t", "", "openvino_text", 1, True, "m", "c", 0.0)
    return ModelRecord(model, model, "f", (version,), "")


def state(
    loaded: Mapping[str, frozenset[int]] | None,
    *,
    failed: Kind | None = None,
    tries: int = 1,
    problem: bool = False,
    synced: bool = True,
    models: tuple[str, ...] = ("a", "b"),
    proving: Proving = UNPROVEN,
) -> dict[str, Any]:
    """What a controller with these models and this Triton publishes."""
    failures = {}
    if failed is not None:
        failures["b", "f"] = FailedChange("f", "it is not there", 1.0, tries, 11.0, kind=failed)
    problems = [Problem("c", "c", "m", "no model of that id")] if problem else []
    records = {name: record(name) for name in models}
    rows = endpoint_rows(None, problems, records, failures, loaded, proving)
    controller = {"last_sync": 5.0 if synced else None, "triton": {"ready": loaded is not None}}
    return {"controller": controller, "endpoints": as_json(rows)}


WHY = " (b: it is not there)"
ONE, BOTH = {"a": frozenset({1})}, {"a": frozenset({1}), "b": frozenset({1})}


@pytest.mark.parametrize(
    "over",
    [
        state(BOTH),
        state(ONE, failed=Kind.REFUSED),
        state(ONE, failed=Kind.MISSING),
        state(ONE, failed=Kind.DIED),
        # A store may have lost it, and says the same as one that is away.
        state(ONE, failed=Kind.UNREACHED, tries=6),
        state(ONE, failed=Kind.AWAY, tries=4),
        state(BOTH, failed=Kind.UNREACHED),
        state(BOTH, problem=True),
        state({}, models=()),
        # What is told of the service holds no pod up that has no endpoint.
        state({}, models=(), problem=True),
        # A container that was started again, with the control plane away.
        state(BOTH, synced=False),
    ],
)
def test_the_first_loads_are_over(over: dict[str, Any]) -> None:
    assert awaited(over) is None


@pytest.mark.parametrize(
    ("waiting", "what"),
    [
        (state(ONE), "not loaded yet: b"),
        (state({}), "not loaded yet: a, b"),
        (state(ONE, proving=Proving(("b",), lambda _: None)), "not loaded yet: b"),
        (state(None), "Triton does not answer"),
        (state(None, failed=Kind.REFUSED), "Triton does not answer"),
        # The pod that serves would be ended for one that has it not.
        (state(ONE, failed=Kind.UNREACHED), f"not loaded yet: b{WHY}"),
        (state(ONE, failed=Kind.AWAY), f"not loaded yet: b{WHY}"),
        # It would be ended for one that has nothing, whatever the reason and however often tried.
        *(
            (state({}, failed=kind, tries=99, models=("b",)), f"not loaded yet: b{WHY}")
            for kind in Kind
        ),
        (state({}, failed=Kind.REFUSED), f"not loaded yet: a, b{WHY}"),
        (state({}, failed=Kind.REFUSED, models=("b",), problem=True), f"not loaded yet: b{WHY}"),
        (state({}, models=(), synced=False), "no endpoints have been read yet"),
    ],
)
def test_the_first_loads_are_waited_for(waiting: dict[str, Any], what: str) -> None:
    assert awaited(waiting) == what


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, 1),
        ({"models": {}}, 1),
        (state(ONE), 1),
        (state(ONE, failed=Kind.AWAY), 1),
        (state(ONE, failed=Kind.REFUSED), 0),
        (state(BOTH), 0),
    ],
)
def test_as_the_kubelet_runs_it(content: dict[str, Any] | None, code: int, tmp_path: Path) -> None:
    path = tmp_path / "controller.json"
    if content is not None:
        path.write_text(json.dumps(content))
    command = [sys.executable, "-m", MODULE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) == bool(code)
    assert done.stderr == ""
