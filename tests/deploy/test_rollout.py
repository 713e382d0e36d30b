"""What the desk says of a rollout; the whole way is in tests/stack/test_rollout.py."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transformer_serving.contract.rollout import ABORT, HOLDING, OVER, RETURNING, Plan, State
from transformer_serving.desk.deploy import rollout
from transformer_serving.desk.deploy.rollout import Cost, check_steps, mirrored_share
from transformer_serving.desk.deploy.rollout_plans import Rollout
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.failure import Failure

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
    """The service's endpoints; `stuck` takes none out."""

    environment: dict[str, str] = {}

    def __init__(self, *endpoints: str, stuck: bool = False) -> None:
        self.endpoints = list(endpoints)
        self.stuck = stuck

    def run(self, *command: str) -> str:
        if command == ("model", "list"):
            rows = {name: {"model_id": "m"} for name in self.endpoints}
            return f"Endpoints:\n{json.dumps(rows)}\nModel Monitoring:\n"
        assert command[:3] == ("model", "remove", "--endpoint")
        if self.stuck:
            raise Failure("played")
        self.endpoints.remove(command[3])
        return ""


def target_of(tmp_path: Path, cli: Cli) -> DeployTarget:
    return DeployTarget(cast("Any", cli), "http://f", "http://s", tmp_path / "deploy.lock")


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), Failure("no answer", exit_code=2)])
def test_a_candidate_nobody_knows_of_is_taken_out_again(
    tmp_path: Path, ended: BaseException
) -> None:
    cli = Cli("texts", PLAN.candidate)
    target = target_of(tmp_path, cli)
    lock = one_at_a_time(target.lock)
    with pytest.raises(type(ended)) as raised, rollout._taken_out_again(target, PLAN, lock):
        raise ended
    assert cli.endpoints == ["texts"]
    if isinstance(raised.value, Failure):
        assert "no answer; the candidate is taken out again, texts is as it was" in str(
            raised.value
        )
        assert raised.value.exit_code == 2


def test_one_that_stays_is_named(tmp_path: Path) -> None:
    target = target_of(tmp_path, Cli("texts", PLAN.candidate, stuck=True))
    with (
        pytest.raises(Failure, match="is left: transformer-serving remove texts/77"),
        rollout._taken_out_again(target, PLAN, nullcontext()),
    ):
        raise KeyboardInterrupt
    gone = target_of(tmp_path, Cli("texts", stuck=True))
    with pytest.raises(KeyboardInterrupt), rollout._taken_out_again(gone, PLAN, nullcontext()):
        raise KeyboardInterrupt


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
    said += [found.line for found in rollout.watch(cast("Any", SimpleNamespace(cli=None)), plan)]
    return said


def test_a_wish_that_another_writer_undid_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    over = State("a1", OVER, beat=2, outcome="went back")
    said = watched([State("a1", beat=1), over], monkeypatch, PLAN.wishing(ABORT))
    assert said[0] == "abort texts"
    assert said[-1].endswith("went back")


def test_without_a_controller_it_is_not_watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = [State("a1", beat=at) for at in range(20)]
    with pytest.raises(Failure, match="no controller has looked at the rollout of texts for 600"):
        watched([*beats, *[beats[-1]] * 20], monkeypatch, PLAN)
