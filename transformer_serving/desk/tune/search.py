"""One knob after the other: its values are raced, and the best one is kept for the next race."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Protocol

from transformer_serving.desk.bench.bounds import Spread, fewest_rounds, spread
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport
from transformer_serving.desk.tune.knobs import Knob, Scope, Setting, Value
from transformer_serving.desk.tune.race import (
    CONFIDENCE,
    LOOKS,
    Lane,
    beside,
    chosen,
    race,
    ratios_of,
    widest,
)

# Of the result against what it is compared with, at most; each bound with this confidence.
VERDICT_ROUNDS = 15
# Of the result where it is held against nothing.
_ALONE_ROUNDS = 3
_VERDICT_CONFIDENCE = 0.95

NO_TIME = "no time was left"
DISTURBED = "the served stack is asked again"
NO_OTHER = "no other value came up"


class Stage(Protocol):
    """Where settings run; all of it raises Failure. `number` is the round's: what is sent in it is
    the same for each setting."""

    def bring(self, settings: Mapping[str, Setting]) -> None: ...
    def warm_up(self, setting: Setting) -> None: ...
    def measure(self, setting: Setting, number: int) -> float: ...
    def keep(self, settings: Iterable[Setting]) -> None: ...


@dataclass(frozen=True)
class Rival:
    """A value of a knob: `median` of its figures, `ratio` to the chosen one's in the same rounds.

    `lost_to` is the value that was surely better. `ratio` None: they had no round together.
    `why_not` is why it could not be brought up; then there is no figure.
    """

    value: Value
    median: float
    rounds: int
    ratio: Spread | None
    lost_to: str | None
    chosen: bool
    why_not: str = ""


@dataclass(frozen=True)
class Raced:
    """What became of a knob. `why_not` is why there was no race; `rivals` are then those alone that
    could not be brought up. `wide`: the chosen value is for the races that follow."""

    knob: str
    rivals: tuple[Rival, ...] = ()
    why_not: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Verdict:
    """`ratio` is the result's figures over the other's; None where the other could not be brought
    up, which `why_not` is the reason of."""

    name: str
    setting: Setting
    result: float
    other: float
    ratio: Spread | None
    why_not: str = ""


@dataclass
class Search:
    """`over` is when the last race must have ended, on time.monotonic's clock. `disturbed` says
    that the machine is needed otherwise: then it stops where it is.

    From `judged` on the verdict ends too, once its rounds are enough for its bounds.
    """

    stage: Stage
    scope: Scope
    over: float
    disturbed: Callable[[], bool]
    report: StepReport
    judged: float = math.inf
    best: Setting | None = None
    races: list[Raced] = field(default_factory=list)
    _stopped: str = ""
    # Of a knob that is kept wide, the way back to its best value.
    _back: dict[str, Callable[[Setting], Setting]] = field(default_factory=dict)

    @property
    def found(self) -> Setting | None:
        """What the result is, should the search end here: what is wide is so for races alone."""
        found = self.best
        for back in self._back.values():
            found = found and back(found)
        return found

    def run(self, knobs: Sequence[Knob], start: Setting) -> Setting:
        """The best setting; races that are left share the time that is left.

        `found` and `races` have what there is also where it raises. A value that cannot be brought
        up, or fails in its race, is left out. Raises Failure where the present one does.
        """
        self.best = start
        for at, knob in enumerate(knobs):
            if back := self._back.pop(knob.name, None):
                # What stays where there is no time for this race, or nothing is better.
                self.best = back(self.best)
            rivals = knob.rivals(self.scope, self.best)
            if len(rivals) < 2:
                self.races.append(Raced(knob.name, why_not="there is one value alone"))
            elif stopped := self._why_stopped():
                self.races.append(Raced(knob.name, why_not=stopped))
            else:
                left = sum(len(one.rivals(self.scope, self.best)) > 1 for one in knobs[at:])
                self.best, raced = self._raced(knob, rivals, left)
                self.races.append(raced)
        return self.best

    def _why_stopped(self) -> str:
        """What ends the search, once and for all; empty while it goes on."""
        if not self._stopped and time.monotonic() >= self.over:
            self._stopped = NO_TIME
        if not self._stopped and self.disturbed():
            self._stopped = DISTURBED
        return self._stopped

    def _raced(
        self, knob: Knob, rivals: Sequence[Setting], races_left: int
    ) -> tuple[Setting, Raced]:
        by_name = {str(one.value(knob.name)): one for one in rivals}
        values = {name: one.value(knob.name) for name, one in by_name.items()}
        lacking = self._ready(by_name)
        now = time.monotonic()
        until = now + (self.over - now) / races_left
        lanes = self._lanes(knob.name, by_name, lacking, lambda: time.monotonic() < until)
        absent = tuple(
            Rival(values[name], 0.0, 0, None, None, chosen=False, why_not=reason)
            for name, reason in lacking.items()
        )
        best = chosen(lanes)
        if knob.wide:
            narrow, best = by_name[best], widest(lanes, values)
            self._back[knob.name] = partial(_narrowed, knob, narrow, by_name[best])
        self.stage.keep([by_name[best]])
        if not lanes[0].figures:
            why_not = NO_TIME if len(lanes) > 1 else NO_OTHER
            return by_name[best], Raced(knob.name, absent, why_not)
        found = tuple(rival(lane, values[lane.name], best, lanes) for lane in lanes)
        return by_name[best], Raced(knob.name, (*found, *absent), wide=knob.wide)

    def _ready(self, by_name: Mapping[str, Setting]) -> dict[str, str]:
        """Have them up and warm, but for those that do not come; why not, by their names.

        What there is of those goes before the others are measured. The first must come: raises
        Failure where it does not.
        """
        first = next(iter(by_name))
        lacking: dict[str, str] = {}
        for step in (self._brought, self._warmed):
            for name in [name for name in by_name if name not in lacking]:
                try:
                    step(name, by_name[name])
                except Failure as failure:
                    if name == first:
                        raise
                    self._leave_out(name, by_name, lacking, failure)
        return lacking

    def _leave_out(
        self,
        name: str,
        by_name: Mapping[str, Setting],
        lacking: dict[str, str],
        failure: Failure,
    ) -> None:
        # What follows is how to go on, by logs that go with the stack.
        lacking[name] = str(failure).split("; ")[0]
        self.report(f"{name} is left out: {lacking[name]}")
        self.stage.keep(by_name[one] for one in by_name if one not in lacking)

    def _brought(self, name: str, setting: Setting) -> None:
        self.stage.bring({name: setting})

    def _warmed(self, name: str, setting: Setting) -> None:
        self.report(f"warming up {name}")
        self.stage.warm_up(setting)

    def _lanes(
        self,
        what: str,
        by_name: Mapping[str, Setting],
        lacking: dict[str, str],
        go_on: Callable[[], bool],
        looks: Sequence[int] = LOOKS,
        rounds: int = LOOKS[-1],
    ) -> tuple[Lane, ...]:
        """Of a race of those that are not lacking; one that fails in it is lacking afterwards.
        Raises Failure where the first does."""
        first = next(iter(by_name))

        def measure(name: str, number: int) -> float | None:
            try:
                figure = self.stage.measure(by_name[name], number)
            except Failure as failure:
                if name == first:
                    raise
                self._leave_out(name, by_name, lacking, failure)
                return None
            self.report(f"{what}: {name} {figure:.0f} texts/s")
            return figure

        names = tuple(name for name in by_name if name not in lacking)
        lanes = race(names, measure, go_on, looks, rounds)
        return tuple(lane for lane in lanes if lane.name not in lacking)

    def judge(self, result: Setting, others: Mapping[str, Setting]) -> tuple[Verdict, ...]:
        """The result beside each other setting that differs from it, all of them in turns. Raises
        Failure where the result itself is not up."""
        rivals = {name: one for name, one in others.items() if one != result}
        if not rivals or self._stopped == DISTURBED or self.disturbed():
            return ()
        by_name = {"result": result, **rivals}
        lacking = self._ready(by_name)
        raced = self._lanes("verdict", by_name, lacking, self._unjudged(), (), VERDICT_ROUNDS)
        lanes = {lane.name: lane for lane in raced}
        mine = lanes["result"].figures
        return tuple(
            Verdict(name, one, 0.0, 0.0, None, lacking[name])
            if name in lacking
            else _verdict(name, one, mine, lanes[name].figures)
            for name, one in rivals.items()
        )

    def alone(self, result: Setting) -> float:
        """The result's figure where it is held against nothing; 0.0 while the machine is needed
        otherwise. Raises Failure."""
        if self._stopped == DISTURBED or self.disturbed():
            return 0.0
        self._ready({"the result": result})
        figures = [self.stage.measure(result, number) for number in range(_ALONE_ROUNDS)]
        return spread(figures).median

    def _unjudged(self) -> Callable[[], bool]:
        """Asked before each round of the verdict."""
        needed = iter(range(fewest_rounds(_VERDICT_CONFIDENCE)))
        return lambda: next(needed, None) is not None or time.monotonic() < self.judged


def _narrowed(knob: Knob, best: Setting, wide: Setting, found: Setting) -> Setting:
    """What was found behind `wide`, at the knob's value in `best`. What no race has changed is as
    there, where it was measured: a turn to many and back rounds."""
    same = [name for name in asdict(found) if found.value(name) == wide.value(name)]
    turned = asdict(knob.at(found, best.value(knob.name)))
    return Setting(**turned | {name: best.value(name) for name in same})


def _verdict(
    name: str, setting: Setting, mine: Sequence[float], theirs: Sequence[float]
) -> Verdict:
    ratio = spread(ratios_of(mine, theirs), _VERDICT_CONFIDENCE)
    return Verdict(name, setting, spread(mine).median, spread(theirs).median, ratio)


def rival(lane: Lane, value: Value, best: str, lanes: Sequence[Lane]) -> Rival:
    winner = next(one for one in lanes if one.name == best)
    together = min(len(lane.figures), len(winner.figures))
    return Rival(
        value,
        spread(lane.figures).median if lane.figures else 0.0,
        len(lane.figures),
        beside(lane, winner) if together else None,
        lane.lost_to,
        lane.name == best,
    )


def is_bounded(ratio: Spread) -> bool:
    """Whether its rounds are enough for its bounds to be as sure as a race's."""
    return ratio.rounds >= fewest_rounds(CONFIDENCE)
