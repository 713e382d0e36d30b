"""What a deploy finds and leaves in ClearML, over the real commands and control plane, where a
command was ended half-way, a task was stopped or a service is of other commands; the front door is
played."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.conftest import answering
from tests.stack.small_bundles import Parts, write_small
from tests.without_frameworks import path_without_frameworks
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.contract.rollout import (
    ABORT,
    HOLDING,
    OVER,
    PROMOTED,
    STATES,
    WENT_BACK,
    Allowed,
    Plan,
    State,
    states_text,
)
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.demo.left_alone import served_instead
from transformer_serving.desk.deploy import endpoint, rollout
from transformer_serving.desk.deploy.endpoint import add_and_look
from transformer_serving.desk.deploy.leftover_code import forget_code
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.deploy.registry import SERVED
from transformer_serving.desk.deploy.removal import remove
from transformer_serving.desk.deploy.rollback import rollback
from transformer_serving.desk.deploy.rollout_plans import drop_over, read_all, write
from transformer_serving.desk.deploy.target import DeployTarget, target_of
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.controller.rollouts.course import AFTER_S

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
    api.call("tasks.edit", task=made["id"], runtime={"version": version("clearml-serving")})
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


# clearml-serving's own command, which ends where it calls what is named.
KILLED = """
import os, sys
from clearml import Task
from clearml_serving.serving.model_request_processor import ModelRequestProcessor
{where} = lambda *arguments, **named: os._exit(137)
from clearml_serving.__main__ import main
sys.argv[0] = "clearml-serving"
main()
"""


def registered(target: DeployTarget, bundle: Bundle) -> str:
    """The bundle's model as an upload leaves it, but its file."""
    name = f"texts {bundle.manifest.bundle_version}"
    made = ClearmlApi(target.cli.environment).call(
        "models.create", name=name, uri="http://127.0.0.1:9/model.zip", task=target.cli.serving_id
    )
    return str(made["id"])


def deployed(target: DeployTarget, bundle: Bundle) -> bool:
    """Whether the deploy changed anything."""
    return endpoint.deploy(target, bundle, "texts", timeout_s=3600, report=lambda _: None).changed


@pytest.mark.parametrize(
    "where", ["ModelRequestProcessor._add_registered_input_model", "Task._add_artifacts"]
)
def test_what_a_killed_add_left_is_healed_by_the_bundle_before(
    target: DeployTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """B's code lies beside A's model, in the second case under A's hash. A worker that started
    before answers from A on."""
    a, b = (write_small(tmp_path / name, Parts(revision=name)) for name in "ab")
    add_and_look(target, a, "texts", registered(target, a))
    add = add_arguments(b, "texts", registered(target, b))
    service = str(target.cli.serving_id)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED.format(where=where), "--id", service, *add],
        env={
            **os.environ, **target.cli.environment,
            "PYTHONPATH": path_without_frameworks(tmp_path),
        },
        capture_output=True, check=False,
    )  # fmt: skip
    assert killed.returncode == 137, killed.stderr
    monkeypatch.setattr(endpoint, "upload", lambda target, bundle, *_: registered(target, bundle))
    golden = json.dumps(a.manifest.golden.answer).encode()
    headers = {VERSION_HEADER: str(a.manifest.bundle_version)}
    with answering(lambda path: (200, golden, headers)) as address:
        target = replace(target, serve_url=f"{address}/serve")
        assert deployed(target, a)
        api = ClearmlApi(target.cli.environment)
        task = api.call("tasks.get_by_id", task=target.cli.serving_id)["task"]
        (artifact,) = task["execution"]["artifacts"]
        api.download(artifact["uri"], tmp_path / "stored")
        assert (tmp_path / "stored").read_bytes() == a.preprocess.read_bytes()
        assert not deployed(target, a)
        # Nor where this desk cannot read what is stored: its hash is the bundle's.
        monkeypatch.setattr(ClearmlApi, "download", unread)
        assert not deployed(target, a)


def test_a_demos_name_is_found_as_clearml_serving_has_written_it(
    target: DeployTarget, tmp_path: Path
) -> None:
    """In the service's configuration, which is read as text before any command is asked."""
    demo, own = (write_small(tmp_path / name, Parts(revision=name)) for name in ("demo", "own"))
    demos = {"transformer_model": demo, "texts": own}
    assert served_instead(target, demos) == {}
    add_and_look(target, demo, "transformer_model", registered(target, own))
    add_and_look(target, own, "texts", registered(target, own))
    stock = "serves a model that no 'deploy' has brought"
    assert served_instead(target, demos) == {"transformer_model": stock}


def test_code_that_no_endpoint_has_any_more_leaves_with_the_next_removal(
    api: ClearmlApi, target: DeployTarget, tmp_path: Path
) -> None:
    """What a rollout may go back to stays, as does what may be of an endpoint on its way."""
    service = target.cli.serving_id
    bundle = write_small(tmp_path / "bundle")
    version = str(bundle.manifest.bundle_version)
    for name, told in (("texts", {}), ("texts", {"version": version}), ("others", {})):
        add_and_look(target, bundle, name, registered(target, bundle), **told)
    candidate = f"py_code_texts_{version}"

    def task() -> dict[str, Any]:
        return dict(api.call("tasks.get_by_id", task=service)["task"])

    def keys() -> set[str]:
        return {row["key"] for row in task()["execution"]["artifacts"]}

    def state(phase: str, **more: Any) -> None:
        row = {"phase": phase, "before": {"code": "py_code_before"}, **more}
        text = json.dumps({"texts": row})
        api.call(
            "tasks.edit_configuration", task=service, force=True,
            configuration=[{"name": STATES, "value": text}],
        )  # fmt: skip

    (one, *rest) = task()["execution"]["artifacts"]
    names = ("before", "text", "fresh")
    rows = [one, *rest, *({**one, "key": f"py_code_{name}"} for name in names)]
    rows = [{**row, "timestamp": 1_700_000_000} for row in (*rows, {**one, "key": "figures"})]
    rows[-2]["timestamp"] = int(time.time())
    api.call("tasks.add_or_update_artifacts", task=service, artifacts=rows, force=True)
    state(HOLDING)
    remove(target, "others")
    assert keys() == {"py_code_texts", candidate, "py_code_before", "py_code_fresh", "figures"}
    # Its end is looked after for a while, and what somebody undid is written again.
    state(OVER, outcome=WENT_BACK, since=time.time() - 1.5 * AFTER_S)
    forget_code(target.cli)
    assert "py_code_before" in keys()
    # As the controller ends a rollout that went back, a day ago.
    state(OVER, outcome=WENT_BACK, since=time.time() - 86_400)
    endpoints = task()["configuration"]["endpoints"]
    kept = endpoints["value"].replace(candidate, "py_code_texts")
    api.call(
        "tasks.edit_configuration", task=service, force=True,
        configuration=[{**endpoints, "value": kept}],
    )  # fmt: skip
    forget_code(target.cli)
    assert keys() == {"py_code_texts", "py_code_fresh", "figures"}
    # What was promoted does not go back.
    api.call("tasks.add_or_update_artifacts", task=service, artifacts=rows, force=True)
    state(OVER, outcome=PROMOTED, since=time.time())
    forget_code(target.cli)
    assert keys() == {"py_code_texts", "py_code_fresh", "figures"}


def test_the_last_rollout_of_an_endpoint_goes_with_it(
    api: ClearmlApi, target: DeployTarget, tmp_path: Path
) -> None:
    """Each worker and controller reads all of them at each look, and `status` tells them."""
    bundle = write_small(tmp_path / "bundle")
    for name in ("texts", "more", "others"):
        write(target.cli, replace(PLAN, endpoint=name))
    for name in ("texts", "others"):
        add_and_look(target, bundle, name, registered(target, bundle))
    text = states_text({name: State("a1", OVER) for name in ("texts", "others")})
    api.call(
        "tasks.edit_configuration", task=target.cli.serving_id, force=True,
        configuration=[{"name": STATES, "value": text}],
    )  # fmt: skip
    remove(target, "texts")
    assert set(read_all(target.cli)) == {"more", "others"}
    # One that began meanwhile.
    drop_over(target, "more", 1.0)
    assert set(read_all(target.cli)) == {"more", "others"}


def unread(*_: object) -> None:
    raise Failure("the file server is not reached from here")


def test_what_others_undid_stays_registered(
    target: DeployTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their older copy may yet bring back the entry that names it; where the add itself fails,
    nothing does."""
    bundle = write_small(tmp_path / "bundle")
    monkeypatch.setattr(endpoint, "upload", lambda target, bundle, *_: registered(target, bundle))
    monkeypatch.setattr(endpoint, "has_code", lambda *_: False)
    with pytest.raises(Failure, match="every time somebody else's change undid it"):
        deployed(target, bundle)
    assert target.registry().bundles("texts")


def begin(target: DeployTarget, bundle: Bundle) -> object:
    return rollout.start(
        target, bundle, "texts", steps=(1, 100), hold_s=1, allowed=Allowed(), timeout_s=60,
        report=lambda _: None, tell=lambda _: None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        deployed,
        begin,
        lambda target, _: rollback(target, "texts", timeout_s=60, report=lambda _: None),
        lambda target, _: remove(target, "texts", forget=True),
    ],
    ids=["deploy", "rollout", "rollback", "remove"],
)
def test_a_service_of_another_clearml_serving_is_left_as_it_is(
    api: ClearmlApi, target: DeployTarget, tmp_path: Path,
    change: Callable[[DeployTarget, Bundle], object],
) -> None:  # fmt: skip
    """Its commands would ask before each change, and nobody sits there to answer."""
    bundle = write_small(tmp_path / "bundle")
    api.call("tasks.edit", task=target.cli.serving_id, force=True, runtime={"version": "1.2.0"})
    rows: list[object] = []
    if change is not deployed and change is not begin:
        text = json.dumps({"texts": {"engine_type": "triton", "serving_url": "texts"}})
        item = {"name": "endpoints", "value": text}
        edit = {"task": target.cli.serving_id, "configuration": [item]}
        api.call("tasks.edit_configuration", **edit)
        api.call("models.edit", model=registered(target, bundle), tags=[SERVED])
        rows = list(target.registry().bundles("texts"))
    with pytest.raises(Failure, match=r"clearml-serving 1\.2\.0, and here is 1\.3\.5") as refused:
        change(target, bundle)
    assert refused.value.exit_code == 2
    assert target.registry().bundles("texts") == rows
