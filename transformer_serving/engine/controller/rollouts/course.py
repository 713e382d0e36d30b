"""What comes next in a rollout: pure functions of what is known. The routes are in routes.py.

holding a step -> ... -> holding the last -> promoting -> leaving -> over
              \\-> returning -> over

Promoting gives the endpoint itself the new bundle, while the candidate still answers; leaving takes
the candidate's route away, and only when every worker has let go of it, with its last request, the
candidate itself. Returning is the same without the new bundle. So nobody is sent to an engine that
is not there. A shadow holds its one step without a route, and whatever it finds it returns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from transformer_serving.contract.rollout import (
    ABORT,
    DID_NOT_PASS,
    HOLDING,
    LEAVING,
    NEW,
    OLD,
    OVER,
    PASSED,
    PROMOTE,
    PROMOTED,
    PROMOTING,
    RETURNING,
    WENT_BACK,
    Arm,
    Arms,
    Plan,
    State,
)
from transformer_serving.engine.controller.rollouts.judgement import WELL, WORSE, judge, of_all
from transformer_serving.engine.controller.rollouts.routes import Configuration, is_there, serving
from transformer_serving.engine.controller.rollouts.taker import gone_s

# A look costs a part of the confidence, so it waits until there is something new to see.
_GROWTH, _AT_LEAST = 1.2, 10
# An engine that is loaded again after a restart of Triton is not lost.
_LOST_S = 15.0
# Of a promotion whose engine fails to come, or which a worker does not take; and of an engine that
# is on its way, which may be a large one's download, its proof and its load.
_PROMOTE_S, _COMING_S = 300.0, 3600.0
_ALL_WELL = "every figure was well"
_UNHEARD = "not every worker has told yet that it has this step's routes"
_ANSWERS = "answers of the candidate so far, mirrored ones included"
_NOBODY = "no worker has told anything yet; where that stays so, a worker's log says why"
# So long what is over is still looked after: another writer may have undone its end.
AFTER_S = 60.0


@dataclass(frozen=True)
class Known:
    """One look. `steps` are the arms by number of the step, added up over the workers.

    `acked` is whether every worker that is alive has told that it has the routes of this phase, and
    told it after the last outage of ClearML; `workers` how many those are; `lost_s` for how long
    the candidate's engine has not been ready; `serves` whether the endpoint's own engine is that of
    the new bundle by now, `coming` whether nothing is known to keep the one that it asks for from
    being loaded. The slowest worker looks every `every_s` seconds. `endpoints` is clearml-serving's
    own configuration.
    """

    steps: Mapping[int, Arms] = field(default_factory=dict)
    acked: bool = False
    workers: int = 0
    lost_s: float = 0.0
    serves: bool = False
    coming: bool = False
    every_s: float = 0.0
    endpoints: Configuration = field(default_factory=dict)
    now: float = field(default_factory=time.time)


def begun(plan: Plan, endpoints: Configuration, now: float) -> State:
    return State(plan.id, since=now, before=dict(endpoints.get(plan.endpoint, {})))


def next_state(plan: Plan, state: State, known: Known) -> State:
    match state.phase:
        case "holding":
            return _hold(plan, state, known)
        case "promoting":
            return _promote(plan, state, known)
        case "leaving":
            return _leave(plan, state, known)
        case "returning":
            return _return(plan, state, known)
    return state


def _hold(plan: Plan, state: State, known: Known) -> State:
    if fault := _fault(plan, known):
        return _to(state, RETURNING, known, reason=fault)
    if plan.wish == PROMOTE and not plan.shadow:
        return _to(state, PROMOTING, known, reason="promote was asked for")
    if not known.acked and not state.looks:
        # The time of a step begins when every worker has its routes.
        says = _UNHEARD if known.workers else _NOBODY
        return replace(state, since=known.now, says=(says,))
    state = _looked(plan, state, known)
    return _held(plan, state, known) if state.phase == HOLDING else state


def _held(plan: Plan, state: State, known: Known) -> State:
    """The next step, where this one is over."""
    if not known.acked:
        # What a worker has not told yet may be worse: another look must be content with that, too.
        return replace(state, well=False)
    if not state.well or known.now - state.since < plan.hold_s:
        return state
    if state.step + 1 < len(plan.steps):
        before = _before(state, known)
        on = replace(
            state, step=state.step + 1, old_requests=before.requests, old_errors=before.errors
        )
        return _to(on, HOLDING, known)
    if plan.shadow:
        return _to(state, RETURNING, known, reason=_ALL_WELL)
    return _to(state, PROMOTING, known, reason="every step was well")


def _return(plan: Plan, state: State, known: Known) -> State:
    """Over once nobody asks the candidate, and where the endpoint was promoted already, once it has
    its old bundle back; a load that fails may lack what the candidate holds."""
    is_back = serving(plan, known.endpoints) != plan.old_model_id or not known.serves
    if not known.acked or (not is_back and known.coming and not _is_late(state, known, _COMING_S)):
        return state
    reason = "" if is_back else (
        f"{state.reason}; {plan.endpoint} asks for its old bundle, and the new one answers until "
        "that is loaded"
    )  # fmt: skip
    return _to(state, OVER, known, reason=reason, outcome=_returned(plan, state))


def _is_late(state: State, known: Known, limit_s: float) -> bool:
    return known.now - state.since > limit_s


def _returned(plan: Plan, state: State) -> str:
    if not plan.shadow:
        return WENT_BACK
    return PASSED if state.reason == _ALL_WELL else DID_NOT_PASS


def _fault(plan: Plan, known: Known) -> str | None:
    """Why it cannot go on, whatever the figures say."""
    if plan.wish == ABORT:
        return "abort was asked for"
    return _changed(plan, known, plan.old_model_id) or _gone(plan, known)


def _changed(plan: Plan, known: Known, *ours: str) -> str | None:
    if serving(plan, known.endpoints) not in ours:
        return f"somebody else changed {plan.endpoint} meanwhile"
    return None


def _gone(plan: Plan, known: Known) -> str | None:
    if not is_there(plan, known.endpoints):
        did = "changed" if plan.candidate in known.endpoints else "removed"
        return f"somebody else {did} the candidate {plan.candidate}"
    if known.lost_s > _LOST_S:
        return f"the candidate's engine has not been ready for {known.lost_s:.0f} s"
    return None


def _looked(plan: Plan, state: State, known: Known) -> State:
    """After a judgement, where there is more to judge than at the last one."""
    arms = known.steps.get(state.step, {})
    new = arms.get(NEW, Arm())
    if new.evidence < state.looked_at:
        # Of workers that left while nobody listened, nothing is known any more.
        return replace(state, looked_at=new.evidence)
    if new.evidence < max(_GROWTH * state.looked_at, state.looked_at + _AT_LEAST):
        few = f"{_ANSWERS}: {new.evidence}; the first judgement is at {_AT_LEAST}"
        return state if state.looks else replace(state, says=(few,))
    is_last = state.step + 1 == len(plan.steps)
    is_alone = is_last and not plan.shadow
    old = _before(state, known) if is_alone else arms.get(OLD, Arm())
    verdicts = judge(
        new, old, plan.allowed, next_share=1.0 if is_last else plan.steps[state.step + 1] / 100,
        steps=len(plan.steps), look=state.looks + 1, timed=not is_alone, mirrored=plan.mirror > 0,
    )  # fmt: skip
    said, decisive = of_all(verdicts)
    state = replace(
        state, looks=state.looks + 1, looked_at=new.evidence, well=said == WELL,
        says=tuple(verdict.line() for verdict in verdicts),
    )  # fmt: skip
    return _to(state, RETURNING, known, reason=decisive.line()) if said == WORSE else state


def _before(state: State, known: Known) -> Arm:
    """The old bundle at all steps together: at the last one it answers next to nothing. Of workers
    that left while nobody listened, its answers at the steps that are over stand in the state.
    """
    steps = [known.steps.get(n, {}).get(OLD, Arm()) for n in range(state.step + 1)]
    told, here = Arm(), steps[-1]
    for arm in steps:
        told.add(arm)
    kept = Arm(state.old_requests + here.requests, state.old_errors + here.errors)
    return max(told, kept, key=lambda arm: arm.requests)


def _promote(plan: Plan, state: State, known: Known) -> State:
    if plan.wish == ABORT:
        return _to(state, RETURNING, known, reason="abort was asked for")
    fault = _changed(plan, known, plan.old_model_id, plan.model_id)
    if fault is None and not known.serves:
        # It answers nearly everything until the endpoint itself does.
        fault = _gone(plan, known)
    if fault is not None:
        return _to(state, RETURNING, known, reason=fault)
    # Another writer may just have put the whole map back as it was before the promotion.
    is_named = serving(plan, known.endpoints) == plan.model_id
    if known.acked and known.serves and is_named:
        return _to(state, LEAVING, known, reason=state.reason)
    if known.serves and not state.served_after_s:
        # From here on workers alone are waited for, which may have to tell anew.
        state = replace(state, served_after_s=known.now - state.since)
    limit_s = _COMING_S
    if known.serves or not known.coming:
        limit_s = max(_PROMOTE_S, gone_s(known.every_s))
    if _is_late(state, known, limit_s + (state.served_after_s if known.serves else 0.0)):
        missing = "not every worker took its routes" if known.serves else "it did not serve it"
        reason = f"{plan.endpoint} was promoted, and {missing} within {limit_s:.0f} s"
        return _to(state, RETURNING, known, reason=reason)
    return state


def _leave(plan: Plan, state: State, known: Known) -> State:
    if serving(plan, known.endpoints) == plan.old_model_id:
        if is_there(plan, known.endpoints):
            # `routes` writes the promotion again.
            return state
        reason = f"somebody else undid the promotion and removed or changed {plan.candidate}"
        return _to(state, RETURNING, known, reason=reason)
    return _to(state, OVER, known, outcome=PROMOTED) if known.acked else state


def _to(state: State, phase: str, known: Known, *, reason: str = "", outcome: str = "") -> State:
    """Another phase or step, from now; what was said last stays to be read."""
    fresh = phase == HOLDING
    return replace(
        state, phase=phase, since=known.now, reason=reason or state.reason, outcome=outcome,
        looks=0 if fresh else state.looks, looked_at=0 if fresh else state.looked_at, well=False,
        served_after_s=0.0,
    )  # fmt: skip
