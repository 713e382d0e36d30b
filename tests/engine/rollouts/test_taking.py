"""The controller's part over a serving task that is a dict: who takes the steps, who is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from tests.engine.rollouts.test_course import arm
from tests.engine.serving import ListedEndpoints
from transformer_serving.contract.rollout import (
    ABORT,
    HOLDING,
    LEAVING,
    NEW,
    OLD,
    OVER,
    PLANS,
    PROMOTE,
    PROMOTED,
    PROMOTING,
    RETURNING,
    STATES,
    Arm,
    Plan,
    Seen,
    State,
    plans_text,
    read_plans,
    read_seen,
    read_states,
    seen_text,
    states_text,
)
from transformer_serving.engine.controller.first_loads import TRITON_AWAY
from transformer_serving.engine.controller.rollouts.taking import Rollouts
from transformer_serving.engine.controller.rollouts.workers import Workers
from transformer_serving.engine.controller.status import UNPROVEN, EndpointStatus
from transformer_serving.engine.errors import EngineError

PLAN = Plan("a1", "texts", 77, "new", "old", (10.0, 100.0), 60.0)


def ready(*endpoints: str) -> list[EndpointStatus]:
    """What a controller knows of its own Triton: these, and no other, are loaded there."""
    return [
        EndpointStatus(
            endpoint=endpoint, model=endpoint.replace("/", "_"), bundle_version=1, verified=True,
            backend="onnxruntime", ready=True, reason=None, reason_since=None,
            versions_loaded=(1,), model_id=None, since=0.0, proof=UNPROVEN, proof_of=None,
        )
        for endpoint in endpoints
    ]  # fmt: skip


READY = ready("texts", "texts/77", "also", "also/77")


class Service(ListedEndpoints):
    """What ClearML has of one service; workers take every route over at once where `prompt`."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.items: dict[str, Any] = {
            PLANS: plans_text([plan]),
            "endpoints": {"texts": {"model_id": "old"}, "texts/77": {"model_id": "new"}},
            "canary": {},
        }
        self.workers: dict[str, Seen] = {}
        self.is_away = False
        self.written = 0
        self.tags: list[tuple[str, str]] = []
        self.takes_tags = True

    def configuration(self, *, fresh: bool = False) -> Mapping[str, str]:
        return {
            name: item if isinstance(item, str) else json.dumps(item)
            for name, item in self.items.items()
        }

    def section(self, name: str) -> Mapping[str, Any]:
        return dict(self.items[name])

    def configure(self, items: Mapping[str, Any]) -> None:
        self.items |= items
        self.written += 1

    def of_instances(self, name: str) -> Mapping[str, str]:
        if self.is_away:
            raise EngineError("the workers' tasks could not be read")
        return {task: seen_text(seen) for task, seen in self.workers.items()}

    def tag_model(self, model: str, tag: str) -> bool:
        self.tags.append((model, tag))
        return self.takes_tags

    @property
    def state(self) -> State:
        return read_states(self.items[STATES])["texts"]

    def wish(self, wanted: str) -> None:
        self.items[PLANS] = plans_text([PLAN.wishing(wanted)])

    def sync(self, *workers: str) -> None:
        for worker in workers:
            seen = self.workers.setdefault(worker, Seen())
            seen.beat += 1
            seen.marks["texts"] = self.state.mark


def test_without_a_plan_nothing_is_read_or_written() -> None:
    service = Service(PLAN)
    service.items[PLANS] = ""
    Rollouts(service).take(READY)
    assert service.written == 0


def test_an_aborted_one_waits_for_the_slowest_worker() -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take(READY)
    assert service.items["canary"]["texts"]["weights"] == [0.9, 0.1]
    service.sync("one", "two")
    service.wish(ABORT)
    rollouts.take(READY)
    assert service.items["canary"] == {}
    service.sync("one")
    rollouts.take(READY)
    assert not service.state.is_over
    assert "texts/77" in service.items["endpoints"]
    service.sync("one", "two")
    rollouts.take(READY)
    assert service.state.outcome == "went back"
    assert set(service.items["endpoints"]) == {"texts"}
    assert rollouts.shown[0]["words"] == "went back (abort was asked for)"
    assert service.tags == []
    assert "went back (abort was asked for)" in service.reports[-1]


def test_its_end_is_written_again_where_another_writer_undid_it() -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take(READY)
    service.sync("one")
    service.wish(ABORT)
    before = dict(service.items["endpoints"])
    rollouts.take(READY)
    service.sync("one")
    rollouts.take(READY)
    service.items["endpoints"] = before
    rollouts.take(READY)
    assert set(service.items["endpoints"]) == {"texts"}


def test_what_is_promoted_may_be_rolled_back_to() -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take(READY)
    service.sync("one")
    service.wish(PROMOTE)
    rollouts.take(READY)
    assert service.items["endpoints"]["texts"]["model_id"] == "new"
    service.items["canary"] = {}
    service.items[STATES] = states_text({"texts": replace(service.state, phase=LEAVING)})
    service.sync("one")
    rollouts.take(READY)
    assert service.state.outcome == "promoted"
    assert service.tags == [("new", "served")]
    rollouts.take(READY)
    assert service.tags == [("new", "served")]


def test_a_tag_that_was_not_taken_is_tried_again_by_whichever_controller() -> None:
    service = Service(PLAN)
    service.takes_tags = False
    rollouts = Rollouts(service)
    rollouts.take(READY)
    service.items["endpoints"]["texts"] = {"model_id": "new"}
    service.items["canary"] = {}
    service.items[STATES] = states_text({"texts": replace(service.state, phase=LEAVING)})
    service.sync("one")
    rollouts.take(READY)
    assert service.state.outcome == "promoted"
    rollouts.take(READY)
    assert service.tags == [("new", "served")] * 2
    service.items[STATES] = states_text({"texts": replace(service.state, by="")})
    service.takes_tags = True
    other = Rollouts(service)
    for _ in range(2):
        other.take(READY)
    assert service.tags == [("new", "served")] * 3


def test_of_two_controllers_one_takes_the_steps() -> None:
    service = Service(PLAN)
    first, second = Rollouts(service), Rollouts(service)
    first.take(READY)
    beat = service.state.beat
    second.take(READY)
    assert service.state.beat == beat
    assert second.shown[0]["words"] == "step 1 of 2, 10 % of the requests"
    first.take(READY)
    assert service.state.beat == beat + 1


@pytest.mark.parametrize("pattern", ["others*", "texts", "texts/*"])
def test_one_that_another_triton_serves_is_left_to_its_controller(
    pattern: str, clock: Clock
) -> None:
    """Of its candidate this one would see nothing, and end it."""
    service = Service(PLAN)
    without = Rollouts(service, pattern)
    without.take(READY)
    assert service.written == 0
    assert without.shown[0]["endpoint"] == "texts"
    own = Rollouts(service, "texts*")
    own.take(READY)
    taker = service.state.by
    for _ in range(30):
        clock.now += 2
        without.take(READY)
    assert service.state.by == taker
    assert not service.state.is_over


def test_a_row_of_the_rollout_before_is_no_routes_of_this_one(clock: Clock) -> None:
    """Those of other endpoints go on, and one of fewer steps begins."""
    for before in (
        State("before", OVER, outcome="went back"),
        State("before", HOLDING, step=7),
    ):
        service = Service(PLAN)
        service.items[STATES] = states_text({"texts": before})
        rollouts = Rollouts(service, now=lambda: clock.now)
        asked = count()
        rollouts._workers.wait_for_all = lambda: next(asked)  # type: ignore[assignment, method-assign] # noqa: B023
        rollouts.take(READY)
        assert (service.state.id, service.state.step) == (PLAN.id, 0)
        # A controller that has just come asks all, and for nothing else.
        assert next(asked) == 1


def test_an_older_row_that_another_controller_puts_back_undoes_no_step() -> None:
    """It read all rows just before this one wrote its own."""
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take(READY)
    service.sync("one")
    old = service.items[STATES]
    service.wish(PROMOTE)
    rollouts.take(READY)
    assert service.state.phase == PROMOTING
    beat = service.state.beat
    for undone in (old, states_text({})):
        service.items[STATES] = undone
        rollouts.take(READY)
        assert service.state.phase == PROMOTING
        beat += 1
        assert service.state.beat == beat
    # Whoever went on with it meanwhile has its word.
    further = replace(service.state, by="other", beat=beat + 1, phase=LEAVING)
    service.items[STATES] = states_text({"texts": further})
    rollouts.take(READY)
    assert service.state == further


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@dataclass
class Clock:
    now: float = 1000.0


def test_after_a_controllers_end_another_takes_up_all_that_it_had(clock: Clock) -> None:
    """Rollouts that began at different times have beats of their own."""
    service = Service(PLAN)
    dead, second = Rollouts(service), Rollouts(service)
    dead.take(READY)
    also = replace(PLAN, id="b2", endpoint="also")
    service.items[PLANS] = plans_text([PLAN, also])
    service.items["endpoints"] |= {"also": {"model_id": "old"}, "also/77": {"model_id": "new"}}
    dead.take(READY)
    before = read_states(service.items[STATES])
    assert before["texts"].beat != before["also"].beat
    for _ in range(20):
        second.take(READY)
        clock.now += 2
    after = read_states(service.items[STATES])
    assert {state.by for state in after.values()}.isdisjoint(state.by for state in before.values())


def test_one_that_nobody_takes_yet_holds_no_other_up(clock: Clock) -> None:
    """Nor is its bundle named as served, as that of the endpoint's rollout before was."""
    service = Service(PLAN)
    rollouts = Rollouts(service, poll_s=3600)
    also, more = (replace(PLAN, id=name, endpoint=name) for name in ("also", "more"))
    service.items[PLANS] = plans_text([PLAN, also, more])
    before = State("a0", OVER, outcome=PROMOTED)
    service.items[STATES] = states_text({"more": before})
    for beat in range(1, 10):
        rollouts.take(ready("texts", "texts/77"))
        assert service.state.beat == beat
        clock.now += 2
    assert read_states(service.items[STATES]).keys() == {"more", "texts"}
    assert service.tags == []


def test_of_what_is_written_no_second_counts_twice(clock: Clock) -> None:
    """Though ClearML is away for what comes after, at each look."""

    class Untagged(Service):
        def tag_model(self, model: str, tag: str) -> bool:
            raise EngineError("it did not answer")

    service = Untagged(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.items["endpoints"]["texts"] = {"model_id": "new"}
    service.items["canary"] = {}
    service.items[STATES] = states_text({"texts": replace(service.state, phase=LEAVING)})
    service.sync("one")
    began = clock.now
    for _ in range(29):
        with pytest.raises(EngineError):
            rollouts.take(READY)
        assert service.state.since == began
        clock.now += 2


LOADING: list[list[EndpointStatus]] = [[], ready("texts"), ready("texts/77")]


@pytest.mark.parametrize("known", LOADING, ids=["nothing", "old", "new"])
def test_one_that_still_loads_leaves_it_to_one_that_serves(
    known: list[EndpointStatus], clock: Clock
) -> None:
    """It would see a candidate that is not ready, and end the rollout."""
    service = Service(PLAN)
    loading, serving = Rollouts(service), Rollouts(service)
    loading.take(known)
    assert service.written == 0
    for _ in range(40):
        clock.now += 2
        loading.take(known)
        serving.take(READY)
        service.sync("one")
    assert service.state.phase == HOLDING
    own = service.state.by
    loading.take(READY)
    assert service.state.by == own
    # The one that serves ends; the pod that comes in its place loads, and looks first.
    newcomer = Rollouts(service)
    for _ in range(40):
        clock.now += 2
        newcomer.take(known)
        loading.take(READY)
        service.sync("one")
    assert service.state.by not in ("", own)
    assert service.state.phase == HOLDING


@pytest.mark.parametrize("known", LOADING, ids=["nothing", "old", "new"])
@pytest.mark.parametrize(("poll_s", "seconds"), [(6.0, 30), (60.0, 150)])
def test_where_none_serves_one_that_does_not_ends_it_after_all(
    known: list[EndpointStatus], poll_s: float, seconds: int, clock: Clock
) -> None:
    """Who serves may learn of a plan with its next poll only; before it begins nothing is asked."""
    service = Service(PLAN)
    alone = Rollouts(service, poll_s=poll_s)
    began = clock.now
    while not service.written:
        alone.take(known)
        clock.now += 2
    assert seconds <= clock.now - began <= seconds + 4
    dead, began = service.state.by, clock.now
    left = Rollouts(service, poll_s=poll_s)
    while service.state.by == dead:
        left.take(known)
        clock.now += 2
    # Requests go to the candidate meanwhile: as long as another one's look may take, and no more.
    assert 60 <= clock.now - began <= 64
    for _ in range(20):
        left.take(known)
        service.sync("one")
        clock.now += 2
    assert (service.state.phase == HOLDING) == (known == LOADING[2])


@pytest.mark.parametrize("phase", [HOLDING, LEAVING, RETURNING])
def test_an_end_needs_no_engine(phase: str) -> None:
    service = Service(PLAN)
    service.items[STATES] = states_text({"texts": State("a1", phase)})
    if phase == HOLDING:
        service.wish(ABORT)
    loading = Rollouts(service)
    for _ in range(2):
        loading.take([])
        service.sync("one")
        loading.take([])
    assert service.state.is_over


def test_a_worker_that_looks_once_a_minute_is_waited_for(clock: Clock) -> None:
    """Until it has looked again its requests go to the candidate."""
    service = Service(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.sync("prompt")
    service.sync("slow")
    service.workers["slow"].every_s = 60.0
    rollouts.take(READY)
    service.wish(ABORT)
    rollouts.take(READY)
    for _ in range(29):
        clock.now += 2
        service.sync("prompt")
        rollouts.take(READY)
        assert service.state.phase == RETURNING
    service.sync("slow")
    rollouts.take(READY)
    assert service.state.is_over


def left_by_its_worker(service: Service, clock: Clock, every_s: float) -> Rollouts:
    """One that is aborted, whose only worker has told of it once and is gone."""
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.sync("gone")
    service.workers["gone"].every_s = every_s
    service.wish(ABORT)
    rollouts.take(READY)
    return rollouts


@pytest.mark.parametrize(("every_s", "seconds"), [(0.0, 30), (60.0, 150)])
def test_one_that_is_gone_holds_nothing_up_for_ever(
    clock: Clock, every_s: float, seconds: int
) -> None:
    service = Service(PLAN)
    rollouts = left_by_its_worker(service, clock, every_s)
    began = clock.now
    while not service.state.is_over:
        clock.now += 2
        rollouts.take(READY)
        assert clock.now - began < 200
    assert seconds <= clock.now - began <= seconds + 4


@pytest.mark.parametrize("every_s", [6.0, 60.0, 300.0])
def test_looks_that_are_late_now_and_then_let_none_that_is_gone_live_on(
    clock: Clock, every_s: float
) -> None:
    service = Service(PLAN)
    rollouts = left_by_its_worker(service, clock, every_s)
    gone_s = max(30.0, 2.5 * every_s)
    began, late = clock.now, clock.now + 0.8 * gone_s
    while not service.state.is_over:
        clock.now += 2
        if clock.now >= late:
            clock.now, late = clock.now + 17, late + 0.8 * gone_s
        rollouts.take(READY)
        assert clock.now - began < 3 * gone_s
    assert clock.now - began >= gone_s


def test_a_controller_that_is_gone_is_replaced_though_every_look_is_late(clock: Clock) -> None:
    service = Service(PLAN)
    dead, second = (Rollouts(service, now=lambda: clock.now) for _ in range(2))
    for rollouts in (dead, second):
        rollouts.take(READY)
    taker, began = service.state.by, clock.now
    while service.state.by == taker:
        clock.now += 16
        second.take(READY)
        assert clock.now - began < 600


def slowly(service: Service, clock: Clock, monkeypatch: pytest.MonkeyPatch, *workers: str) -> None:
    """ClearML takes 16 s for what the workers tell; each tells something at every fourth look."""
    told = service.of_instances
    looks = count()

    def later(name: str) -> Mapping[str, str]:
        clock.now += 16
        service.sync(*workers[next(looks) % 4 :][:1])
        return told(name)

    monkeypatch.setattr(service, "of_instances", later)


@pytest.mark.parametrize(("dead", "looks"), [((), 5), (("dead",), 15)], ids=["all", "one-dead"])
def test_an_answer_that_is_slow_is_no_outage(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, dead: tuple[str, ...], looks: int
) -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.sync("one", "two", "three", "four", *dead)
    service.wish(ABORT)
    rollouts.take(READY)
    slowly(service, clock, monkeypatch, "one", "two", "three", "four")
    for _ in range(looks):
        clock.now += 0.5
        assert not service.state.is_over
        rollouts.take(READY)
    assert service.state.is_over


def test_where_every_answer_is_slow_a_hold_still_comes_to_its_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(PLAN)
    rollouts = holding_well(service, clock)
    slowly(service, clock, monkeypatch, "one", "two")
    began = clock.now
    while service.state.step == 0:
        clock.now += 0.5
        for seen in service.workers.values():
            seen.steps["a1 0"][NEW].add(arm(500))
        rollouts.take(READY)
        assert clock.now - began < 600


def test_a_write_that_hangs_lets_no_worker_look_dead(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers were heard before it, and could not tell anything in it."""
    service = Service(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.sync("one", "two")
    service.wish(ABORT)
    write = service.configure

    def hang(items: Mapping[str, Any]) -> None:
        clock.now += 600
        write(items)

    monkeypatch.setattr(service, "configure", hang)
    rollouts.take(READY)
    monkeypatch.setattr(service, "configure", write)
    for _ in range(5):
        clock.now += 2
        service.sync("two")
        rollouts.take(READY)
        assert service.state.phase == RETURNING
    service.sync("one")
    rollouts.take(READY)
    assert service.state.is_over


def test_what_a_worker_has_counted_stays_counted_when_it_leaves() -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take(READY)
    service.sync("one", "two")
    for seen in service.workers.values():
        seen.steps = {"a1 0": {OLD: Arm(900), NEW: Arm(100)}}
    rollouts.take(READY)
    assert service.state.looked_at == 200
    del service.workers["two"]
    service.workers["one"].steps["a1 0"][NEW].requests = 200
    rollouts.take(READY)
    assert service.state.looked_at == 300


def test_where_nobody_knows_of_a_leavers_counts_it_is_judged_by_the_others() -> None:
    service = Service(PLAN)
    Rollouts(service).take(READY)
    service.sync("one")
    service.workers["one"].steps = {"a1 0": {OLD: Arm(900), NEW: Arm(100)}}
    known = replace(service.state, by="", looks=3, looked_at=1000)
    service.items[STATES] = states_text({"texts": known})
    rollouts = Rollouts(service)
    rollouts.take(READY)
    assert (service.state.looks, service.state.looked_at) == (3, 100)
    service.workers["one"].steps["a1 0"][NEW].requests = 130
    rollouts.take(READY)
    assert (service.state.looks, service.state.looked_at) == (4, 130)


def test_a_worker_that_cannot_be_read_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take(READY)
    service.sync("one")
    told = service.of_instances
    odd = {"odd": '{"steps": {"a1 0": 5}}'}
    monkeypatch.setattr(service, "of_instances", lambda name: {**told(name), **odd})
    service.wish(ABORT)
    rollouts.take(READY)
    service.sync("one")
    rollouts.take(READY)
    assert service.state.is_over


def test_rows_that_a_newer_kit_or_a_hand_has_written() -> None:
    row = json.loads(plans_text([PLAN]))["texts"]
    newer = {**row, "later": 1, "allowed": {**row["allowed"], "later": 2}}
    odd = {"bad": {"id": "x"}, "worse": 7, "worst": {**row, "steps": ["all"]}}
    assert read_plans(json.dumps({"texts": newer, **odd})) == {"texts": PLAN}
    state = json.loads(states_text({"texts": State("a1")}))["texts"]
    found = read_states(json.dumps({"texts": {**state, "later": 1}, "bad": None}))
    assert found == {"texts": State("a1")}
    seen = json.loads(seen_text(Seen(3, {}, {"a1 0": {NEW: Arm(5)}}, 2.0)))
    seen["steps"]["a1 0"][NEW]["later"] = 1
    assert read_seen(json.dumps(seen)) == Seen(3, {}, {"a1 0": {NEW: Arm(5)}}, 2.0)
    for text in ("[]", '{"steps": 1}', '{"marks": 1}', '{"beat": "x"}'):
        with pytest.raises(ValueError, match="rollout"):
            read_seen(text)


def test_what_has_no_plan_any_more_leaves_with_the_next_change() -> None:
    """`remove` took it out. What runs may have lost its plan to another writer."""
    service = Service(PLAN)
    gone, lost = State("b2", OVER, outcome=PROMOTED), State("c3")
    service.items[STATES] = states_text({"gone": gone, "lost": lost})
    Rollouts(service).take(READY)
    states = read_states(service.items[STATES])
    assert set(states) == {"texts", "lost"}
    assert states["lost"] == lost


def outage(service: Service, rollouts: Rollouts, clock: Clock, seconds: int) -> None:
    """ClearML answers neither controller nor workers."""
    service.is_away = True
    for _ in range(seconds // 2):
        clock.now += 2
        with pytest.raises(EngineError):
            rollouts.take(READY)
    service.is_away = False
    clock.now += 2
    rollouts.take(READY)


PROMOTED_READY = [replace(row, bundle_version=77) for row in READY]


@pytest.mark.parametrize("seconds", [20, 60, 600])
@pytest.mark.parametrize("wish", [ABORT, PROMOTE])
def test_in_an_outage_no_worker_is_silent(clock: Clock, wish: str, seconds: int) -> None:
    """None could tell, and each goes on with its route to the candidate."""
    service = Service(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.sync("one", "two")
    service.wish(wish)
    rollouts.take(READY)
    if wish == PROMOTE:
        service.sync("one", "two")
        rollouts.take(PROMOTED_READY)
    leaving = service.state.phase
    assert leaving == (LEAVING if wish == PROMOTE else RETURNING)
    outage(service, rollouts, clock, seconds)
    for _ in range(10):
        clock.now += 2
        service.sync("two")
        rollouts.take(READY)
        assert service.state.phase == leaving
        assert "texts/77" in service.items["endpoints"]
    service.sync("one")
    rollouts.take(READY)
    assert service.state.is_over


def holding_well(service: Service, clock: Clock, wall: Clock | None = None) -> Rollouts:
    """30 s of a hold of 60 are over, and every figure was well; `wall` is ahead of `clock`."""
    rollouts = Rollouts(service, now=lambda: clock.now + (0.0 if wall is None else wall.now))
    rollouts.take(READY)
    service.sync("one", "two")
    for seen in service.workers.values():
        seen.steps = {"a1 0": {OLD: arm(9_000), NEW: arm(3_000)}}
    for _ in range(15):
        clock.now += 2
        service.sync("one", "two")
        rollouts.take(READY)
    assert service.state.well
    return rollouts


def test_a_look_that_hangs_is_no_time_without_the_candidates_engine(clock: Clock) -> None:
    """What is known of Triton is of before it."""
    service = Service(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.sync("one", "two")
    for hangs_s in (2, 2, 600):
        clock.now += hangs_s
        rollouts.take(ready("texts"))
    assert service.state.phase == HOLDING
    for _ in range(8):
        clock.now += 2
        rollouts.take(ready("texts"))
    assert service.state.phase == RETURNING


def test_a_clock_of_answered_seconds_never_falls(clock: Clock) -> None:
    """Where looks begin and do not come to their end."""
    workers = Workers(Service(PLAN))
    workers.listen()
    workers.looked()
    seen = []
    for _ in range(10):
        clock.now += 2
        workers.listen()
        seen.append(workers.clock)
    assert seen == sorted(seen)


FAILING = [replace(READY[0], reason="it cannot be loaded"), *READY[1:]]


def promoting(service: Service, clock: Clock, wall: Clock) -> Rollouts:
    """10 s of a promotion are over; `wall` is ahead of `clock`."""
    rollouts = Rollouts(service, now=lambda: clock.now + wall.now)
    rollouts.take(READY)
    service.sync("one")
    service.wish(PROMOTE)
    for _ in range(6):
        clock.now += 2
        rollouts.take(READY)
    assert service.state.phase == PROMOTING
    return rollouts


def promoted_for(service: Service, rollouts: Rollouts, clock: Clock) -> float:
    """So many seconds more until it is taken back, as the endpoint does not come to serve."""
    began = clock.now
    while service.state.phase == PROMOTING:
        clock.now += 2
        service.sync("one")
        rollouts.take(FAILING)
        assert clock.now - began < 400
    assert "did not serve it within 300 s" in service.state.reason
    return clock.now - began


SET = pytest.mark.parametrize(("was", "becomes"), [(21_600, 0), (0, 600)], ids=["back", "forward"])


@SET
def test_a_clock_that_is_set_ends_no_promotion(clock: Clock, was: float, becomes: float) -> None:
    service, ahead = Service(PLAN), Clock(was)
    rollouts = promoting(service, clock, ahead)
    ahead.now = becomes
    assert promoted_for(service, rollouts, clock) == 292


def test_an_engine_that_is_on_its_way_is_waited_for(clock: Clock) -> None:
    """A large one is fetched, proven and loaded for longer; the candidate answers meanwhile."""
    service = Service(PLAN)
    rollouts = promoting(service, clock, Clock(0.0))
    for _ in range(300):
        clock.now += 2
        service.sync("one")
        rollouts.take(READY)
    assert service.state.phase == PROMOTING
    rollouts.take(FAILING)
    assert service.state.phase == RETURNING


def test_a_triton_that_comes_again_ends_no_promotion(clock: Clock) -> None:
    service = Service(PLAN)
    rollouts = promoting(service, clock, Clock(0.0))
    away = [replace(READY[0], ready=False, reason=TRITON_AWAY), *READY[1:]]
    for rows in (READY, away, READY):
        for _ in range(200):
            clock.now += 2
            service.sync("one")
            rollouts.take(rows)
        assert service.state.phase == PROMOTING


def test_a_worker_that_seldom_looks_has_its_time_to_take_a_promotion(clock: Clock) -> None:
    service = Service(PLAN)
    service.workers["one"] = Seen(every_s=600.0)
    rollouts = promoting(service, clock, Clock(0.0))
    for _ in range(300):
        clock.now += 2
        rollouts.take(PROMOTED_READY)
    assert service.state.phase == PROMOTING
    service.sync("one")
    rollouts.take(PROMOTED_READY)
    assert service.state.phase == LEAVING


def test_a_time_without_a_controller_ends_no_promotion(clock: Clock) -> None:
    """After it every engine is loaded anew."""
    service, wall = Service(PLAN), Clock(0.0)
    promoting(service, clock, wall)
    clock.now += 600
    newcomer = Rollouts(service, now=lambda: clock.now)
    # Until the other one is known to be gone; of all that 2 s count.
    taker = service.state.by
    while service.state.by == taker:
        clock.now += 2
        newcomer.take(READY)
    assert promoted_for(service, newcomer, clock) == 290


def test_what_a_controller_of_before_has_written_is_held_against_the_clock(clock: Clock) -> None:
    """It writes all states, those of others without what it does not know; and goes on from
    `since` where it takes one over."""
    service = Service(PLAN)
    rollouts = holding_well(service, clock)
    since = clock.now - 30
    for _ in range(14):
        clock.now += 2
        service.sync("one", "two")
        service.items[STATES] = states_text({"texts": replace(service.state, beat_at=0.0)})
        rollouts.take(READY)
        assert (service.state.step, service.state.since) == (0, since)
    clock.now += 2
    service.sync("one", "two")
    rollouts.take(READY)
    assert service.state.step == 1


@SET
def test_a_clock_that_is_set_is_no_part_of_a_hold(clock: Clock, was: float, becomes: float) -> None:
    service, ahead = Service(PLAN), Clock(was)
    rollouts = holding_well(service, clock, ahead)
    ahead.now = becomes
    steps = []
    for _ in range(20):
        clock.now += 2
        service.sync("one", "two")
        rollouts.take(READY)
        steps.append(service.state.step)
    assert steps.index(1) == 14


def test_after_an_outage_what_was_answered_in_it_is_waited_for(clock: Clock) -> None:
    service = Service(PLAN)
    rollouts = holding_well(service, clock)
    outage(service, rollouts, clock, 600)
    assert (service.state.phase, service.state.step) == (HOLDING, 0)
    service.workers["one"].steps["a1 0"][NEW] = arm(5_000, errors=1_000)
    service.sync("one")
    rollouts.take(READY)
    assert service.state.phase == RETURNING
    assert service.state.reason.startswith("errors: worse")


def test_an_outage_is_no_part_of_a_hold(clock: Clock) -> None:
    service = Service(PLAN)
    rollouts = holding_well(service, clock)
    outage(service, rollouts, clock, 600)
    began = clock.now
    while service.state.step == 0:
        clock.now += 2
        for seen in service.workers.values():
            seen.steps["a1 0"][NEW].add(arm(500))
        service.sync("one", "two")
        rollouts.take(READY)
        assert clock.now - began < 200
    assert 20 <= clock.now - began <= 40


def test_an_outage_ends_no_promotion(clock: Clock) -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    service.sync("one")
    service.wish(PROMOTE)
    rollouts.take(READY)
    outage(service, rollouts, clock, 600)
    assert service.state.phase == PROMOTING
    service.sync("one")
    rollouts.take(PROMOTED_READY)
    assert service.state.phase == LEAVING


def test_a_controller_that_has_just_come_waits_for_what_is_told_anew(clock: Clock) -> None:
    """What it finds may be of before an outage."""
    service = Service(PLAN)
    holding_well(service, clock)
    service.items[STATES] = states_text({"texts": replace(service.state, by="")})
    clock.now += 600
    newcomer = Rollouts(service, now=lambda: clock.now)
    newcomer.take(READY)
    assert (service.state.step, service.state.well) == (0, False)
    assert clock.now - service.state.since == 30


def test_the_last_step_knows_what_the_old_bundle_answered_before_a_restart(clock: Clock) -> None:
    """Of controller and workers: at 100 % it answers one request in ten thousand."""
    service = Service(PLAN)
    rollouts = holding_well(service, clock)
    for _ in range(15):
        clock.now += 2
        service.sync("one", "two")
        rollouts.take(READY)
    assert service.state.step == 1
    service.workers.clear()
    service.items[STATES] = states_text({"texts": replace(service.state, by="")})
    newcomer = Rollouts(service, now=lambda: clock.now)
    for look in range(40):
        clock.now += 2
        service.sync("fresh")
        service.workers["fresh"].steps = {"a1 1": {NEW: arm(300 * look)}}
        newcomer.take(READY)
    assert service.state.phase == PROMOTING
    assert "beside 0 of 18000" in service.state.says[0]


def test_a_controller_is_not_gone_because_clearml_was(clock: Clock) -> None:
    service = Service(PLAN)
    first, second = (Rollouts(service, now=lambda: clock.now) for _ in range(2))
    for rollouts in (first, second):
        rollouts.take(READY)
    taker = service.state.by
    service.is_away = True
    for _ in range(30):
        clock.now += 2
        with pytest.raises(EngineError):
            second.take(READY)
    service.is_away = False
    second.take(READY)
    assert service.state.by == taker


@pytest.mark.parametrize("wish", [ABORT, PROMOTE])
def test_where_another_writer_undid_the_end_every_worker_is_asked_anew(
    clock: Clock, wish: str
) -> None:
    """It may have taken over what stood there meanwhile, and the candidate's route with it."""
    service = Service(PLAN)
    rollouts = Rollouts(service, now=lambda: clock.now)
    rollouts.take(READY)
    stale = {name: dict(service.items[name]) for name in ("endpoints", "canary")}
    service.sync("one")
    service.wish(wish)
    rollouts.take(READY)
    if wish == PROMOTE:
        service.sync("one")
        service.items |= {name: dict(stale[name]) for name in stale}
        rollouts.take(PROMOTED_READY)
        assert service.state.phase == PROMOTING
        service.sync("one")
        rollouts.take(PROMOTED_READY)
    leaving = service.state.phase
    assert leaving in (LEAVING, RETURNING)
    service.items |= {name: dict(stale[name]) for name in stale}
    # Whoever tells before that is seen tells of those routes.
    service.sync("one")
    rollouts.take(READY)
    assert service.items["canary"] == {}
    assert service.state.phase == leaving
    service.sync("one")
    rollouts.take(READY)
    assert service.state.is_over
    assert service.items["endpoints"]["texts"]["model_id"] == ("new" if wish == PROMOTE else "old")
