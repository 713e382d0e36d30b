"""The search of settings on a machine whose speeds are known."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings, strategies as some

from tests.tune.test_knobs import USUAL
from transformer_serving.desk.bench.bounds import fewest_rounds
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.knobs import KNOBS, Scope, Setting, knobs_named
from transformer_serving.desk.tune.race import Lane, chosen, race, widest
from transformer_serving.desk.tune.search import (
    DISTURBED,
    NO_OTHER,
    NO_TIME,
    VERDICT_ROUNDS,
    Search,
    is_bounded,
)
from transformer_serving.desk.tune.sources import content

BAD = replace(USUAL, threads=1, buckets="doubling", call_tokens=256, calls=1, workers=2)


@dataclass
class Machine:
    """`speed` of a setting, with noise; it remembers what was brought and is there."""

    speed: Callable[[Setting], float]
    noise: float = 0.02
    source: random.Random = field(default_factory=lambda: random.Random(3))
    there: set[Setting] = field(default_factory=set)
    measured: int = 0
    slow: Callable[[], None] = lambda: None
    too_much: Callable[[Setting], bool] = lambda _: False
    dies: Callable[[Setting], bool] = lambda _: False
    # Which settings answer no longer, and from which load on.
    breaks: Callable[[Setting], bool] = lambda _: False
    breaks_at: int = 0

    def bring(self, settings: Mapping[str, Setting]) -> None:
        self.there |= set(settings.values())
        if any(map(self.too_much, settings.values())):
            raise Failure("6000 MiB of memory are free; tune on a machine with more")

    def warm_up(self, setting: Setting) -> None:
        assert setting in self.there
        self.slow()
        if self.dies(setting):
            raise Failure("nothing answers")

    def measure(self, setting: Setting, number: int) -> float:
        assert setting in self.there
        assert not any(map(self.too_much, self.there))
        assert not any(map(self.dies, self.there))
        self.measured += 1
        if self.breaks(setting) and self.measured > self.breaks_at:
            raise Failure("nothing answers at 127.0.0.1:1: Connection refused; see 'status'")
        return self.speed(setting) * self.source.lognormvariate(0, self.noise)

    def keep(self, settings: Iterable[Setting]) -> None:
        self.there &= set(settings)


def speed(setting: Setting) -> float:
    """Every knob has a best value; threads depend on instances, and calls on workers."""
    found = 1000.0 * {0: 1.0, 1: 0.6, 2: 0.8}.get(setting.threads, 0.5)
    found *= {"converted": 1.0, "halved": 0.9, "doubling": 0.7}[setting.buckets]
    found *= {256: 0.8, 512: 0.9, 1024: 1.0, 2048: 0.95}.get(setting.call_tokens, 0.85)
    found *= {1: 0.8, 2: 1.0}.get(setting.calls * setting.workers, 0.9)
    found *= 1.05 if setting.instances == 2 and setting.threads == 0 else 1.0
    return found * (1.0 if setting.workers == 1 else 0.95)


# Those of the engine, whose races come between the gateway's.
ENGINE = KNOBS[1:-2]


def searched(machine: Machine, small: Bundle, seconds: float = 60.0) -> Search:
    scope = Scope({"fp32": content(small)}, cores=4)
    return Search(machine, scope, time.monotonic() + seconds, lambda: False, lambda _: None)


def test_from_a_bad_begin_it_comes_to_the_best(small: Bundle) -> None:
    machine = Machine(speed)
    search = searched(machine, small)
    best = search.run(KNOBS, BAD)
    assert speed(best) >= 0.95 * speed(replace(USUAL, call_tokens=1024, instances=2))
    assert [one.knob for one in search.races] == [knob.name for knob in KNOBS]
    workers, precision, *others = search.races
    assert precision.why_not == "there is one value alone"
    for raced in (workers, *others):
        assert sum(one.chosen for one in raced.rivals) == 1
    assert machine.there == {best}
    beginning, same = search.judge(best, {"begin": BAD, "best": replace(best, calls=7)})
    assert beginning.ratio is not None
    assert same.ratio is not None
    assert beginning.ratio.lower > 1.5
    assert beginning.ratio.rounds == VERDICT_ROUNDS
    assert is_bounded(beginning.ratio)
    assert same.ratio.upper > 0.97
    assert search.judge(best, {"itself": best}) == ()


def test_a_setting_that_is_known_is_given_and_nothing_is_turned(small: Bundle) -> None:
    """As docs/coming-from.md has it: `--from threads=1 --only precision`."""
    machine = Machine(speed)
    search = searched(machine, small)
    best = search.run(knobs_named(("precision",)), BAD)
    assert best == BAD
    assert search.judge(best, {"the beginning": BAD}) == ()
    assert not machine.measured


def test_what_is_surely_worse_is_measured_no_further(small: Bundle) -> None:
    found = {}
    for noise in (0.0001, 0.5):
        machine = Machine(speed, noise)
        searched(machine, small).run(KNOBS, BAD)
        found[noise] = machine.measured
    assert found[0.0001] < 0.7 * found[0.5]


def test_without_time_nothing_is_changed(small: Bundle) -> None:
    machine = Machine(speed)
    search = searched(machine, small, 0.0)
    assert search.run(KNOBS, BAD) == BAD
    assert {one.why_not for one in search.races} == {"there is one value alone", NO_TIME}
    assert not machine.measured


def test_where_the_served_stack_is_asked_again_it_stops_with_what_it_has(small: Bundle) -> None:
    machine = Machine(speed)
    search = searched(machine, small)
    looks = iter((False, True))
    search.disturbed = lambda: next(looks)
    best = search.run(ENGINE, BAD)
    assert best == replace(BAD, threads=0)
    assert [one.why_not for one in search.races[:4]] == [
        "there is one value alone", "", DISTURBED, DISTURBED,
    ]  # fmt: skip
    assert search.judge(best, {"begin": BAD}) == ()


def test_where_bringing_up_takes_the_time_there_is_no_race(small: Bundle) -> None:
    machine = Machine(speed)
    search = searched(machine, small)
    machine.slow = lambda: setattr(search, "over", 0.0)
    best = search.run(ENGINE, BAD)
    assert best == BAD
    assert {one.why_not for one in search.races[1:]} == {NO_TIME}
    assert not machine.measured


def test_a_verdict_without_time_has_the_rounds_that_its_bounds_need(small: Bundle) -> None:
    """As with long --seconds: all of its rounds would take longer than the whole search may."""
    search = searched(Machine(speed), small)
    search.judged = 0.0
    [beginning] = search.judge(USUAL, {"begin": BAD})
    assert beginning.ratio is not None
    assert beginning.ratio.rounds == fewest_rounds(0.95) < VERDICT_ROUNDS
    assert beginning.ratio.lower > 1.5
    search.judged = math.inf
    [beginning] = search.judge(USUAL, {"begin": BAD})
    assert beginning.ratio is not None
    assert beginning.ratio.rounds == VERDICT_ROUNDS


def test_a_value_that_does_not_come_up_is_left_out_and_said(small: Bundle) -> None:
    machine = Machine(
        speed, too_much=lambda one: one.instances == 4, dies=lambda one: one.buckets == "halved"
    )
    search = searched(machine, small)
    best = search.run(KNOBS, BAD)
    assert speed(best) >= 0.95 * speed(replace(USUAL, call_tokens=1024, instances=2))
    assert machine.there == {best}
    said = {
        (race.knob, one.value): (one.why_not, one.rounds, one.chosen)
        for race in search.races
        for one in race.rivals
        if one.why_not
    }
    assert said == {
        ("buckets", "halved"): ("nothing answers", 0, False),
        ("instances", 4): ("6000 MiB of memory are free", 0, False),
    }
    others = {"begin": BAD, "more": replace(best, instances=4)}
    beginning, more = search.judge(best, others)
    assert beginning.ratio is not None
    assert (more.ratio, more.why_not) == (None, "6000 MiB of memory are free")
    [more] = search.judge(best, {"more": replace(best, instances=4)})
    assert more.ratio is None


def test_a_value_that_fails_in_its_race_is_left_out_and_said(small: Bundle) -> None:
    machine = Machine(speed, breaks=lambda one: one.call_tokens == 1024)
    search = searched(machine, small)
    best = search.run(KNOBS, replace(BAD, call_tokens=512))
    [raced] = [one for one in search.races if one.knob == "call_tokens"]
    gone = {one.value: (one.why_not, one.rounds) for one in raced.rivals if one.why_not}
    assert gone == {1024: ("nothing answers at 127.0.0.1:1: Connection refused", 0)}
    assert best.call_tokens == 512
    assert machine.there == {best}
    machine.breaks = lambda one: one == BAD
    machine.breaks_at = machine.measured + 7
    [beginning] = search.judge(best, {"begin": BAD})
    assert (beginning.ratio, beginning.why_not.partition(":")[0]) == (
        None,
        "nothing answers at 127.0.0.1",
    )


def test_what_was_found_before_the_present_value_failed_is_kept(small: Bundle) -> None:
    machine = Machine(speed)
    machine.breaks = lambda one: (
        one.buckets == BAD.buckets and any(each.buckets != one.buckets for each in machine.there)
    )
    search = searched(machine, small)
    with pytest.raises(Failure, match="nothing answers"):
        search.run(ENGINE, BAD)
    assert search.best == replace(BAD, threads=0)
    assert [one.knob for one in search.races] == ["precision", "threads"]


def behind_a_gateway(setting: Setting) -> float:
    """An engine that does more than four workers of the gateway send on."""
    engine = 4000.0 * {256: 0.5, 1024: 0.8, 4096: 1.0, 0: 0.9}[setting.call_tokens]
    engine *= {"converted": 3.0, "doubling": 1.0, "halved": 2.0}[setting.buckets]
    return min(engine, 2000.0 * setting.workers)


def test_behind_too_few_workers_no_setting_of_the_engine_is_lost(small: Bundle) -> None:
    begun = replace(USUAL, buckets="doubling", call_tokens=1024)
    for seed in range(5):
        machine = Machine(behind_a_gateway, source=random.Random(seed))
        search = searched(machine, small)
        search.scope = replace(search.scope, cores=16)
        best = search.run(KNOBS, begun)
        assert (best.buckets, best.call_tokens) == ("converted", 4096), seed
        assert behind_a_gateway(best) == 12000.0


def disturbed_after(search: Search, looks: int) -> list[int | None]:
    """The workers at each look, of which those after so many find the machine needed otherwise."""
    workers: list[int | None] = []

    def disturbed() -> bool:
        workers.append(search.best.workers if search.best else None)
        return len(workers) > looks

    search.disturbed = disturbed
    return workers


@pytest.mark.parametrize(("calls", "cores"), [(4, 4), (2, 4), (2, 16), (64, 16)])
def test_where_there_is_no_time_for_the_last_race_of_workers_the_best_of_the_first_stays(
    small: Bundle, calls: int, cores: int
) -> None:
    """And not those that are many for the races between, nor a rounded share of their calls."""
    machine = Machine(lambda one: 1000.0 if one.workers == 1 else 985.0, noise=0.03)
    search = searched(machine, small)
    wide = disturbed_after(search, 1)
    search.scope = replace(search.scope, cores=cores)
    best = search.run(KNOBS, replace(USUAL, calls=calls))
    assert wide == [1, min(cores, 8)]
    assert (best.workers, best.calls) == (1, calls)
    assert search.races[0].wide
    assert search.races[-2].why_not == DISTURBED


def test_calls_that_a_race_has_changed_behind_many_workers_are_shared_by_fewer(
    small: Bundle,
) -> None:
    machine = Machine(
        lambda one: (1000.0 if one.workers == 1 else 985.0) * (2 if one.calls == 4 else 1),
        noise=0.03,
    )
    search = searched(machine, small)
    wide = disturbed_after(search, 2)
    knobs = [KNOBS[0], KNOBS[-1], *KNOBS[-2:]]
    best = search.run(knobs, USUAL)
    assert wide == [1, 4, 1]
    assert (best.workers, best.calls) == (1, 16)


def test_what_is_wide_for_the_races_between_is_no_result_where_one_of_them_is_ended(
    small: Bundle,
) -> None:
    machine = Machine(lambda one: 1000.0 if one.workers == 1 else 985.0, noise=0.03)
    search = searched(machine, small)
    assert search.found is None
    looks = iter((False,))

    def ended() -> bool:
        if (look := next(looks, None)) is None:
            raise KeyboardInterrupt
        return look

    search.disturbed = ended
    with pytest.raises(KeyboardInterrupt):
        search.run(KNOBS, USUAL)
    assert search.best == replace(USUAL, workers=4, calls=1)
    assert search.found == USUAL


def test_what_is_held_against_nothing_has_a_figure_while_nobody_needs_the_machine(
    small: Bundle,
) -> None:
    search = searched(Machine(lambda _: 700.0, noise=0.0), small)
    assert search.alone(USUAL) == pytest.approx(700.0)
    search.disturbed = lambda: True
    assert search.alone(USUAL) == 0.0


def test_where_no_other_value_comes_up_the_present_one_stays(small: Bundle) -> None:
    machine = Machine(speed, too_much=lambda one: one.instances > 1)
    search = searched(machine, small)
    assert search.run(knobs_named(("instances",)), USUAL) == USUAL
    [raced] = search.races
    assert raced.why_not == NO_OTHER
    assert [(one.value, bool(one.why_not)) for one in raced.rivals] == [(2, True), (4, True)]
    assert not machine.measured


def test_where_the_present_value_does_not_come_up_it_is_a_failure(small: Bundle) -> None:
    search = searched(Machine(speed, too_much=lambda one: one == USUAL), small)
    with pytest.raises(Failure, match="tune on a machine with more"):
        search.run(knobs_named(("instances",)), USUAL)
    with pytest.raises(Failure, match="tune on a machine with more"):
        search.judge(USUAL, {"other": BAD})


FIGURES = some.lists(some.floats(1, 100), min_size=16, max_size=16)


@settings(max_examples=60)
@given(some.lists(FIGURES, min_size=2, max_size=4), some.integers(0, 16))
def test_whatever_was_measured_one_that_was_not_left_behind_is_chosen(
    rows: list[list[float]], rounds: int
) -> None:
    at = {str(number): iter(row) for number, row in enumerate(rows)}
    count = iter(range(17))
    lanes = race(tuple(at), lambda name, _: next(at[name]), lambda: next(count) < rounds)
    best = next(lane for lane in lanes if lane.name == chosen(lanes))
    assert best.lost_to is None
    if rounds < 3:
        assert best.name == "0"


def test_the_present_value_stays_where_another_is_hardly_better() -> None:
    rounds = 12
    present = Lane("present", (100.0,) * rounds)
    assert chosen((present, Lane("a", (100.5,) * rounds))) == "present"
    assert chosen((present, Lane("a", (102.0,) * rounds))) == "a"
    worse = Lane("present", (100.0,) * 6, "a")
    assert chosen((worse, Lane("a", (99.0,) * rounds))) == "a"
    assert chosen((Lane("present", ()), Lane("a", ()))) == "present"
    dead = Lane("present", (0.0,) * 6, "a")
    for present in (dead, replace(dead, lost_to=None)):
        assert chosen((present, Lane("a", (math.pi,) * rounds), Lane("b", (10.0,) * rounds))) == "b"


def test_where_the_present_value_is_out_all_rounds_of_the_others_count() -> None:
    """In the six that it ran they seemed to be the other way round."""
    present = Lane("present", (100.0,) * 6, "a")
    a, b = Lane("a", (150.0,) * 16), Lane("b", (147.0,) * 6 + (162.0,) * 10)
    assert chosen((present, a, b)) == chosen((present, b, a)) == "b"


def test_the_widest_is_not_surely_worse_than_another() -> None:
    lanes = (Lane("1", (9.0,) * 9), Lane("2", (8.0,) * 9), Lane("8", (5.0,) * 6, "1"))
    values = {lane.name: int(lane.name) for lane in lanes}
    assert widest(lanes, values) == "2"
    # With fewer rounds nobody is surely worse, as slow as it may be.
    few = [replace(lane, figures=lane.figures[:5], lost_to=None) for lane in lanes]
    assert widest(few, values) == "1"
