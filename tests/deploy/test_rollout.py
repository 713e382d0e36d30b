"""What the desk says of a rollout; the whole way is in tests/stack/test_rollout.py."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.deploy.played import NAME, Target
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.contract.rollout import (
    ABORT,
    HOLDING,
    OVER,
    RETURNING,
    Allowed,
    Plan,
    State,
)
from transformer_serving.desk.deploy import rollout, taking_out
from transformer_serving.desk.deploy.candidate_cost import Cost
from transformer_serving.desk.deploy.registry import SERVED
from transformer_serving.desk.deploy.rollout import (
    check_steps,
    keep_newest,
    mirrored_share,
)
from transformer_serving.desk.deploy.rollout_plans import Rollout
from transformer_serving.desk.deploy.taking_out import taken_out_again
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.deploy.time_limit import within
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import interruptible

PLAN = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)
HELD = State("a1", HOLDING, 0)


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (None, "waits for the controller"),
        (State("a1", HOLDING, 0), "step 1 of 2, 1 % of the requests"),
        (State("a1", RETURNING, reason="errors: worse"), "returning: errors: worse"),
        (State("a1", OVER, outcome="went back", reason="why"), "went back: why"),
        (State("a1", OVER, outcome="promoted"), "promoted"),
    ],
)
def test_its_line_says_where_it_is(state: State | None, line: str) -> None:
    assert Rollout(PLAN, state).line == f"texts, bundle 77: {line}"


def test_it_is_over_where_the_controller_says_so() -> None:
    assert not Rollout(PLAN, None).is_over
    assert Rollout(PLAN, replace(State("a1"), phase=OVER)).is_over


def test_steps() -> None:
    assert check_steps((1, 10, 100)) == (1, 10, 100)
    with pytest.raises(Failure, match="rise and end with 100"):
        check_steps((100,))


def test_a_step_is_a_share_that_a_route_can_have() -> None:
    """One of less is told as it was given, and routed as the least."""
    assert check_steps((0.01, 99.99, 100)) == (0.01, 99.99, 100)
    for steps in ((0.001, 100), (10, 99.999, 100)):
        got = ",".join(map(str, steps))
        with pytest.raises(Failure, match=f"are from 0.01 to 99.99, .* got {got}") as refused:
            check_steps(steps)
        assert refused.value.exit_code == 2


def test_the_cost_counts_the_endpoint_and_its_memory() -> None:
    says = Cost("texts/77", 2, 90_000_000, 8_000_000_000).says
    assert "texts/77, number 3 of the service, with 90 MB or more" in says
    assert "8,000 MB are free here" in says
    assert "free" not in Cost("texts/77", 2, 90_000_000, None).says


def test_the_cost_says_what_mirroring_takes() -> None:
    assert "no requests are mirrored" in Cost("texts/77", 2, 90, None).says
    stepped = Cost("texts/77", 2, 90, None, 0.25)
    assert "twice that while" in stepped.says
    assert "mirrored requests take 25 % of each worker's time at most" in stepped.says
    shadow = Cost("texts/77", 2, 90, None, 0.25, shadow=True)
    assert "twice" not in shadow.says
    assert "mirrored requests of both bundles take 25 %" in shadow.says
    assert (stepped.needed, shadow.needed) == (180, 90)


def test_a_shadow_says_so() -> None:
    shadow = replace(PLAN, steps=(100.0,), shadow=True)
    assert "in the shadow; the old bundle answers everything" in Rollout(shadow, HELD).line


def test_texts_are_not_mirrored() -> None:
    texts: Any = SimpleNamespace(endpoint=SimpleNamespace(task="text-generation"))
    labels: Any = SimpleNamespace(endpoint=SimpleNamespace(task="text-classification"))
    assert mirrored_share(labels, 25, shadow=True) == 25
    assert mirrored_share(texts, 25, shadow=False) == 0
    with pytest.raises(Failure, match="no --shadow of text-generation"):
        mirrored_share(texts, 25, shadow=True)
    with pytest.raises(Failure, match="more than 0"):
        mirrored_share(labels, 0, shadow=True)


class Cli:
    """The service's endpoints; `meanwhile` happens while one is taken out."""

    environment: dict[str, str] = {}
    serving_id = "0" * 32

    def __init__(self, *endpoints: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.endpoints = list(endpoints)
        self.meanwhile = meanwhile
        self.candidates = PLAN.model_id
        self.named: dict[str, str] = {}

    def name_model(self, endpoint: str, model_id: str) -> None:
        self.named[endpoint] = model_id

    def run(self, *command: str, timeout_s: float) -> str:
        if command == ("model", "list"):
            rows = {name: {"model_id": PLAN.old_model_id} for name in self.endpoints}
            if PLAN.candidate in rows:
                rows[PLAN.candidate] = {"model_id": self.candidates}
            return f"Endpoints:\n{json.dumps(rows)}\nModel Monitoring:\n"
        assert command[:3] == ("model", "remove", "--endpoint")
        self.meanwhile()
        self.endpoints.remove(command[3])
        return ""


class Service(DeployTarget):
    """With a registry of its own; `forgotten` is what left it."""

    def registry(self) -> Any:
        return SimpleNamespace(forget=self.forgotten.append)

    @cached_property
    def forgotten(self) -> list[str]:
        return []


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> dict[str, Rollout]:
    """What stands in ClearML."""
    found: dict[str, Rollout] = {}
    monkeypatch.setattr(taking_out, "read_all", lambda _: found)
    monkeypatch.setattr(
        taking_out, "write", lambda _, plan: found.update({plan.endpoint: Rollout(plan, None)})
    )
    return found


pytestmark = pytest.mark.usefixtures("plans")


def target_of(tmp_path: Path, cli: Cli) -> Service:
    return Service(cast("Any", cli), "http://f", "http://s", tmp_path / "deploy.lock")


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("ended", [KeyboardInterrupt(), Failure("no answer", exit_code=2)])
def test_a_candidate_nobody_knows_of_is_taken_out_again(
    tmp_path: Path, ended: BaseException, locked: bool
) -> None:
    cli = Cli("texts", PLAN.candidate)
    target = target_of(tmp_path, cli)
    with ExitStack() as held:
        if locked:
            held.enter_context(one_at_a_time(target.lock))
        with pytest.raises(type(ended)) as raised, taken_out_again(target, PLAN, locked=locked):
            raise ended
    assert cli.endpoints == ["texts"]
    assert target.forgotten == [PLAN.model_id]
    if isinstance(raised.value, Failure):
        assert "no answer; the candidate is taken out again, texts is as it was" in str(
            raised.value
        )
        assert raised.value.exit_code == 2


def test_a_candidate_of_somebody_else_stays(tmp_path: Path) -> None:
    """Two may have begun to put the same bundle there, from two machines."""
    cli = Cli("texts", PLAN.candidate)
    cli.candidates = "theirs"
    with pytest.raises(KeyboardInterrupt), taken_out_again(target_of(tmp_path, cli), PLAN):
        raise KeyboardInterrupt
    assert cli.endpoints == ["texts", PLAN.candidate]
    # What `model add` names before anything else, it named for the candidate.
    assert cli.named == {"texts": PLAN.old_model_id}


def test_one_that_is_ended_once_its_plan_is_written_is_aborted(
    tmp_path: Path, plans: dict[str, Rollout]
) -> None:
    """The candidate is the controller's by then: without it workers would be sent to nothing."""
    cli = Cli("texts", PLAN.candidate)
    target = target_of(tmp_path, cli)
    plans["texts"] = Rollout(PLAN, None)
    how = "it was ended; the rollout had begun and is aborted"
    with pytest.raises(Failure, match=how), taken_out_again(target, PLAN):
        raise KeyboardInterrupt
    assert plans["texts"].plan.wish == ABORT
    assert cli.endpoints == ["texts", PLAN.candidate]
    # Another rollout's plan is none of its.
    plans["texts"] = Rollout(replace(PLAN, id="b2"), None)
    with pytest.raises(KeyboardInterrupt), taken_out_again(target, PLAN):
        raise KeyboardInterrupt
    assert cli.endpoints == ["texts"]
    assert plans["texts"].plan.wish == ""


def test_one_that_stays_is_named(tmp_path: Path) -> None:
    def stuck() -> None:
        raise Failure("played")

    target = target_of(tmp_path, Cli("texts", PLAN.candidate, meanwhile=stuck))
    how = "it was ended; played; the candidate texts/77 is left: transformer-serving remove texts"
    with pytest.raises(Failure, match=how), taken_out_again(target, PLAN):
        raise KeyboardInterrupt
    assert not target.forgotten
    gone = target_of(tmp_path, Cli("texts", meanwhile=stuck))
    with pytest.raises(KeyboardInterrupt), taken_out_again(gone, PLAN):
        raise KeyboardInterrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_it_once_more_leaves_no_candidate(tmp_path: Path, number: signal.Signals) -> None:
    cli = Cli("texts", PLAN.candidate, meanwhile=lambda: os.kill(os.getpid(), number))
    target = target_of(tmp_path, cli)
    with pytest.raises(KeyboardInterrupt), interruptible(), taken_out_again(target, PLAN):
        raise KeyboardInterrupt
    assert cli.endpoints == ["texts"]


def until_the_alarm() -> None:
    """As long as there is one."""
    while signal.getitimer(signal.ITIMER_REAL)[0]:
        time.sleep(0.01)


def fail(*_: object) -> None:
    raise Failure("no answer")


def last() -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("work", "says"), [(fail, "no answer; "), (last, "did not end within 0 s; it was ")]
)
def test_the_alarm_does_not_end_taking_out(
    tmp_path: Path, work: Callable[[], None], says: str
) -> None:
    cli = Cli("texts", PLAN.candidate, meanwhile=until_the_alarm)
    with (
        pytest.raises(Failure, match=f"{says}.*taken out again, texts is as it was"),
        within(0, "the candidate", lambda _: None, look="here"),
        taken_out_again(target_of(tmp_path, cli), PLAN),
    ):
        work()
    assert cli.endpoints == ["texts"]


def test_another_deploy_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_out, "_PATIENCE_S", 0.0)
    target = target_of(tmp_path, Cli("texts", PLAN.candidate))
    how = "another deploy of this machine did not end .* is left: transformer-serving remove texts"
    with target.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Failure, match=how), taken_out_again(target, PLAN):
            raise KeyboardInterrupt


def test_a_slow_server_has_one_time_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the last command some seconds."""
    patiences: list[float] = []
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now

    class Slow(Cli):
        def run(self, *command: str, timeout_s: float) -> str:
            patiences.append(timeout_s)
            clock.now += 12
            return super().run(*command, timeout_s=timeout_s)

    monkeypatch.setattr(taking_out, "time", clock)
    target = target_of(tmp_path, Slow("texts", PLAN.candidate))
    with pytest.raises(KeyboardInterrupt), taken_out_again(target, PLAN):
        raise KeyboardInterrupt
    assert patiences == [30, 18, 6]


def test_what_came_to_answer_after_its_deploy_gave_up_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout takes its place as a deploy does, and what it leaves may be gone back to."""
    old, new = (write_small(tmp_path / name, Parts(revision=name)) for name in ("old", "new"))
    target: Any = Target(tmp_path, "m", m=old)
    target.kept.models.rows[0]["tags"] = []
    monkeypatch.setattr(rollout, "refuse_in_rollout", lambda cli, name: None)
    monkeypatch.setattr(rollout, "upload", fail)
    with pytest.raises(Failure, match="no answer"):
        rollout.start(
            target, new, NAME, steps=(1, 100), hold_s=1, allowed=Allowed(), timeout_s=60,
            report=lambda _: None, tell=lambda _: None,
        )  # fmt: skip
    assert target.tags == {"m": SERVED}


@pytest.mark.parametrize(
    ("keep", "promoted", "kept"),
    [
        (5, 7, [3, 4, 5, 6, 7]),
        # The present one and the one before it are older than the newest two.
        (2, 2, [1, 2, 6, 7]),
    ],
)
def test_rollouts_leave_as_many_bundles_as_deploys_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, promoted: int, kept: list[int]
) -> None:
    bundles = [write_small(tmp_path / f"{n}", Parts(revision=f"{n}")) for n in range(8)]
    target: Any = Target(tmp_path, "registered0", registered0=bundles[0])
    for name in ("refuse_in_rollout", "add_and_look", "wait_for_golden", "write"):
        monkeypatch.setattr(rollout, name, lambda *_, **__: None)
    models = ["registered0"]
    allowed = Allowed(harm=0.02)

    def upload(*arguments: Any) -> str:
        models.append(f"registered{len(models)}")
        target.kept.add(models[-1], arguments[1])
        return models[-1]

    monkeypatch.setattr(rollout, "upload", upload)
    for number, bundle in enumerate(bundles[1:], 1):
        begun = rollout.start(
            target, bundle, NAME, steps=(1, 100), hold_s=1, allowed=allowed, timeout_s=60,
            report=lambda _: None, tell=lambda _: None,
        )  # fmt: skip
        assert begun.plan.allowed == allowed
        keep_newest(target, begun.plan, keep)
        if number <= promoted:
            target.configured, target.answering = begun.plan.model_id, bundle
            target.registry().mark_served(NAME, bundle.manifest.bundle_version)
    assert list(target.tags) == [models[number] for number in kept]


def watched(states: list[State | None], monkeypatch: pytest.MonkeyPatch, plan: Plan) -> list[str]:
    """The lines of `watch`, which looks once a minute here, and what it wishes for again."""
    now = iter(states)
    clock = [0.0]

    def look(_: Any) -> dict[str, Rollout]:
        clock[0] += 60
        return {"texts": Rollout(PLAN, next(now))}

    said: list[str] = []
    monkeypatch.setattr(rollout, "read_all", look)
    monkeypatch.setattr(rollout, "wish", lambda _, name, wanted: said.append(f"{wanted} {name}"))
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    target: Any = SimpleNamespace(cli=None, look="its state")
    said += [found.line for found in rollout.watch(target, plan)]
    return said


def test_a_wish_that_another_writer_undid_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    over = State("a1", OVER, beat=2, outcome="went back")
    said = watched([State("a1", beat=1), over], monkeypatch, PLAN.wishing(ABORT))
    assert said[0] == "abort texts"
    assert said[-1].endswith("went back")


def test_without_a_controller_it_is_not_watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = [State("a1", beat=at) for at in range(20)]
    how = "no controller has looked at the rollout of texts for 600 s; look: its state;"
    with pytest.raises(Failure, match=how):
        watched([*beats, *[beats[-1]] * 20], monkeypatch, PLAN)
