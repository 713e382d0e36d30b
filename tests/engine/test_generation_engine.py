"""The engine thread with a pipeline that is told when to fail: no call is left without an end."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from transformer_serving.contract.engine_parameters import SPARE_BLOCKS
from transformer_serving.contract.generation import Finish, Options, Sampling
from transformer_serving.engine.backends.generation.calls import Call, CallRefused, Fault
from transformer_serving.engine.backends.generation.counts import Counts
from transformer_serving.engine.backends.generation.engine import Engine
from transformer_serving.engine.backends.generation.sequences import Part, ask_again_s
from transformer_serving.engine.backends.generation.settings import GenerationSettings

SETTINGS = GenerationSettings(
    vocabulary=100, max_positions=64, kv_blocks=8, max_running=6, send_gap_s=0.05
)
# A first id of a prompt that makes the pipeline fail where it says so.
BAD_START, BAD_TAKE, BAD_STEP = 91, 92, 93


class Sequence:
    """Counts up from the prompt's last id."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.made: list[int] = []
        self.taken = 0
        self.cancelled = self.ignored = False

    @property
    def done(self) -> bool:
        made = len(self.made)
        return self.cancelled or self.ignored or made == self.call.options.max_new_tokens

    def take(self) -> Part:
        if self.call.ids[0] == BAD_TAKE:
            raise RuntimeError("lost\nplaces in code")
        new, self.taken = self.made[self.taken :], len(self.made)
        finish = Finish.LENGTH if self.done and not self.cancelled else Finish.RUNNING
        return Part(new, [], Finish.CACHE_FULL if self.ignored else finish)

    def cancel(self) -> None:
        self.cancelled = True


class CountingPipeline:
    """As the engine's own: a step gives nothing to what was cancelled, and frees its blocks at its
    end; what has no room meanwhile is ignored. `most` is how many sequences ever ran together.
    """

    def __init__(self, pause: threading.Event | None = None, blocks: int = 10_000) -> None:
        self.blocks = blocks
        self.running: list[Sequence] = []
        self.most = 0
        self.steps = 0
        self.pause = pause

    def start(self, call: Call) -> Sequence:
        if call.ids[0] == BAD_START:
            raise ValueError("not this one")
        self.running.append(Sequence(call))
        return self.running[-1]

    def step(self) -> None:
        if self.pause is not None:
            assert self.pause.wait(60)
        self.steps += 1
        self.most = max(self.most, sum(not one.cancelled for one in self.running))
        blocks = 0
        for one in self.running:
            blocks += one.call.blocks
            one.ignored = blocks > self.blocks
            if one.cancelled or one.ignored:
                continue
            if one.call.ids[0] == BAD_STEP:
                raise RuntimeError("the step is broken")
            one.made.append(int(one.call.ids[-1]) + len(one.made) + 1)
        self.running = [one for one in self.running if not one.done]
        time.sleep(0.001)

    def busy(self) -> bool:
        return bool(self.running)

    def cache_use(self) -> float:
        return sum(one.call.blocks for one in self.running) / SETTINGS.kv_blocks


class Caller:
    """Keeps what came; `left` makes it a caller that has gone."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.state = (0, 0)
        self.refusal: CallRefused | None = None
        self.left = False
        self.begun = threading.Event()
        self.ended = threading.Event()

    def send(self, part: Part, prompt: int, generated: int) -> None:
        assert not self.ended.is_set(), "a message after the last"
        self.parts.append(part)
        self.state = (prompt, generated)
        self.begun.set()
        if part.finish is not Finish.RUNNING:
            self.ended.set()

    def refuse(self, refusal: CallRefused) -> None:
        assert not self.ended.is_set(), "a message after the last"
        self.refusal = refusal
        self.ended.set()

    def gone(self, among: int) -> bool:
        return self.left

    @property
    def ids(self) -> list[int]:
        return [one for part in self.parts for one in part.ids]

    def end(self) -> Finish | Fault:
        assert self.ended.wait(60), "no last message came"
        return self.refusal.fault if self.refusal else self.parts[-1].finish


def call(*ids: int, new: int = 4, first: bool = False) -> Call:
    options = Options(new, (), Sampling(False, 1.0, 1.0, 0, 1.0), 0, first=first)
    return Call(np.array(ids, np.int32), options)


class Process:
    """What the engine is in: `ended` with a reason, `lines` for people, `figures` that are told."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.over = threading.Event()
        self.lines: list[str] = []
        self.told = 0
        self.again = 0
        self.told_all = threading.Event()
        self.fault: Exception | None = None

    def end(self, reason: str) -> None:
        self.ended.append(reason)
        self.over.set()

    def report(self, counts: Counts) -> float | None:
        """Of the first `again` tellings it keeps something back."""
        self.told += 1
        if self.fault is not None:
            raise self.fault
        if self.told <= self.again:
            return 0.001
        self.told_all.set()
        return None


@contextmanager
def running(
    make: Callable[[], CountingPipeline] = CountingPipeline,
    process: Process | None = None,
    **changes: int,
) -> Iterator[Engine]:
    settings = GenerationSettings(**{**vars(SETTINGS), **changes})
    around = process or Process()
    engine = Engine(make, settings, around.lines.append, around.end, around.report)
    try:
        yield engine
    finally:
        engine.close()


def submitted(engine: Engine, *calls: Call) -> list[Caller]:
    callers = [Caller() for _ in calls]
    for one, caller in zip(calls, callers, strict=True):
        engine.submit(one, caller)
    return callers


def test_every_call_gets_its_tokens_and_their_count() -> None:
    with running() as engine:
        callers = submitted(engine, call(1, 2), call(10), call(20, 21, 22, new=9))
        assert [one.end() for one in callers] == [Finish.LENGTH] * 3
        assert [one.ids for one in callers] == [[3, 4, 5, 6], [11, 12, 13, 14], [*range(23, 32)]]
        assert [one.state for one in callers] == [(2, 4), (1, 4), (3, 9)]
    assert engine.counts.finished == 3
    assert engine.counts.new_tokens == 17
    assert (engine.counts.running, engine.counts.waiting) == (0, 0)


def test_the_first_token_is_sent_at_once_and_later_ones_gathered_where_many_run() -> None:
    with running() as engine:
        few = submitted(engine, call(1, new=20))[0]
        few.end()
        assert len(few.parts) == 20
        many = submitted(engine, *[call(one, new=20) for one in range(6)])
        for one in many:
            one.end()
            assert len(one.parts[0].ids) == 1
            assert len(one.parts) < 10
            assert len(one.ids) == 20


def test_no_more_run_than_may_and_than_the_cache_holds() -> None:
    pipelines: list[CountingPipeline] = []

    def make() -> CountingPipeline:
        pipelines.append(CountingPipeline())
        return pipelines[-1]

    with running(make, max_running=3) as engine:
        for one in submitted(engine, *[call(one) for one in range(10)]):
            assert one.end() is Finish.LENGTH
    assert pipelines[0].most == 3
    with running(make, kv_blocks=4) as engine:
        # Two blocks each, of prompt and new tokens together.
        for one in submitted(engine, *[call(*[1] * 30, new=10) for _ in range(6)]):
            assert one.end() is Finish.LENGTH
    assert pipelines[1].most == 2


@pytest.mark.parametrize(
    ("blocks", "runs", "reserved"),
    # Of the second nothing is left for the next, though a fourth is nobody's.
    [(200_000, 3, 0.45), (80_000, 2, 1.0)],
)
def test_what_is_reserved_is_told_and_not_what_is_used(
    blocks: int, runs: int, reserved: float
) -> None:
    """By it calls are let in, and an alert on what is used would be silent while they wait."""
    long = call(1, new=30_000 * 32 - 1)
    with running(
        lambda: CountingPipeline(blocks=blocks), max_running=3, kv_blocks=blocks
    ) as engine:
        # Its thread takes all of them at once.
        with engine._news:
            callers = submitted(engine, *[long] * 4)
        while sum(one.begun.is_set() for one in callers) < runs:
            time.sleep(0.001)
        told = engine.counts.cache_reserved
        for one in callers:
            one.left = True
            one.end()
    assert told == pytest.approx(reserved)
    assert engine.counts.cache_reserved == 0


def test_what_a_health_check_has_of_its_own_room_is_not_reserved() -> None:
    long = call(7, new=50_000, first=True)
    with running(lambda: CountingPipeline(blocks=4_000), max_running=3, kv_blocks=4_000) as engine:
        [check] = submitted(engine, long)
        assert check.begun.wait(60)
        in_use = long.blocks - SPARE_BLOCKS
        told = engine.counts.cache_reserved
        check.left = True
        check.end()
    assert told == pytest.approx(in_use / 4_000)


@pytest.mark.parametrize("callers", [1, 50, 1_024, 100_000])
def test_asking_for_callers_takes_no_more_of_the_thread_the_more_there_are(callers: int) -> None:
    assert callers / ask_again_s(callers) <= 500
    assert ask_again_s(callers) >= ask_again_s(1) == 0.1


def test_how_often_callers_are_asked_for_is_told() -> None:
    together = f"{10_000 / ask_again_s(10_000):.0f} times a second"
    docs = Path(__file__).parent.parent.parent / "docs"
    for page, often in (("decisions/language-models.md", 2), ("reliability.md", 1)):
        assert " ".join((docs / page).read_text("utf-8").split()).count(together) == often, page


def test_who_left_is_cancelled_within_a_step_and_makes_room() -> None:
    with running(max_running=1, kv_blocks=10_000) as engine:
        first, waits, other = submitted(
            engine, call(1, new=50_000), call(2, new=50_000), call(3, new=2)
        )
        while not first.parts:
            time.sleep(0.001)
        first.left = waits.left = True
        assert first.end() is Finish.CANCELLED
        assert waits.end() is Finish.CANCELLED
        assert waits.ids == []
        assert other.end() is Finish.LENGTH
    assert engine.counts.cancelled == 2


@pytest.mark.parametrize("how", ["left", "lost"])
def test_who_comes_in_the_place_of_one_that_was_cancelled_has_room(how: str) -> None:
    """Each needs the whole cache, and the pipeline has the blocks until its next step is over."""
    tokens = 40_000
    blocks = call(1, new=tokens).blocks
    pause = threading.Event()
    with running(lambda: CountingPipeline(pause, blocks), kv_blocks=blocks) as engine:
        first = call(BAD_TAKE if how == "lost" else 1, new=tokens)
        cancelled, other = submitted(engine, first, call(*[2] * tokens, new=4))
        pause.set()
        if how == "left":
            assert cancelled.begun.wait(60)
            cancelled.left = True
        assert cancelled.end() is (Fault.INTERNAL if how == "lost" else Finish.CANCELLED)
        assert other.end() is Finish.LENGTH
    assert engine.counts.cancelled + engine.counts.failed == 1


@pytest.mark.parametrize("bad", [BAD_START, BAD_TAKE])
def test_a_fault_of_one_call_ends_that_one_only(bad: int) -> None:
    with running() as engine:
        before, wrong, after = submitted(engine, call(1, new=30), call(bad), call(5, new=30))
        assert wrong.end() is Fault.INTERNAL
        assert "places in code" not in str(wrong.refusal)
        assert [before.end(), after.end()] == [Finish.LENGTH] * 2
    assert engine.counts.rebuilt == 0


def test_a_step_that_raises_ends_all_that_run_and_the_pipeline_is_built_again() -> None:
    pause = threading.Event()
    with running(lambda: CountingPipeline(pause)) as engine:
        callers = submitted(engine, call(1, new=30), call(BAD_STEP), call(5, new=30))
        pause.set()
        ends = [one.end() for one in callers]
        assert Fault.INTERNAL in ends
        assert callers[1].end() is Fault.INTERNAL
        assert "failed in a step: RuntimeError: the step is broken" in str(callers[1].refusal)
        assert submitted(engine, call(7))[0].end() is Finish.LENGTH
    assert engine.counts.rebuilt == 1


def test_the_old_pipeline_has_gone_before_another_is_built() -> None:
    """Its weights and its cache: there may be room for one."""
    made: list[weakref.ref[CountingPipeline]] = []
    left: list[bool] = []

    def make() -> CountingPipeline:
        left.extend(one() is not None for one in made)
        pipeline = CountingPipeline()
        made.append(weakref.ref(pipeline))
        return pipeline

    with running(make) as engine:
        caller = submitted(engine, call(BAD_STEP))[0]
        assert caller.end() is Fault.INTERNAL
        assert submitted(engine, call(7))[0].end() is Finish.LENGTH
    assert left == [False]


def once() -> Callable[[], CountingPipeline]:
    """Makes one pipeline, and then has no memory for another."""
    made: list[CountingPipeline] = []

    def make() -> CountingPipeline:
        if made:
            raise MemoryError("no memory")
        made.append(CountingPipeline())
        return made[0]

    return make


def test_an_engine_that_cannot_be_built_again_tells_everybody_and_ends_the_process() -> None:
    process = Process()
    with running(once(), process, max_running=1) as engine:
        callers = submitted(engine, call(BAD_STEP), call(1), call(2))
        assert callers[0].end() is Fault.INTERNAL
        for one in (*callers[1:], *submitted(engine, call(3))):
            assert one.end() is Fault.UNAVAILABLE
            # As Triton says of a process that has ended.
            assert "is not healthy: MemoryError: no memory" in str(one.refusal)
        assert process.over.wait(60)
    assert process.ended == ["MemoryError: no memory"]


class Unheard(Caller):
    """Cannot be told anything."""

    def refuse(self, refusal: CallRefused) -> None:
        super().refuse(refusal)
        raise RuntimeError("not sent")


def test_one_that_cannot_be_told_leaves_nobody_else_without_a_word() -> None:
    with running(CountingPipeline) as engine:
        callers = [Unheard(), Caller()]
        # Its thread takes both or none: one alone would have failed before the other came.
        with engine._news:
            for one, caller in zip((call(BAD_STEP), call(1)), callers, strict=True):
                engine.submit(one, caller)
        assert [one.end() for one in callers] == [Fault.INTERNAL] * 2
        assert submitted(engine, call(7))[0].end() is Finish.LENGTH


def test_a_pipeline_that_cannot_say_whether_it_is_busy_is_built_again() -> None:
    class Unsure(CountingPipeline):
        def busy(self) -> bool:
            if self.steps == 2:
                raise RuntimeError("not known")
            return super().busy()

    process = Process()
    with running(Unsure, process) as engine:
        assert submitted(engine, call(1, new=9))[0].end() is Fault.INTERNAL
        assert submitted(engine, call(1, new=1))[0].end() is Finish.LENGTH
    assert (engine.counts.rebuilt, process.ended) == (1, [])


def test_figures_that_cannot_be_told_end_no_sequence() -> None:
    process = Process()
    process.fault = RuntimeError("no page")
    with running(process=process) as engine:
        assert submitted(engine, call(1))[0].end() is Finish.LENGTH
        assert submitted(engine, call(2))[0].end() is Finish.LENGTH
    assert (process.told, process.ended) == (1, [])
    assert process.lines == ["no more figures are told: RuntimeError: no page"]


def test_what_was_kept_back_is_told_though_nobody_comes() -> None:
    process = Process()
    process.again = 9
    with running(process=process) as engine:
        assert submitted(engine, call(1, new=1))[0].end() is Finish.LENGTH
        assert process.told_all.wait(60)
        assert submitted(engine, call(2))[0].end() is Finish.LENGTH
    assert engine.counts.finished == 2


def test_whatever_else_happens_to_the_thread_ends_the_process() -> None:
    class Leaving(CountingPipeline):
        def step(self) -> None:
            raise SystemExit(3)

    process = Process()
    with running(Leaving, process, max_running=1) as engine:
        callers = submitted(engine, call(1), call(2))
        assert [one.end() for one in callers] == [Fault.UNAVAILABLE] * 2
        assert process.over.wait(60)
        assert submitted(engine, call(3))[0].end() is Fault.UNAVAILABLE
    assert process.ended == ["SystemExit: 3"]


def test_too_many_that_wait_are_refused_with_both_numbers() -> None:
    pause = threading.Event()
    with running(lambda: CountingPipeline(pause), max_running=1, max_waiting=2) as engine:
        first = submitted(engine, call(1))[0]
        while not engine.counts.prompt_tokens:
            time.sleep(0.001)
        callers = submitted(engine, *[call(2)] * 3)
        assert callers[2].end() is Fault.UNAVAILABLE
        assert "2 calls wait, and 2 may" in str(callers[2].refusal)
        pause.set()
        assert [one.end() for one in (first, *callers[:2])] == [Finish.LENGTH] * 3
    assert engine.counts.refused == 1


@pytest.mark.parametrize("room", ["max_running", "kv_blocks"])
def test_who_has_a_place_does_not_count_among_those_that_wait(room: str) -> None:
    """They have not begun, since the thread is in a step: two have room, and one more may wait."""
    pause = threading.Event()
    most, blocks = (3, 8) if room == "max_running" else (6, 3)
    with running(
        lambda: CountingPipeline(pause), max_running=most, kv_blocks=blocks, max_waiting=1
    ) as engine:
        first = submitted(engine, call(1))[0]
        while not engine.counts.prompt_tokens:
            time.sleep(0.001)
        callers = submitted(engine, call(2), call(7, first=True), call(3), call(4), call(5))
        assert callers[4].end() is Fault.UNAVAILABLE
        assert "1 calls wait, and 1 may" in str(callers[4].refusal)
        pause.set()
        assert [one.end() for one in (first, *callers[:4])] == [Finish.LENGTH] * 5


@pytest.mark.parametrize("full", ["max_running", "kv_blocks"])
def test_a_health_check_waits_for_nobody(full: str) -> None:
    """Beside what has all places or the whole cache, and before all that may wait and do."""
    long = call(1, new=50_000)
    most, blocks = (1, 10_000) if full == "max_running" else (6, long.blocks)
    with running(max_running=most, kv_blocks=blocks, max_waiting=2) as engine:
        runs = submitted(engine, long)[0]
        assert runs.begun.wait(60)
        waiting = submitted(engine, call(2), call(3))
        checks = submitted(engine, *[call(7, new=8, first=True) for _ in range(2)])
        assert [one.end() for one in checks] == [Finish.LENGTH] * 2
        assert not any(one.begun.is_set() for one in waiting)
        runs.left = True
        assert [one.end() for one in (runs, *waiting)] == [Finish.CANCELLED, *[Finish.LENGTH] * 2]
    assert engine.counts.refused == 0


def test_a_health_check_that_waits_turns_nobody_away() -> None:
    pause = threading.Event()
    with running(lambda: CountingPipeline(pause), max_running=1, max_waiting=1) as engine:
        first = submitted(engine, call(1))[0]
        while not engine.counts.prompt_tokens:
            time.sleep(0.001)
        callers = submitted(engine, call(2, first=True), call(3), call(4))
        pause.set()
        ends = [one.end() for one in (first, *callers)]
        assert ends == [*[Finish.LENGTH] * 3, Fault.UNAVAILABLE]
        assert "1 calls wait, and 1 may" in str(callers[2].refusal)


@pytest.mark.parametrize("room", ["max_running", "kv_blocks"])
def test_a_health_check_takes_no_room_of_callers(room: str) -> None:
    """One who needs all of it begins beside a check, and no other caller beside both."""
    whole, small = call(*[1] * 30, new=200), call(2, new=2)
    most, blocks = (1, 10_000) if room == "max_running" else (6, whole.blocks)
    made: list[CountingPipeline] = []

    def make() -> CountingPipeline:
        made.append(CountingPipeline(blocks=blocks + SPARE_BLOCKS))
        return made[-1]

    with running(make, max_running=most, kv_blocks=blocks) as engine:
        # Its thread takes all of them at once.
        with engine._news:
            callers = submitted(engine, call(7, new=40, first=True), whole, small)
        assert [one.end() for one in callers] == [Finish.LENGTH] * 3
    assert made[0].most == 2


def test_of_several_health_checks_one_runs_beside_all_callers() -> None:
    """The pipeline has room for no more."""
    made: list[CountingPipeline] = []

    def make() -> CountingPipeline:
        made.append(CountingPipeline(blocks=8 + SPARE_BLOCKS))
        return made[-1]

    checks = [call(*[7] * 30, new=30, first=True) for _ in range(3)]
    for most, callers in ((2, [call(1)] * 4), (8, [call(*[1] * 200, new=50)] * 2)):
        with running(make, max_running=most, kv_blocks=8) as engine:
            with engine._news:
                every = submitted(engine, *checks, *callers)
            assert [one.end() for one in every] == [Finish.LENGTH] * len(every)
    assert [one.most for one in made] == [3, 3]


@pytest.mark.parametrize(("most", "blocks"), [(1, 8), (6, 1)])
def test_a_health_check_that_runs_turns_nobody_away(most: int, blocks: int) -> None:
    """Beside it one has room, and one more may wait."""
    pause = threading.Event()
    with running(
        lambda: CountingPipeline(pause), max_running=most, kv_blocks=blocks, max_waiting=1
    ) as engine:
        check = submitted(engine, call(7, first=True))[0]
        while not engine.counts.prompt_tokens:
            time.sleep(0.001)
        callers = submitted(engine, call(1), call(2), call(3))
        assert callers[2].end() is Fault.UNAVAILABLE
        assert "1 calls wait, and 1 may" in str(callers[2].refusal)
        pause.set()
        assert [one.end() for one in (check, *callers[:2])] == [Finish.LENGTH] * 3


def test_closing_lets_what_runs_come_to_its_end() -> None:
    with running() as engine:
        callers = submitted(engine, *[call(1, new=60) for _ in range(8)])
    assert [one.end() for one in callers] == [Finish.LENGTH] * 8
