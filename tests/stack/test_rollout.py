"""Guarded rollouts on the whole stack, with sixteen clients that never stop asking.

A good bundle comes to serve; a slower one and one that fails one request in twenty go back by
themselves and say why. Whatever happens, every answer is that of exactly one of the two bundles,
and none fails but those that the candidate itself fails.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.stack.conftest import CLI, ROOT, Stack
from tests.stack.desk import served
from tests.stack.load import Log, Seen, load
from tests.stack.small_bundles import TEXT, Parts, answer_of, write_small

pytestmark = pytest.mark.long

NAME = "guarded"
# The old bundle has no such word; the other one's engine has no row for it.
STRANGE = "comet"
ODD = f"rain {STRANGE} fog"
OLD = Parts()
GOOD = Parts(revision="as good")
# The same model by other names: nothing but its answers tells it from a good one.
DIFFERING = Parts(labels=("two", "three", "one"))
FAILING = Parts(strange=STRANGE)
SLOWER = Parts(
    code="""
import asyncio
_quick = Preprocess.process
async def _slow(self, request, state, collect=None):
    await asyncio.sleep(0.05)
    return await _quick(self, request, state, collect)
Preprocess.process = _slow
"""
)
# Under this load an engine beside the busy one is slower than it will be (docs/rollout.md).
PATIENT = ("--allow-p50", "5", "--allow-p99", "20")
SHADOW = ("--shadow", "--hold", "5s", *PATIENT)
STEPS = ("--steps", "10,50,100", "--hold", "5s")


def body() -> dict[str, str]:
    return {"text": ODD if random.random() < 0.05 else TEXT}


@dataclass
class Guarded:
    """The endpoint under load; `right` are the answers that the old and the good bundles give."""

    stack: Stack
    folder: Path
    log: Log
    right: set[Seen]

    def bundle(self, parts: Parts) -> tuple[str, int]:
        bundle = write_small(self.folder / str(random.getrandbits(40)), parts)
        version = bundle.manifest.bundle_version
        for text in (TEXT, ODD):
            answer = answer_of(parts, text)
            self.right.add(Seen(200, version, f"{answer['label']} {answer['score']:.2f}"))
        return str(bundle.folder), version

    def rollout(self, parts: Parts, code: int, *more: str) -> tuple[int, dict[str, Any]]:
        """One to its end; the candidate's version, and what `rollout status` says."""
        folder, version = self.bundle(parts)
        self.stack.run("rollout", folder, "--endpoint", NAME, *STEPS, *more, code=code)
        return version, self.status()

    def status(self) -> dict[str, Any]:
        row: dict[str, Any] = self.stack.json("rollout", "status", NAME)[0]
        return row

    def phase(self) -> str:
        return str((self.status()["state"] or {}).get("phase"))

    def version(self) -> int | None:
        return self.stack.seen(NAME, {"text": TEXT}).version

    def is_as_before(self, version: int) -> None:
        """The old bundle serves alone, and nothing is left of the candidate."""
        assert self.version() == version
        self.stack.until(
            lambda: [name for name in self.stack.rows() if name.startswith(NAME)] == [NAME],
            "the candidate is gone",
        )
        listed = self.stack.clearml_serving("model", "list")
        assert listed.count("load_endpoints") == 0

    def wrong(self) -> dict[Seen, int]:
        return self.log.except_(*self.right)


@pytest.fixture(scope="module")
def guarded(plain: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    random.seed(5)
    found = Guarded(plain, tmp_path_factory.mktemp("guarded"), Log(), set())
    folder, _ = found.bundle(OLD)
    plain.run("deploy", folder, "--endpoint", NAME)
    with load(plain.base, NAME, body) as log:
        found.log = log
        yield found
    plain.run("remove", NAME)


@pytest.mark.by_hand
def test_a_slower_one_goes_back(guarded: Guarded) -> None:
    before = guarded.version()
    assert before is not None
    _, said = guarded.rollout(SLOWER, 3)
    assert said["state"]["outcome"] == "went back"
    assert said["state"]["reason"].startswith(("median", "p99"))
    guarded.is_as_before(before)
    assert not guarded.wrong()


def test_one_that_fails_one_in_twenty_goes_back(guarded: Guarded) -> None:
    before = guarded.version()
    assert before is not None
    version, said = guarded.rollout(FAILING, 3)
    assert said["state"]["reason"].startswith("errors: worse")
    guarded.is_as_before(before)
    # The candidate failed what it fails; nobody else's request was lost.
    assert {(seen.version, seen.status) for seen in guarded.wrong()} <= {(version, 502)}
    guarded.right |= set(guarded.wrong())


def test_one_that_is_aborted_goes_back_and_others_wait_for_it(guarded: Guarded) -> None:
    before = guarded.version()
    assert before is not None
    folder, _ = guarded.bundle(Parts(revision="aborted"))
    present, _ = guarded.bundle(OLD)
    guarded.stack.run("rollout", folder, "--endpoint", NAME, *STEPS, *PATIENT, "--detach")
    # Of either bundle, though that is what may just have answered.
    deploys = [("deploy", bundle, "--endpoint", NAME) for bundle in (folder, present)]
    for command in (*deploys, ("rollback", NAME), ("remove", NAME)):
        assert "in a rollout" in guarded.stack.run(*command, code=2)
    assert "in a rollout" in guarded.stack.run("rollout", folder, "--endpoint", NAME, code=2)
    # The controller has the plan within one of its looks.
    guarded.stack.until(
        lambda: [row["endpoint"] for row in guarded.stack.json("status")["rollouts"]] == [NAME],
        "status shows it",
    )
    said = guarded.stack.run("rollout", "abort", NAME)
    assert "went back: abort was asked for" in said
    guarded.is_as_before(before)
    assert "is in no rollout" in guarded.stack.run("rollout", "abort", NAME, code=2)
    assert not guarded.wrong()


def test_a_good_one_comes_to_serve_though_terminal_and_controller_end(guarded: Guarded) -> None:
    before = guarded.version()
    folder, version = guarded.bundle(GOOD)
    with subprocess.Popen(
        [CLI, "rollout", folder, "--endpoint", NAME, *STEPS, *PATIENT,
         "--state", str(guarded.stack.state)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ,
    ) as watching:  # fmt: skip
        assert watching.stdout is not None
        assert any(b"step 1 of 3" in line for line in watching.stdout)
        watching.kill()
    psutil.Process(guarded.stack.parts()["controller"]["pid"]).send_signal(signal.SIGKILL)
    guarded.stack.until(lambda: guarded.phase() == "over", "it ends", 400)
    said = guarded.status()
    assert said["state"]["outcome"] == "promoted", said["state"]
    assert version != before
    guarded.is_as_before(version)
    assert not guarded.wrong()
    done = guarded.stack.json("rollback", NAME)
    assert (done["withdrawn_version"], done["bundle_version"]) == (version, before)
    assert not guarded.wrong()


@pytest.mark.by_hand
def test_one_whose_answers_differ_goes_back(guarded: Guarded) -> None:
    before = guarded.version()
    assert before is not None
    _, said = guarded.rollout(DIFFERING, 3)
    assert said["state"]["reason"].startswith("differing answers: worse")
    guarded.is_as_before(before)
    assert not guarded.wrong()


def counted(guarded: Guarded, version: int) -> dict[tuple[str, str], float]:
    """What the workers count of the candidate, by figure and outcome or status."""
    with urllib.request.urlopen(f"http://127.0.0.1:{guarded.stack.base}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
    return {
        (sample.name, sample.labels.get("outcome") or sample.labels.get("status", "")): sample.value
        for family in families for sample in family.samples
        if sample.labels.get("endpoint") == f"{NAME}/{version}" and sample.name.endswith("_total")
    }  # fmt: skip


def answers_of(guarded: Guarded, version: int) -> int:
    """How many of the load's requests this version has answered."""
    return sum(count for seen, count in list(guarded.log.counts.items()) if seen.version == version)


@pytest.mark.by_hand
@pytest.mark.parametrize(("parts", "code", "outcome", "reason"), [
    (Parts(revision="shadowed"), 0, "passed", "every figure was well"),
    (DIFFERING, 3, "did not pass", "differing answers: worse"),
])  # fmt: skip
def test_in_a_shadow_the_old_one_alone_answers(
    guarded: Guarded, parts: Parts, code: int, outcome: str, reason: str
) -> None:
    before = guarded.version()
    assert before is not None
    folder, version = guarded.bundle(parts)
    # Another test's rollout of the same bundle may have answered some.
    answered = answers_of(guarded, version)
    guarded.stack.run("rollout", folder, "--endpoint", NAME, *SHADOW, "--detach")
    assert "promotes nothing" in guarded.stack.run("rollout", "promote", NAME, code=2)
    served = "transformer_serving_requests_total", "200"
    # Those that the command itself asked before it wrote the plan.
    asked = counted(guarded, version)[served]
    found: dict[tuple[str, str], float] = {}

    def is_over() -> bool:
        found.update(counted(guarded, version))
        return guarded.phase() == "over"

    guarded.stack.until(is_over, "the shadow ends", 400)
    state = guarded.status()["state"]
    assert (state["outcome"], state["reason"][: len(reason)]) == (outcome, reason), state
    guarded.is_as_before(before)
    # Nobody was answered by it, and its own figures of requests have none of the mirrored ones.
    assert answers_of(guarded, version) == answered
    assert found[("transformer_serving_gateway_mirrored_total", "same" if not code else "differs")]
    assert found[served] == asked
    assert not guarded.wrong()


@pytest.mark.by_hand
def test_one_that_is_promoted_by_hand_serves(guarded: Guarded) -> None:
    folder, version = guarded.bundle(Parts(revision="by hand"))
    guarded.stack.run("rollout", folder, "--endpoint", NAME, *STEPS, *PATIENT, "--detach")
    assert "promoted" in guarded.stack.run("rollout", "promote", NAME)
    guarded.is_as_before(version)
    assert not guarded.wrong()


@pytest.mark.spare
def test_what_cannot_be_rolled_out_is_refused_with_the_fix(guarded: Guarded) -> None:
    run = guarded.stack.run
    folder, _ = guarded.bundle(GOOD)
    assert "deploy it" in run("rollout", folder, "--endpoint", "nobody", code=2)
    present, _ = guarded.bundle(OLD)
    run("deploy", present, "--endpoint", NAME)
    assert "already" in run("rollout", present, "--endpoint", NAME, code=2)
    broken = write_small(guarded.folder / "broken", Parts(engine="openvino", broken=True)).folder
    said = run("rollout", str(broken), "--endpoint", NAME, "--timeout", "60", code=1)
    assert "taken out again" in said
    assert not guarded.wrong()


def test_one_that_is_ended_before_it_begins_leaves_no_candidate(guarded: Guarded) -> None:
    """Also where who ends it does so again and again."""
    broken = write_small(guarded.folder / "ended", Parts(engine="openvino", broken=True))
    candidate = f"{NAME}/{broken.manifest.bundle_version}"
    with subprocess.Popen(
        [CLI, "rollout", str(broken.folder), "--endpoint", NAME, *STEPS, "--timeout", "600",
         "--state", str(guarded.stack.state)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as begun:  # fmt: skip
        guarded.stack.until(lambda: candidate in served(guarded.stack), "the candidate is added")
        while begun.poll() is None:
            begun.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert begun.stderr is not None
        assert "is left" not in begun.stderr.read()
    # The last one may have come when nothing was left to do but to leave.
    assert begun.returncode in (1, -signal.SIGTERM)
    assert candidate not in served(guarded.stack)
    assert not guarded.wrong()
