"""What the workers tell of rollouts, and which of them are alive.

Only seconds in which ClearML answers say that a worker is silent: in an outage no worker can tell
anything, and each goes on with the routes that it has. So whoever could not listen for a while
begins anew, and takes nothing for told that was told before.

Tested by tests/engine/rollouts/test_taking.py.
"""

from __future__ import annotations

import logging
import time

from transformer_serving.contract.rollout import (
    LEAVING,
    RETURNING,
    SEEN,
    Plan,
    Seen,
    State,
    read_seen,
)
from transformer_serving.engine.controller.control_plane.served import ControlPlane
from transformer_serving.engine.controller.rollouts.taker import Pulses, gone_s

_log = logging.getLogger(__name__)
# A look is due every 2 s, and the least that makes a worker gone is 30 s of silence.
_LATE_S = 15.0


class Workers:
    """Those of one serving task. `missed_s` is for how long nobody could listen before the last
    `listen`, as far as this controller knows; 0 where one look followed the other.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._pulses = Pulses()
        # What each worker told last: the counts of one that has left remain.
        self._told: dict[str, Seen] = {}
        self._here: frozenset[str] = frozenset()
        # The beats at which what was told says nothing of the routes that hold now.
        self._old: dict[str, int] = {}
        # On time.monotonic's clock: when a look was last ended, and since when none was missed.
        self._looked: float | None = None
        self._steady = time.monotonic()
        self.missed_s = 0.0

    def listen(self) -> bool:
        """Read what they tell; whether looks were missed before. One that cannot be read is as if
        it had said nothing. Raises where ClearML does not answer."""
        found = self._control_plane.of_instances(SEEN)
        self._here = frozenset(found)
        for task, text in found.items():
            try:
                self._told[task] = read_seen(text)
            except ValueError as error:
                _log.warning("worker %s: %s", task, error)
        now = time.monotonic()
        since_s = None if self._looked is None else now - self._looked
        self.missed_s = since_s if since_s is not None and since_s > _LATE_S else 0.0
        if since_s is not None and not self.missed_s:
            return False
        self._steady = now
        self._pulses.clear()
        self.wait_for_all()
        return True

    def looked(self) -> None:
        """A look has ended, and what follows from it is written."""
        self._looked = time.monotonic()

    def wait_for_all(self) -> None:
        """What they have told until now counts for no phase any more: each must tell anew."""
        self._old = {task: told.beat for task, told in self._told.items()}

    def clear(self) -> None:
        self._told.clear()
        self._pulses.clear()
        self._looked = None

    def told(self, plan: Plan) -> list[Seen]:
        """What is known of the rollout, also from workers that have left."""
        return [told for _, told in self._of(plan)]

    def alive(self, plan: Plan) -> dict[str, Seen]:
        """Those that have told of the rollout and are not gone, by their tasks."""
        return {
            task: told for task, told in self._of(plan)
            if task in self._here and self._pulses.alive(task, told.beat, gone_s(told.every_s))
        }  # fmt: skip

    def all_have(self, plan: Plan, state: State, now: float) -> bool:
        """Whether every one that is alive has told that it has the routes of this phase."""
        alive = self.alive(plan)
        if alive:
            return all(
                told.marks.get(plan.endpoint) == state.mark and self._old.get(task) != told.beat
                for task, told in alive.items()
            )
        # Where no worker is left, none is sent to an engine that goes.
        here = (told.every_s for task, told in self._of(plan) if task in self._here)
        waited = min(time.monotonic() - self._steady, now - state.since)
        return state.phase in (LEAVING, RETURNING) and waited > gone_s(max(here, default=0.0))

    def _of(self, plan: Plan) -> list[tuple[str, Seen]]:
        return [
            (task, told) for task, told in self._told.items()
            if told.marks.get(plan.endpoint, "").startswith(plan.id)
        ]  # fmt: skip
