"""Which of several controllers over one serving task takes a rollout's steps.

One does, and its beat in the rollout's state shows that it is there. A rollout that nobody has, or
whose controller is gone, goes to one whose Triton has both bundles: another one, such as one that
still loads, would only see that they are not ready, and end it. Where no such one comes, that is
what happens.

Tested by tests/engine/rollouts/test_taking.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_serving.contract.rollout import ABORT, HOLDING, PROMOTING, Plan, State
from transformer_serving.engine.controller.status import EndpointStatus

# Who has said nothing new for so long is gone: a worker, or another controller; and nobody before
# it has left out two looks.
_GONE_S, _GONE_LOOKS = 30.0, 2.5


def gone_s(every_s: float = 0.0) -> float:
    """One that looks once a minute is not gone after half of one: it still has its routes."""
    return max(_GONE_S, _GONE_LOOKS * every_s)


@dataclass
class _Pulse:
    """When something was last seen to beat, on the clock of who looks."""

    beat: int
    at: float


class Pulses:
    """Who is alive: whose beat was seen to change lately."""

    def __init__(self) -> None:
        self._seen: dict[str, _Pulse] = {}

    def alive(self, who: str, beat: int, gone_after_s: float, now: float) -> bool:
        """`now` is in seconds, and may leave out those in which nobody could be heard."""
        pulse = self._seen.get(who)
        if pulse is None or pulse.beat != beat:
            self._seen[who] = _Pulse(beat, now)
            return True
        return now - pulse.at < gone_after_s

    def clear(self) -> None:
        self._seen.clear()


class Taker:
    """This controller, as the others know it; it learns of plans every `poll_s`."""

    def __init__(self, poll_s: float) -> None:
        self.own = uuid.uuid4().hex
        self._poll_s = poll_s
        self._pulses = Pulses()
        # Since when nobody was seen to take a rollout, which this one could not judge.
        self._free: dict[str, float] = {}

    def takes(
        self, plan: Plan, begun: State | None, rows: Sequence[EndpointStatus], now: float
    ) -> bool:
        """Whether it takes the next step of a rollout, where that has `begun`. `now` is on the
        clock of the seconds in which ClearML answers."""
        if begun is not None and begun.by == self.own:
            return True
        # It beats at each rollout on its own.
        if begun is not None and begun.by and self._pulses.alive(
            f"{begun.by} {plan.id}", begun.beat, gone_s(), now
        ):  # fmt: skip
            self._free.pop(plan.id, None)
            return False
        if _needs_no_engine(plan, begun) or _has_both(plan, rows):
            return True
        # Another one may learn of the plan a poll later. Of one that has begun all know, and the
        # candidate has its share of the requests meanwhile.
        patience_s = gone_s(self._poll_s) if begun is None else gone_s()
        return now - self._free.setdefault(plan.id, now) >= patience_s

    def clear(self) -> None:
        self._pulses.clear()
        self._free.clear()


def _needs_no_engine(plan: Plan, begun: State | None) -> bool:
    """Its end follows from what workers and people say, or needs no more than the old bundle's."""
    return plan.wish == ABORT or (begun is not None and begun.phase not in (HOLDING, PROMOTING))


def _has_both(plan: Plan, rows: Sequence[EndpointStatus]) -> bool:
    return {plan.endpoint, plan.candidate} <= {row.endpoint for row in rows if row.ready}
