"""Takes the steps: reads what is wanted and seen in ClearML, and writes the routes that follow.

Everything that a rollout knows stands in ClearML, so it goes on after a restart. Of several
controllers over one serving task one takes the steps (taker.py).

Tested by tests/stack/test_rollout.py.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, replace
from typing import Any

from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.rollout import (
    PLANS,
    PROMOTED,
    STATES,
    Arm,
    Arms,
    Plan,
    Seen,
    State,
    read_plans,
    read_states,
    states_text,
    step_of,
)
from transformer_serving.engine.controller.control_plane.served import ControlPlane
from transformer_serving.engine.controller.first_loads import (
    IN_PROOF,
    LOADING,
    TRITON_AWAY,
    UNTRUSTED,
)
from transformer_serving.engine.controller.rollouts.course import (
    AFTER_S,
    Known,
    begun,
    next_state,
)
from transformer_serving.engine.controller.rollouts.routes import routes, share_of
from transformer_serving.engine.controller.rollouts.taker import Taker
from transformer_serving.engine.controller.rollouts.workers import Workers
from transformer_serving.engine.controller.status import EndpointStatus

_log = logging.getLogger(__name__)
_EVERY_S = 2.0
_ENDPOINTS, _CANARY = "endpoints", "canary"
# What an endpoint's row says that has nothing against it; None: it serves.
_ON_ITS_WAY = (None, LOADING, IN_PROOF, TRITON_AWAY, UNTRUSTED)
# What a bundle in the registry is called that a rollback may go to.
_SERVED = "served"


class Rollouts:
    """All rollouts of one serving task; `shown` is what `status` tells of them."""

    def __init__(
        self,
        control_plane: ControlPlane,
        endpoint_filter: str = "*",
        now: Callable[[], float] = time.time,
        poll_s: float = 0.0,
    ) -> None:
        self._control_plane = control_plane
        self._filter = endpoint_filter
        self._now = now
        self._taker = Taker(poll_s)
        self._due = time.monotonic()
        self._job: Future[None] | None = None
        self._workers = Workers(control_plane)
        self._tagged: set[str] = set()
        self._lost: dict[str, float] = {}
        # What was written last of each rollout that is this controller's.
        self._taken: dict[str, State] = {}
        self.shown: list[dict[str, Any]] = []

    def take_when_due(self, pool: Executor, rows: Sequence[EndpointStatus]) -> None:
        """In a thread of the pool, unless the last time is still under way."""
        if time.monotonic() < self._due or (self._job is not None and not self._job.done()):
            return
        self._due = time.monotonic() + _EVERY_S
        self._job = pool.submit(self._safely, list(rows))

    def _safely(self, rows: Sequence[EndpointStatus]) -> None:
        try:
            self.take(rows)
        except Exception as error:
            _log.error("rollouts: %s", one_line(error, 300))

    def take(self, rows: Sequence[EndpointStatus]) -> None:
        """One look at every rollout that is not over, and what follows from it."""
        if not self._open(self._control_plane.configuration()):
            self._workers.clear()
            self._taker.clear()
            self._taken.clear()
            return
        # Before the rest is read, which is written back at once: in between others may write.
        self._workers.listen()
        items = self._control_plane.configuration(fresh=True)
        plans = self._open(items)
        states = read_states(items.get(STATES))
        endpoints, canaries = map(self._control_plane.section, (_ENDPOINTS, _CANARY))
        wanted = dict(endpoints), dict(canaries)
        before = dict(states)
        taken: dict[str, State] = {}
        undone = False
        for plan in plans:
            state = self._begun(plan, states.get(plan.endpoint))
            if not self._taker.takes(plan, state, rows, self._workers.clock):
                continue
            # What a worker has told may be of what another writer has put there meanwhile.
            holds = state is None or routes(plan, state, *wanted) == wanted
            undone |= not holds
            state = self._next(plan, state, rows, endpoints, holds=holds)
            taken[plan.endpoint] = replace(state, by=self._taker.own, beat=state.beat + 1)
            wanted = routes(plan, state, *wanted)
        known = read_plans(items.get(PLANS))
        states = _kept(states, known) | taken
        self.shown = _shown(known, states)
        if states != before:
            both = zip((_ENDPOINTS, _CANARY), (endpoints, canaries), wanted, strict=True)
            changed = {name: value for name, old, value in both if value != old}
            self._control_plane.configure({STATES: states_text(states), **changed})
            self._taken |= taken
        if undone:
            self._workers.wait_for_all()
        # Where ClearML is away from here on, what is written has these seconds, once.
        self._workers.looked()
        if states != before:
            ours = [plan for plan in plans if plan.endpoint in taken]
            self._tell(ours, before, taken)
            self._tag(ours, taken)

    def _open(self, items: Mapping[str, str]) -> list[Plan]:
        """The plans that are not over, or only just."""
        plans, states = read_plans(items.get(PLANS)), read_states(items.get(STATES))
        self.shown = _shown(plans, states)
        return [
            plan for plan in plans.values()
            if self._is_served_here(plan) and self._is_open(plan, states.get(plan.endpoint))
        ]  # fmt: skip

    def _is_served_here(self, plan: Plan) -> bool:
        """Both bundles: of those of another Triton this controller would only see that they are
        not ready."""
        names = (plan.endpoint, plan.candidate)
        return all(fnmatch.fnmatchcase(name, self._filter) for name in names)

    def _is_open(self, plan: Plan, state: State | None) -> bool:
        if state is None or state.id != plan.id:
            return True
        return not state.is_over or self._now() - state.since < AFTER_S

    def _begun(self, plan: Plan, state: State | None) -> State | None:
        """The newest state of this rollout, None where it has not begun: the row may be that of the
        one before. All states are one item, so another controller may have put an older one back.
        """
        known = (state, self._taken.get(plan.endpoint))
        ours = [one for one in known if one is not None and one.id == plan.id]
        return max(ours, key=lambda one: one.beat, default=None)

    def _next(
        self, plan: Plan, state: State | None, rows: Sequence[EndpointStatus],
        endpoints: Mapping[str, Any], *, holds: bool,
    ) -> State:  # fmt: skip
        now = self._now()
        if state is None:
            return replace(begun(plan, endpoints, now), beat_at=now)
        state = _counted(state, now, self._workers.counted_s)
        alive = self._workers.alive(plan)
        known = Known(
            steps=_added(plan, self._workers.told(plan)),
            acked=holds and self._workers.all_have(plan, state, now),
            workers=len(alive),
            lost_s=self._lost_for(plan, rows),
            serves=_serves(plan, rows),
            coming=_is_coming(plan, rows),
            every_s=max((told.every_s for told in alive.values()), default=0.0),
            endpoints=endpoints,
            now=now,
        )
        return replace(next_state(plan, state, known), beat_at=now)

    def _lost_for(self, plan: Plan, rows: Sequence[EndpointStatus]) -> float:
        ready = any(row.endpoint == plan.candidate and row.ready for row in rows)
        if ready:
            self._lost.pop(plan.id, None)
            return 0.0
        # What is known of Triton is of before the look, which may have hung.
        clock = self._workers.clock
        return clock - self._lost.setdefault(plan.id, clock)

    def _tell(
        self, plans: Sequence[Plan], before: Mapping[str, State], after: Mapping[str, State]
    ) -> None:
        """What has changed, to the log and to who looks at the serving task."""
        for plan in plans:
            state, was = after[plan.endpoint], before.get(plan.endpoint)
            if was is not None and was.id == state.id and was.mark == state.mark:
                continue
            line = f"rollout of {plan.candidate}: {words_of(plan, state)}"
            _log.info("%s", line)
            self._control_plane.report(line)

    def _tag(self, plans: Sequence[Plan], states: Mapping[str, State]) -> None:
        """What was promoted may be rolled back to. Tried as long as the end is looked after."""
        for plan in plans:
            state = states[plan.endpoint]
            is_due = state.is_over and state.outcome == PROMOTED and plan.id not in self._tagged
            if is_due and self._control_plane.tag_model(plan.model_id, _SERVED):
                self._tagged.add(plan.id)


def _counted(state: State, now: float, counted_s: float) -> State:
    """With its phase's seconds until `now`: those that counted until its last beat, and
    `counted_s`. An outage, a time without a controller and a clock that was set are none.
    """
    if not state.beat_at:
        # A controller that knows no `beat_at` has written it.
        return replace(state, since=min(now, state.since))
    return replace(state, since=now - max(0.0, state.beat_at - state.since) - counted_s)


def words_of(plan: Plan, state: State) -> str:
    """Where it is, in a line."""
    why = f" ({state.reason})" if state.reason else ""
    if state.is_over:
        return f"{state.outcome}{why}"
    if state.phase != "holding":
        return f"{state.phase}{why}"
    if plan.shadow:
        return "in the shadow, the old bundle answers everything"
    number = f"step {state.step + 1} of {len(plan.steps)}"
    return f"{number}, {100 * share_of(plan, state):g} % of the requests"


def _added(plan: Plan, workers: Sequence[Seen]) -> dict[int, Arms]:
    """The arms of each step, of all workers together."""
    found: dict[int, Arms] = {}
    for number in range(len(plan.steps)):
        arms: Arms = {}
        for told in workers:
            for name, arm in told.steps.get(step_of(plan.id, number), {}).items():
                arms.setdefault(name, Arm()).add(arm)
        found[number] = arms
    return found


def _serves(plan: Plan, rows: Sequence[EndpointStatus]) -> bool:
    return any(
        row.endpoint == plan.endpoint and row.ready and row.bundle_version == plan.bundle_version
        for row in rows
    )


def _is_coming(plan: Plan, rows: Sequence[EndpointStatus]) -> bool:
    """Whether the endpoint's row tells of nothing that keeps what it asks for from being loaded."""
    return any(row.endpoint == plan.endpoint and row.reason in _ON_ITS_WAY for row in rows)


def _kept(states: Mapping[str, State], plans: Mapping[str, Plan]) -> dict[str, State]:
    """Without those of endpoints that were removed, whose plans `remove` took out. What runs keeps
    its own, which says at which step it is: another writer may have undone its plan.
    """
    return {name: one for name, one in states.items() if name in plans or not one.is_over}


def _shown(plans: Mapping[str, Plan], states: Mapping[str, State]) -> list[dict[str, Any]]:
    """For the state file, which `status` reads."""
    rows = []
    for endpoint, plan in sorted(plans.items()):
        state = states.get(endpoint)
        if state is None or state.id != plan.id:
            state = State(plan.id)
        row = {
            name: value for name, value in asdict(state).items()
            if name in ("phase", "step", "since", "says", "outcome", "reason")
        }  # fmt: skip
        rows.append({
            "endpoint": endpoint, "bundle_version": plan.bundle_version, **row,
            "steps": len(plan.steps), "share": share_of(plan, state),
            "words": words_of(plan, state),
        })  # fmt: skip
    return rows
