"""Long texts beside the loop: who is let in, and what becomes of work that nobody waits for."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from preprocess.passage import Passage
from preprocess.threads import OFF_LOOP_CHARACTERS, THREADS, Threads
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import GoldenBody

LONG = 10**6


class Held:
    """Work that is done when the test lets it; the names of what was begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.release = threading.Event()

    def __call__(self, name: str) -> str:
        self.begun.append(name)
        self.release.wait(60)
        return name


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    work = Held()
    yield work
    work.release.set()


def passage(caller: asyncio.Future[None] | None = None, body: Any = None) -> Passage:
    made = Passage(body)
    made.caller = caller
    return made


def ask(
    threads: Threads, work: Callable[[], Any], who: Passage | None = None, seconds: float = 60.0
) -> asyncio.Task[Any]:
    who = who or passage()
    deadline = time.monotonic() + seconds
    return asyncio.create_task(threads.run(LONG, work, who, deadline, 2.0))


async def full(threads: Threads, held: Held, waiting: int = 0) -> list[asyncio.Task[Any]]:
    """Every thread at work, and so many requests behind them."""
    tasks = [ask(threads, partial(held, f"{at}")) for at in range(THREADS + waiting)]
    async with asyncio.timeout(20):
        while len(held.begun) < THREADS:
            await asyncio.sleep(0.001)
    return tasks


async def given_up(tasks: list[asyncio.Task[Any]]) -> None:
    """Work that was begun and that nobody waits for any more."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def learned(threads: Threads, seconds: float = 1.0) -> None:
    """A million characters take so long, by what was measured."""
    for _ in range(2):
        running = threads.pace.begin(LONG, time.monotonic() - seconds)
        threads.pace.end(running, time.monotonic(), answered=True)


async def idle(threads: Threads) -> None:
    """Given up work is counted until its thread is free, which the loop hears of a little later."""
    async with asyncio.timeout(20):
        while threads.pace.calls:
            await asyncio.sleep(0.001)
    assert threads.pace.in_flight == 0


async def test_long_texts_leave_the_loop_and_short_ones_do_not() -> None:
    """The work waits for the loop itself: on the loop it would never end."""
    turned = threading.Event()
    asyncio.get_running_loop().call_soon(turned.set)

    def work() -> tuple[bool, bool]:
        return turned.wait(60), threading.current_thread() is threading.main_thread()

    threads, deadline = Threads(), time.monotonic() + 120
    for characters, on_loop in ((OFF_LOOP_CHARACTERS + 1, False), (OFF_LOOP_CHARACTERS, True)):
        found = await threads.run(characters, work, passage(), deadline, 2.0)
        assert found == (True, on_loop)


async def test_a_deadline_passes_also_before_a_thread_is_free(held: Held) -> None:
    threads = Threads()
    running = await full(threads, held)
    late = [ask(threads, partial(held, f"{at}"), seconds=0.2) for at in (THREADS, THREADS + 1)]
    outcomes = await asyncio.gather(*late, return_exceptions=True)
    assert [one.kind.code for one in outcomes if isinstance(one, ServingError)] == ["deadline"] * 2
    await given_up(running)
    # Nobody waits for the two that were begun, but their threads are taken.
    assert (threads.pace.calls, threads.pace.in_flight) == (2, 2 * LONG)
    held.release.set()
    # Two threads: the other two were never begun, and nobody waits for them.
    assert await ask(threads, lambda: sorted(held.begun)) == ["0", "1"]
    await idle(threads)


@pytest.mark.parametrize("characters", [1, LONG])
async def test_what_comes_behind_its_deadline_is_not_begun(held: Held, characters: int) -> None:
    """Not refused for who waits, either; a health check and a computed answer go on."""
    threads = Threads()
    tasks = await full(threads, held)
    begun: list[int] = []
    late = time.monotonic() - 1
    who = passage()
    who.own_deadline = True
    with pytest.raises(ServingError) as refused:
        await threads.run(characters, lambda: begun.append(1), who, late, 2.0)
    assert (refused.value.kind.code, begun) == ("deadline", [])
    await threads.run(1, lambda: begun.append(2), passage(body=GoldenBody()), late, 2.0)
    await threads.run(1, lambda: begun.append(3), passage(), late, None)
    assert begun == [2, 3]
    held.release.set()
    await asyncio.gather(*tasks)


async def test_who_comes_behind_given_up_work_is_told_that_it_takes_too_long(held: Held) -> None:
    threads = Threads()
    learned(threads, seconds=60)
    await given_up(await full(threads, held))
    hasty = passage()
    hasty.own_deadline = True
    with pytest.raises(ServingError) as caught:
        await ask(threads, partial(held, "in"), hasty, seconds=0.5)
    assert caught.value.kind.code == "overloaded"
    held.release.set()
    await idle(threads)
    assert await ask(threads, lambda: "in", hasty) == "in"


async def test_who_left_before_a_thread_was_free_costs_nothing(held: Held) -> None:
    threads = Threads()
    tasks = await full(threads, held)
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gone, stays = ask(threads, partial(held, "gone"), passage(caller)), ask(threads, lambda: "here")
    await asyncio.sleep(0)
    caller.set_result(None)
    with pytest.raises(ServingError) as caught:
        await gone
    assert caught.value.kind.code == "left"
    held.release.set()
    assert await stays == "here"
    assert await asyncio.gather(*tasks) == ["0", "1"]
    assert "gone" not in held.begun
    assert (threads.pace.calls, threads.pace.in_flight) == (0, 0)


async def test_a_cancelled_request_costs_nothing(held: Held) -> None:
    threads = Threads()
    *running, gone = await full(threads, held, waiting=1)
    gone.cancel()
    await asyncio.wait([gone])
    held.release.set()
    assert await ask(threads, lambda: sorted(held.begun)) == ["0", "1"]
    assert await asyncio.gather(*running) == ["0", "1"]
    assert (threads.pace.calls, threads.pace.in_flight) == (0, 0)


@pytest.mark.parametrize("turns", range(5))
async def test_a_refusal_that_comes_as_its_request_is_cancelled_is_not_cried_about(
    held: Held, turns: int
) -> None:
    """By asyncio, which writes a traceback of every error that nobody has looked at."""
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: complaints.append(told["message"]))
    threads = Threads()

    def refuse() -> None:
        held("refused")
        raise ServingError("impossible", "played")

    asked = ask(threads, refuse)
    while not held.begun:
        await asyncio.sleep(0.001)
    held.release.set()
    # The loop stands still until the thread is done, so that both come in turns that are counted.
    threads._pool.shutdown(wait=True)
    for _ in range(turns):
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])
    await idle(threads)
    del asked
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_what_would_wait_too_long_is_refused_at_once(held: Held) -> None:
    threads = Threads()
    learned(threads)
    tasks = await full(threads, held, waiting=1)
    refused, golden = ask(threads, lambda: "in"), ask(threads, lambda: "in", passage(None, GOLDEN))
    with pytest.raises(ServingError) as caught:
        await refused
    assert caught.value.kind.code == "overloaded"
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s == 3
    own = passage()
    own.own_deadline = True
    patient = ask(threads, lambda: "in", own)
    held.release.set()
    assert [await golden, await patient] == ["in", "in"]
    assert await asyncio.gather(*tasks) == ["0", "1", "2"]


async def test_a_free_thread_is_not_refused(held: Held) -> None:
    threads = Threads()
    running = threads.pace.begin(1, time.monotonic() - 1)
    threads.pace.end(running, time.monotonic(), answered=True)
    tasks = await full(threads, held)
    held.release.set()
    assert await asyncio.gather(*tasks) == ["0", "1"]


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    """As the machine does at its limit."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("running", range(THREADS))
async def test_what_no_thread_could_be_started_for_is_never_begun(
    running: int, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool has it in its queue all the same."""
    threads = Threads()
    tasks = [ask(threads, partial(held, f"{at}")) for at in range(running)]
    while len(held.begun) < running:
        await asyncio.sleep(0.001)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await ask(threads, partial(held, "for nobody"))
    assert threads.pace.calls == running
    held.release.set()
    assert await ask(threads, lambda: "in") == "in"
    await asyncio.gather(*tasks)
    assert held.begun == [f"{at}" for at in range(running)]
    await idle(threads)


async def test_after_a_limit_there_are_as_many_threads_as_ever(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool may take what it could not begin for threads that idle."""
    threads = Threads()
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        for _ in range(THREADS + 3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await ask(threads, lambda: "in")
    assert await ask(threads, lambda: "in") == "in"
    async with asyncio.timeout(60):
        tasks = await full(threads, held)
    held.release.set()
    await asyncio.gather(*tasks)


async def test_nothing_is_kept_of_what_no_thread_could_be_started_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = Threads()

    async def refused() -> weakref.ref[Any]:
        work = partial(str, "text")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await ask(threads, work)
        return weakref.ref(work)

    with monkeypatch.context() as patch:
        refuse_threads(patch)
        kept = await refused()
    # The loop itself holds the task until its turn is over.
    await asyncio.sleep(0)
    gc.collect()
    assert kept() is None


async def test_what_another_thread_has_begun_by_then_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = Threads()

    def submit(do: Callable[..., None], *given: Any) -> None:
        do(*given)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads._pool, "submit", submit)
    assert await ask(threads, lambda: "in") == "in"
    await idle(threads)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["stays", "leaves", "late", "cancelled", "fails"]), max_size=12))
def test_nothing_is_left_whatever_becomes_of_the_callers(fates: list[str]) -> None:
    asyncio.run(_every_fate(fates))


async def _every_fate(fates: list[str]) -> None:
    threads, release = Threads(), threading.Event()

    def work(fate: str) -> str:
        release.wait(60)
        if fate == "fails":
            raise ValueError
        return fate

    callers = [asyncio.get_running_loop().create_future() for _ in fates]
    tasks = [
        ask(threads, partial(work, fate), passage(caller), 0.01 if fate == "late" else 60)
        for fate, caller in zip(fates, callers, strict=True)
    ]
    await asyncio.sleep(0)
    for fate, caller, task in zip(fates, callers, tasks, strict=True):
        if fate == "leaves":
            caller.set_result(None)
        elif fate == "cancelled":
            task.cancel()
    hasty = [task for fate, task in zip(fates, tasks, strict=True) if fate not in _TO_THE_END]
    if hasty:
        await asyncio.wait(hasty)
    release.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for fate, outcome in zip(fates, outcomes, strict=True):
        code = getattr(getattr(outcome, "kind", None), "code", type(outcome).__name__)
        assert code == _ENDS[fate]
    await idle(threads)


GOLDEN = GoldenBody()
_TO_THE_END = ("stays", "fails")
_ENDS = {
    "stays": "str", "fails": "ValueError", "leaves": "left", "late": "deadline",
    "cancelled": "CancelledError",
}  # fmt: skip
