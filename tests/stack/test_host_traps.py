"""What clearml-serving 1.3.5 does wrong: parallel writers, names, a control plane that is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from tests.stack.conftest import COMMAND, Stack, started
from tests.stack.desk import TENSORS, Desk, served
from tests.stack.load import load
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.deploy.endpoint import deploy
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.doctor.finding import OK
from transformer_serving.desk.doctor.subject import subject_of
from transformer_serving.desk.doctor.triton import check_endpoints
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import require_record
from transformer_serving.desk.local.stack import Stack as Running
from transformer_serving.desk.local.supervision import Supervisor

pytestmark = pytest.mark.long

BODY = {"text": TEXT}
# Also for eight that take turns on a busy machine.
_DEPLOY_S = 800


def test_two_uploads_of_one_file_name(desk: Desk) -> None:
    """By the raw command the second replaces the first, which status tells of that one; deploy
    keeps apart."""
    stack = desk.stack
    for name, scale in (("early", 2.0), ("late", 3.0)):
        model = desk.upload(name, "--path", str(desk.model(scale, "same_name.onnx")))
        desk.add(name, "--model-id", model)
    stack.until(lambda: "early (overwritten)" in stack.rows(), "status tells of it")
    assert "late (overwritten)" not in stack.rows()
    assert "--destination" in stack.rows()["early (overwritten)"]["reason"]


def test_two_uploads_of_one_bundle(desk: Desk) -> None:
    """The later upload replaced the bytes by the same, and nothing is wrong."""
    stack = desk.stack
    bundle = write_small(desk.folder / "twice", Parts(scale=4))
    for name in ("first", "second"):
        model = desk.upload(name, "--path", str(bundle.model_folder))
        stack.clearml_serving(*add_arguments(bundle, name, model))
    ready = {"first", "second"}
    stack.until(
        lambda: all(stack.rows().get(name, {}).get("ready") for name in ready), "both are ready"
    )
    assert not {f"{name} (overwritten)" for name in ready} & stack.rows().keys()
    subject = subject_of(stack.state)
    for name in sorted(ready):
        assert [one.status for one in check_endpoints(replace(subject, endpoint=name))] == [OK]
    version = bundle.manifest.bundle_version
    # A worker may look for changes later than the controller.
    stack.until(
        lambda: all(stack.seen(name, BODY).version == version for name in ready), "both answer"
    )


def test_eight_deploys_at_once(desk: Desk) -> None:
    """They take turns, so no change is lost; each endpoint answers from its own bundle."""
    state = desk.stack.state
    target = Running(state, require_record(state), Supervisor(state)).target()
    bundles = [write_small(desk.folder / str(at), Parts(scale=1 + at)) for at in range(8)]

    def one(at: int) -> int:
        done = deploy(target, bundles[at], f"par{at}", timeout_s=_DEPLOY_S, report=lambda _: None)
        return done.bundle_version

    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(one, range(8)))
    assert [desk.stack.seen(f"par{at}", BODY).version for at in range(8)] == versions
    assert {f"par{at}" for at in range(8)} <= set(served(desk.stack))


@dataclass(frozen=True)
class Forgetful(ClearmlCli):
    """Loses the address of the first files that it uploads, as the SDK does now and then."""

    lost: list[str] = field(default_factory=list)
    times: int = 1

    def upload_model(
        self, name: str, project: str, folder: Path, destination: str, *, timeout_s: float = 60
    ) -> str:
        model = super().upload_model(name, project, folder, destination, timeout_s=timeout_s)
        if len(self.lost) < self.times:
            self.lost.append(model)
            address = f"{destination}/uploading_file"
            ClearmlApi(self.environment).call("models.edit", model=model, uri=address)
        return model


def test_a_lost_address_is_uploaded_again(desk: Desk) -> None:
    state = desk.stack.state
    target = Running(state, require_record(state), Supervisor(state)).target()
    cli = Forgetful(target.cli.environment, target.cli.serving_id)
    bundle = write_small(desk.folder / "address", Parts(scale=11))
    done = deploy(
        replace(target, cli=cli), bundle, "address", timeout_s=_DEPLOY_S, report=lambda _: None
    )
    (lost,) = cli.lost
    assert done.model_id != lost
    assert [row.model_id for row in target.registry().bundles("address")] == [done.model_id]
    never = Forgetful(target.cli.environment, target.cli.serving_id, times=9)
    other = write_small(desk.folder / "other", Parts(scale=12))
    with pytest.raises(Failure, match="uploaded 3 times and every time clearml-serving lost"):
        deploy(
            replace(target, cli=never), other, "address", timeout_s=_DEPLOY_S, report=lambda _: None
        )
    assert desk.stack.seen("address", BODY).version == done.bundle_version


def test_status_tells_of_a_lost_address(desk: Desk) -> None:
    model = desk.upload("unaddressed", "--path", str(desk.model(2.0, "unaddressed.onnx")))
    address = f"http://127.0.0.1:{desk.stack.base}/uploading_file"
    ClearmlApi(desk.stack.environment()).call("models.edit", model=model, uri=address)
    desk.add("unaddressed", "--model-id", model)
    desk.stack.until(
        lambda: "upload it again" in (desk.stack.rows().get("unaddressed", {}).get("reason") or ""),
        "status tells of it",
    )


def test_a_lost_raw_add_is_reported(desk: Desk) -> None:
    """Of parallel `model add`s some are lost; status names each one that is."""
    stack = desk.stack
    model = desk.upload("raw", "--path", str(desk.model(2.0, "raw.onnx")))
    for attempt in range(5):
        names = [f"raw{attempt}{at}" for at in range(4)]
        if gone := lost_of(stack, model, names):
            break
    else:
        pytest.fail("none was lost in five attempts")
    lost = {f"{name} (lost)" for name in gone}
    stack.until(lambda: {row for row in stack.rows() if "(lost)" in row} == lost, f"lost {lost}")
    for name in gone:
        assert "add it again" in stack.rows()[f"{name} (lost)"]["reason"]
        stack.clearml_serving("model", "add", "--endpoint", name, "--model-id", model, *TENSORS)
    stack.until(lambda: not [row for row in stack.rows() if "(lost)" in row], "all are there")


def lost_of(stack: Stack, model: str, names: list[str]) -> list[str]:
    """Those of the endpoints, added at once, that are not there afterwards."""
    command = [sys.executable, "-m", COMMAND, "--id", stack.serving_id, "model", "add"]
    running = [
        subprocess.Popen(
            [*command, "--endpoint", name, "--model-id", model, *TENSORS],
            env=stack.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for name in names
    ]  # fmt: skip
    assert [process.wait(120) for process in running] == [0] * len(names)
    there = served(stack)
    return [name for name in names if name not in there]


def test_a_service_with_only_auto_update_endpoints(tmp_path: Path) -> None:
    """Its sync lives on; a name with '/' among them is told of and hurts nothing."""
    with started(tmp_path / "stack") as stack:
        desk = Desk(stack, tmp_path)
        for name in ("auto", "team/auto"):
            stack.clearml_serving(
                "model", "auto-update", "--endpoint", name, "--name", "watched",
                "--project", "commands", "--max-versions", "2", "--preprocess", desk.code(),
                *TENSORS,
            )  # fmt: skip
        for at, scale in enumerate((2.0, 3.0), start=1):
            desk.upload("watched", "--path", str(desk.model(scale, f"w{at}.onnx")))
            desk.until_answers(f"auto/{at}", scale)
        assert "choose another name" in stack.rows()["team/auto"]["reason"]
        assert stack.parts()["inference"]["health"] == "ok"


def test_the_control_plane_is_away(desk: Desk) -> None:
    """Requests go on; commands and starting parts wait for a bounded time and then say so."""
    stack = desk.stack
    bundle = write_small(desk.folder / "away", Parts())
    stack.run("deploy", str(bundle.folder), "--endpoint", "away")
    good = stack.seen("away", BODY)
    supervisor = Supervisor(stack.state)
    with load(stack.base, "away", BODY, clients=4) as log:
        supervisor._rpc.stopProcess("control-plane")
        said = stack.run("remove", "away", code=1)
        assert "did not answer within 10 s" in said
        assert "transformer-serving doctor" in said
        before = log.total()
        stack.until(lambda: log.total() > before + 100, "requests go on")
    assert not log.except_(good), log.counts
    inference = stack.parts()["inference"]["pid"]
    os.kill(inference, signal.SIGKILL)
    stack.until(lambda: stack.parts()["inference"]["pid"] not in (None, inference), "it waits")
    supervisor.start_part("control-plane")
    stack.until(
        lambda: stack.seen("away", BODY) == good, "it starts when the control plane is back"
    )


def test_a_control_plane_that_never_comes() -> None:
    with pytest.raises(Failure, match="http://127.0.0.1:9 did not answer within 1 s"):
        ClearmlApi({"CLEARML_API_HOST": "http://127.0.0.1:9"}).wait(1)


@pytest.mark.parametrize("name", ["inference", "controller", "control-plane", "triton"])
def test_sigterm_is_enough(plain: Stack, name: str) -> None:
    """Each part leaves when it is told, long before it would be killed, and leaves nothing."""
    process = psutil.Process(plain.parts()[name]["pid"])
    family = [process, *process.children(recursive=True)]
    process.terminate()
    psutil.wait_procs(family, timeout=20)
    assert not [one for one in family if one.is_running()]
    plain.until(lambda: plain.parts()[name]["health"] == "ok", f"{name} is back")
