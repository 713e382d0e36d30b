"""An engine that is wrong at one length is found where it is served, and never answers a client.

The bundle's golden request is of another length, so that without a proof it would be served.
"""

from __future__ import annotations

import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_port_base
from tests.stack.conftest import Stack
from tests.stack.load import load
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.desk.cli.deploy import deploy_target
from transformer_serving.desk.deploy.endpoint import deploy_together
from transformer_serving.desk.deploy.registry import SERVED
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.leftovers import leftovers
from transformer_serving.desk.local.record import require_record

pytestmark = pytest.mark.long

BODY = {"text": TEXT}
# Far longer than a test waits for a command.
PATIENCE = ("--timeout", "900")
RIGHT = {
    engine: Parts(engine=engine, parity=True) for engine in ("onnxruntime", "openvino", "torch")
}
WRONG = Parts(scale=2.0, parity=True, wrong_at=16)


@pytest.fixture
def endpoint(plain: Stack) -> Iterator[str]:
    yield "proven"
    if "proven" in plain.rows():
        plain.run("remove", "proven")
        plain.until(lambda: "proven" not in plain.rows(), "it is gone")


def metrics(stack: Stack) -> str:
    port = require_record(stack.state).ports.controller_metrics
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def state_line(bundle: int, state: str) -> str:
    labels = f'endpoint="proven",bundle="{bundle}",state="{state}"'
    return f"transformer_serving_engine_proof{{{labels}}} 1\n"


def test_a_first_deploy_of_a_wrong_engine_fails_at_once_and_answers_nobody(
    plain: Stack, endpoint: str, tmp_path: Path
) -> None:
    bundle = write_small(tmp_path / "wrong", WRONG)
    number = bundle.manifest.bundle_version
    with load(plain.base, endpoint, BODY, clients=6) as log:
        said = plain.run("deploy", str(bundle.folder), "--endpoint", endpoint, *PATIENCE, code=1)
    print(said)  # noqa: T201 - pytest -s shows the message as a user reads it
    assert f"{endpoint}: bundle {number} is not served: its engine's answers differ from" in said
    assert "at 16 tokens, any batch: " in said
    assert "; nothing is served; convert it again on this kind of processor, or with a safer" in (
        " ".join(said.split())
    )
    assert 200 not in log.statuses(), log.counts
    assert not log.hung
    row = plain.rows()[endpoint]
    assert (row["ready"], row["proof"], row["proof_of"]) == (False, "failed", number)
    assert "at 16 tokens, any batch" in row["reason"]
    plain.until(lambda: state_line(number, "failed") in metrics(plain), "the page says so")
    assert "nv_" in metrics(plain)
    assert "failed" in plain.run("status")


def test_of_two_that_are_deployed_together_the_right_one_serves(
    plain: Stack, endpoint: str, tmp_path: Path
) -> None:
    wrong, right = write_small(tmp_path / "wrong", WRONG), write_small(tmp_path / "right")
    bundles = {"refused": wrong, endpoint: right}
    target = deploy_target(str(plain.state))
    try:
        with pytest.raises(Failure, match=r"^refused: bundle \d+ is not served: its engine's"):
            deploy_together(target, bundles, timeout_s=900, report=lambda _: None)
        seen = plain.seen(endpoint, BODY)
        assert (seen.status, seen.version) == (200, right.manifest.bundle_version)
        rows = target.registry().bundles(endpoint)
        assert [row.bundle_version for row in rows if SERVED in row.tags] == [seen.version]
        again = deploy_together(target, {endpoint: right}, timeout_s=900, report=lambda _: None)
        assert [one.changed for one in again] == [False]
    finally:
        plain.run("remove", "refused")


@pytest.mark.parametrize("engine", [
    pytest.param(engine, marks=() if engine == "onnxruntime" else pytest.mark.spare)
    for engine in RIGHT
])  # fmt: skip
def test_the_bundle_before_serves_on_through_a_wrong_update(
    plain: Stack, endpoint: str, tmp_path: Path, engine: str
) -> None:
    right = write_small(tmp_path / "right", RIGHT[engine])
    plain.run("deploy", str(right.folder), "--endpoint", endpoint)
    good = plain.seen(endpoint, BODY)
    number = right.manifest.bundle_version
    assert (good.status, good.version) == (200, number)
    assert plain.rows()[endpoint]["proof"] == "proven"
    plain.until(lambda: state_line(number, "proven") in metrics(plain), "the page says so")
    wrong = write_small(tmp_path / "wrong", WRONG)
    with load(plain.base, endpoint, BODY, clients=8) as log:
        said = plain.run("deploy", str(wrong.folder), "--endpoint", endpoint, *PATIENCE, code=1)
        seen = log.total()
        plain.until(lambda: log.total() > seen + 50, "clients ask on")
    instead = (
        f"bundle {number} serves on, and 'transformer-serving rollback {endpoint} --state "
        f"{shlex.quote(str(plain.state))}' asks for it"
    )
    assert instead in " ".join(said.split())
    assert not log.except_(good), log.counts
    row = plain.rows()[endpoint]
    assert (row["ready"], row["bundle_version"], row["proof"]) == (True, number, "failed")
    # What answers is not what is configured, and a new Triton would find that alone.
    plain.run("deploy", str(right.folder), "--endpoint", endpoint)
    plain.until(lambda: plain.rows()[endpoint]["reason"] is None, "the right one is asked for")
    plain.run("deploy", str(wrong.folder), "--endpoint", endpoint, *PATIENCE, code=1)
    # Taken back, the matter ends without another proof.
    plain.run("rollback", endpoint)
    plain.until(lambda: plain.rows()[endpoint]["reason"] is None, "the reason is gone")
    plain.until(lambda: plain.rows()[endpoint]["proof"] == "proven", "it is the proven one")


def test_a_restart_costs_no_proof_and_a_moved_state_one(tmp_path: Path) -> None:
    """Where the kept proofs are of another processor, everything is proven on this one first.

    What has no parity set is served again as well.
    """
    stack = Stack(tmp_path / "state", free_port_base())
    kept = stack.state / "triton" / "proofs.json"
    bundle = write_small(tmp_path / "right", RIGHT["openvino"])
    unproven = write_small(tmp_path / "unproven")
    stack.run("up", "--port-base", str(stack.base))
    try:
        stack.run("deploy", str(unproven.folder), "--endpoint", "unproven")
        stack.run("deploy", str(bundle.folder), "--endpoint", "proven")
        before = kept.read_text()
        for restart in ("same machine", "another"):
            stack.run("down")
            assert not list(leftovers(stack.state))
            if restart == "another":
                kept.write_text(before.replace('"key": "', '"key": "of another machine '))
            stack.run("up")
            stack.until(lambda: stack.post("proven", BODY)[0] == 200, "it is served again")
            stack.until(lambda: stack.post("unproven", BODY)[0] == 200, "and so is the other")
            stack.until(lambda: stack.rows()["proven"]["proof"] == "proven", "it is proven")
            assert (kept.read_text() == before) == (restart == "same machine")
    finally:
        stack.run("down")
