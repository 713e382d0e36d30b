"""What a deploy finds and leaves in ClearML, over the real commands and control plane, where a
command was ended half-way, a task was stopped or a service is of other commands; the front door is
played."""

from __future__ import annotations

import pytest

from transformer_serving.contract.rollout import ABORT, Plan
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.deploy import rollout
from transformer_serving.desk.deploy.rollout_plans import read_all, write
from transformer_serving.desk.deploy.target import DeployTarget, target_of

PLAN = Plan("a1", "texts", 77, "new", "old", (50.0, 100.0), 60.0)


@pytest.fixture
def api(clearml_environment: dict[str, str]) -> ClearmlApi:
    return ClearmlApi(clearml_environment)


@pytest.fixture
def target(
    api: ClearmlApi, clearml_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> DeployTarget:
    """A new serving service."""
    monkeypatch.setenv("XDG_CACHE_HOME", clearml_environment["HOME"])
    tags = ["serving-control-plane"]
    made = api.call("tasks.create", name="a service", type="service", system_tags=tags)
    api.call("tasks.edit", task=made["id"], runtime={"version": "1.3.5"})
    named = {
        "CLEARML_SERVING_TASK_ID": made["id"],
        "CLEARML_DEFAULT_BASE_SERVE_URL": "http://127.0.0.1:9/serve",
    }
    target = target_of(clearml_environment | named)
    assert target is not None
    return target


def test_a_rollout_is_ended_though_its_service_was_stopped(
    api: ClearmlApi, target: DeployTarget
) -> None:
    """As with 'Abort' in ClearML, which then changes nothing of it."""
    write(target.cli, PLAN)
    api.call("tasks.stopped", task=target.cli.serving_id, force=True)
    rollout.wish(target, "texts", ABORT)
    assert read_all(target.cli)["texts"].plan.wish == ABORT
