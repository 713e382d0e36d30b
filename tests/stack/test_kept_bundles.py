"""What stays in the model registry after many deploys, and after a removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stack.conftest import Stack
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.deploy.registry import SERVED, ModelRegistry
from transformer_serving.desk.local.record import clearml_environment, require_record

pytestmark = [pytest.mark.long, pytest.mark.spare]

NAME = "kept"
BODY = {"text": TEXT}


def registry_of(stack: Stack) -> ModelRegistry:
    record = require_record(stack.state)
    return ModelRegistry(ClearmlApi(clearml_environment(record)), record.serving_id or "")


def test_old_bundles_leave_and_a_rollback_stays_possible(plain: Stack, tmp_path: Path) -> None:
    registry = registry_of(plain)
    done = []
    for number in range(5):
        bundle = write_small(tmp_path / str(number), Parts(revision=f"comment {number}")).folder
        told = ["--endpoint", NAME, "--keep", "2"] if number else ["--endpoint", NAME]
        done.append(plain.json("deploy", str(bundle), *told))
        if number == 1:  # somebody serves the second bundle under another name, by hand
            model = done[1]["model_id"]
            used = ["--model-id", model, "--preprocess", str(bundle / "preprocess.py")]
            plain.clearml_serving(
                "model", "add", "--engine", "custom", "--endpoint", "by-hand", *used
            )
    assert [row["forgotten"] for row in done] == [0, 0, 1, 0, 1]
    versions = [row["bundle_version"] for row in done]
    left = registry.bundles(NAME)
    assert [row.bundle_version for row in left] == [versions[4], versions[3], versions[1]]
    assert all(SERVED in row.tags for row in left)

    assert plain.json("rollback", NAME)["bundle_version"] == versions[3]
    assert plain.post(NAME, BODY)[0] == 200
    plain.clearml_serving("model", "remove", "--endpoint", "by-hand")

    assert plain.json("remove", NAME) == {"endpoint": NAME, "removed": True, "forgotten": 0}
    assert len(registry.bundles(NAME)) == 3
    forgotten = plain.json("remove", NAME, "--forget")
    assert forgotten == {"endpoint": NAME, "removed": False, "forgotten": 3}
    assert registry.bundles(NAME) == []
    assert "there is no endpoint" in plain.run("remove", NAME, "--forget", code=2)
