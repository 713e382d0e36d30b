"""Which server the environment names, and where the state of its endpoints stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from transformer_serving.desk.deploy.target import TARGET_VARIABLES, target_of
from transformer_serving.engine.container import STATE

NAMED = {name: f"http://{name}" for name in TARGET_VARIABLES}


@pytest.mark.parametrize("missing", TARGET_VARIABLES)
def test_each_variable_is_needed(missing: str, tmp_path: Path) -> None:
    assert target_of({**NAMED, missing: ""}, tmp_path) is None


def test_status_is_named_for_the_embedded_stack_alone(tmp_path: Path) -> None:
    target = target_of(NAMED, tmp_path)
    assert target is not None
    assert target.look == f"{STATE / 'controller.json'} in the Triton container"
    assert replace(target, triton="2.51.0").look == "transformer-serving status"
