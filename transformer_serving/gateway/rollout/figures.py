"""What a worker saw of a rollout, told to the controller through the worker's own task in ClearML.

Preprocess notes each answer of an endpoint that is watched; the host's sync thread counts them once
a sync and writes the counts. Where there is no rollout nothing is noted and nothing written.

Tested by tests/gateway/test_rollout_figures.py.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from transformer_serving.contract.errors import KINDS
from transformer_serving.contract.rollout import (
    HOLDING,
    LEAVING,
    NEW,
    OLD,
    PLANS,
    RETURNING,
    SEEN,
    STATES,
    Arm,
    Plan,
    Seen,
    State,
    read_plans,
    read_states,
    seen_text,
    step_of,
)
from transformer_serving.contract.settings.polls import SERVING_POLL
from transformer_serving.contract.worker.watched_answers import MOST, watched_answers
from transformer_serving.gateway.rollout.mirror import MIRRORS, Mirror
from transformer_serving.gateway.rollout.under_way import Leavers, note_under_way

log = logging.getLogger("transformer_serving.gateway")
# Nobody waited for this answer any more.
_LEFT = KINDS["left"].status
# ClearML's own number for it.
_NO_SUCH_TASK = 101


class UntoldError(Exception):
    """This worker can tell nothing of a rollout, whose controller so waits for it in vain."""


class RolloutFigures:
    """Of one worker, from its sync thread. `write` stores a text in the worker's own task."""

    def __init__(self, write: Callable[[str], None], every_s: float) -> None:
        self._write = write
        self._watched = watched_answers()
        self._seen = Seen(every_s=every_s)
        # The step at which the answers were given that are noted now, by endpoint.
        self._at: dict[str, tuple[Plan, str | None]] = {}
        self._leavers = Leavers()

    def expect(self, items: Mapping[str, str]) -> None:
        """The host is to take these over, after which it draws requests and writes to ClearML
        before it is `synced`, which raises what cannot be read.
        """
        with suppress(ValueError):
            self._leavers.note({plan.candidate for plan, _ in _open(items).values()})

    def synced(self, items: Mapping[str, str], *, changed: bool = False) -> None:
        """The host has taken over the configuration that these items are of, which may not have
        `changed` since the last time.
        """
        open_ = _open(items)
        self._count()
        if not open_ and not self._at:
            return
        self._watch(open_, changed=changed)
        self._seen.beat += 1
        self._write(seen_text(self._seen))

    def _count(self) -> None:
        """What was noted since the last sync, to the step that it was answered in."""
        for plan, step in self._at.values():
            mirror = MIRRORS.get(plan.endpoint)
            if mirror is not None and step is not None:
                mirror.count(self._seen.steps.setdefault(step, {}))
            for name, endpoint in ((OLD, plan.endpoint), (NEW, plan.candidate)):
                noted = self._watched.get(endpoint, deque())
                # Requests go on being noted at the other end.
                for status, tokens, seconds in [noted.popleft() for _ in range(len(noted))]:
                    if step is not None and status != _LEFT:
                        arms = self._seen.steps.setdefault(step, {})
                        arms.setdefault(name, Arm()).count(status, tokens, seconds)

    def _watch(self, open_: Mapping[str, tuple[Plan, State]], *, changed: bool) -> None:
        self._at = {
            endpoint: (plan, step_of(plan.id, state.step) if state.phase == HOLDING else None)
            for endpoint, (plan, state) in open_.items()
        }
        ids = {plan.id for plan, _ in open_.values()}
        candidates = {plan.candidate for plan, _ in open_.values()}
        self._leavers.note(candidates)
        self._leavers.keep(candidates)
        self._seen.marks = {
            endpoint: self._mark(plan, state, changed=changed)
            for endpoint, (plan, state) in open_.items()
        }
        self._seen.steps = {
            step: arms for step, arms in self._seen.steps.items() if step.split()[0] in ids
        }
        self._mirror(open_)
        # In a shadow nobody but the mirror asks the candidate, and both are compared by that.
        routed = [plan for plan, _ in open_.values() if not plan.shadow]
        names = {name for plan in routed for name in (plan.endpoint, plan.candidate)}
        for gone in self._watched.keys() - names:
            del self._watched[gone]
        for name in names - self._watched.keys():
            self._watched[name] = deque(maxlen=MOST)

    def _mark(self, plan: Plan, state: State, *, changed: bool) -> str:
        """Of no phase while the candidate, which would go next, still has requests of its route."""
        if state.phase not in (LEAVING, RETURNING):
            return state.mark
        if changed:
            self._leavers.begin(plan.candidate)
        return plan.id if self._leavers.has(plan.candidate) else state.mark

    def _mirror(self, open_: Mapping[str, tuple[Plan, State]]) -> None:
        """Begin and end what is mirrored; nothing of it is on the way when this is told."""
        wanted = {
            endpoint: plan for endpoint, (plan, state) in open_.items()
            if plan.mirror and state.phase == HOLDING
        }  # fmt: skip
        for gone in MIRRORS.keys() - wanted.keys():
            del MIRRORS[gone]
        for endpoint, plan in wanted.items():
            mirror = MIRRORS.get(endpoint)
            if mirror is None or mirror.rollout != plan.id:
                MIRRORS[endpoint] = Mirror.of(plan)


def _open(items: Mapping[str, str]) -> dict[str, tuple[Plan, State]]:
    """Raises ValueError."""
    plans, states = read_plans(items.get(PLANS)), read_states(items.get(STATES))
    return {
        endpoint: (plan, states[endpoint]) for endpoint, plan in plans.items()
        if _is_open(plan, states.get(endpoint))
    }  # fmt: skip


def _is_open(plan: Plan, state: State | None) -> bool:
    return state is not None and state.id == plan.id and not state.is_over


def tell_rollouts(processor_class: Any) -> None:
    """Have the host's sync thread count and tell, each time it has looked at the serving task."""
    note_under_way(processor_class)
    take_over = processor_class.deserialize
    figures: list[RolloutFigures] = []

    def tell(task: Any, work: Callable[[RolloutFigures, dict[str, str]], None]) -> None:
        try:
            data = getattr(task, "_data", None)
            if data is not None:
                if not figures:
                    every_s = 60 * SERVING_POLL.number(os.environ)
                    figures.append(RolloutFigures(into_own(type(task)), every_s))
                work(figures[0], _texts(data.configuration))
        except UntoldError as error:
            log.error("what was seen of a rollout could not be told: %s", error)
        except Exception as error:
            # Requests are served whether or not anybody counts them.
            log.error("what was seen of a rollout could not be told: %s", type(error).__name__)

    def deserialize(self: Any, task: Any = None, *arguments: Any, **named: Any) -> Any:
        tell(task, RolloutFigures.expect)
        changed = take_over(self, task, *arguments, **named)
        tell(task, partial(RolloutFigures.synced, changed=bool(changed)))
        return changed

    processor_class.deserialize = deserialize


def _texts(items: Any) -> dict[str, str]:
    wanted = (PLANS, STATES)
    return {name: str(items[name].value or "") for name in wanted if name in (items or {})}


def into_own(task_class: Any) -> Callable[[str], None]:
    """A worker's own task is the process's; the host makes it at its start.

    What is returned raises UntoldError where ClearML has no such task any more.
    """

    def write(text: str) -> None:
        from clearml.backend_api.services import tasks
        from clearml.backend_interface.session import SendError

        own = task_class.current_task()
        if own is None:
            return
        row = {"name": SEEN, "value": text}
        change = tasks.EditConfigurationRequest(
            task=own.id, configuration=[row], replace_configuration=False, force=True
        )
        try:
            own.send(change)
        except SendError as error:
            if error.result.meta.result_subcode != _NO_SUCH_TASK:
                raise
            raise UntoldError(
                f"this worker's task {own.id} is not in ClearML, as after a restore from before "
                "the worker's start; restart or roll inference, and the rollout goes on"
            ) from None

    return write
