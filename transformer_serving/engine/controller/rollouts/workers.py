"""What the workers tell of rollouts, and which of them are alive.

Only seconds in which ClearML answers say that a worker is silent: in an outage no worker can tell
anything, and each goes on with the routes that it has. So waits run on a clock of such seconds, and
nothing that was told before an outage is taken for told after it.

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
# A look is due every 2 s, and the least that makes a worker gone is 30 s of silence. A later one
# may have waited for an outage to end, so it counts no more than one in time.
_LATE_S, _COUNTS_S = 15.0, 2.0


class Workers:
    """Those of one serving task. `clock` are the seconds in which ClearML has answered, as of the
    last `listen`, and `counted_s` those of them since the last look that came to its end.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._pulses = Pulses()
        # What each worker told last: the counts of one that has left remain.
        self._told: dict[str, Seen] = {}
        self._here: frozenset[str] = frozenset()
        # The beats at which what was told says nothing of the routes that hold now.
        self._old: dict[str, int] = {}
        # When the last look listened that came to its end, on time.monotonic's clock and on ours.
        self._looked: tuple[float, float] | None = None
        self._listened = 0.0
        self._began = 0.0
        # When all were asked anew because a look was late.
        self._asked_anew = float("-inf")
        self.clock = 0.0
        self.counted_s = 0.0

    def listen(self) -> None:
        """Read what they tell. One that cannot be read is as if it had said nothing. Raises where
        ClearML does not answer."""
        found = self._control_plane.of_instances(SEEN)
        self._here = frozenset(found)
        for task, text in found.items():
            try:
                self._told[task] = read_seen(text)
            except ValueError as error:
                _log.warning("worker %s: %s", task, error)
        self._listened = time.monotonic()
        self.counted_s = 0.0
        if self._looked is None:
            # Whether this was told after an outage, nobody knows.
            self._began = self.clock
            self.wait_for_all()
            return
        since_s = self._listened - self._looked[0]
        is_late = since_s > _LATE_S
        self.counted_s = _COUNTS_S if is_late else since_s
        # A look that did not come to its end may have told of more seconds.
        self.clock = max(self.clock, self._looked[1] + self.counted_s)
        # Not at each late look: where most are, all are never heard between two of them.
        patience_s = gone_s(max((told.every_s for told in self._told.values()), default=0.0))
        if is_late and self.clock - self._asked_anew >= patience_s:
            self._asked_anew = self.clock
            self.wait_for_all()

    def looked(self) -> None:
        """The look has ended, and what follows from it is written."""
        self._looked = self._listened, self.clock

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
            if task in self._here
            and self._pulses.alive(task, told.beat, gone_s(told.every_s), self.clock)
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
        waited = min(self.clock - self._began, now - state.since)
        return state.phase in (LEAVING, RETURNING) and waited > gone_s(max(here, default=0.0))

    def _of(self, plan: Plan) -> list[tuple[str, Seen]]:
        return [
            (task, told) for task, told in self._told.items()
            if told.marks.get(plan.endpoint, "").startswith(plan.id)
        ]  # fmt: skip
