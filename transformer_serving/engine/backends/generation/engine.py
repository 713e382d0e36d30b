"""The engine thread: lets calls in, steps them together, sends what came, sees who has left.

One thread alone touches the pipeline; calls come to it through an inbox. Whatever happens, every
call gets a last message; where nothing can be computed any more the process ends.

Tested by tests/engine/test_generation_engine.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, takewhile

from transformer_serving.contract.error_line import in_ascii, named_line
from transformer_serving.contract.generation import Finish
from transformer_serving.engine.backends.generation.calls import Call, CallRefused, Fault
from transformer_serving.engine.backends.generation.counts import Counts
from transformer_serving.engine.backends.generation.sequences import (
    Answers,
    Part,
    Pipeline,
    Running,
    Waiting,
)
from transformer_serving.engine.backends.generation.settings import GenerationSettings
from transformer_serving.engine.backends.generation.spare_room import Room, room_left

# Up to so many sequences each token is a message of its own, which costs a tenth of a millisecond
# or more: only many sequences feel it.
_FEW = 4
# In Triton's words for a process that has ended, by which preprocess knows it too.
_DEAD = "the engine is not healthy"


class Engine:
    """`make` builds the pipeline, again after a step that raised; `log` takes lines for people.

    `end` ends the process, with a reason for people, once nothing can be computed any more.
    `report` says in how many seconds it is to be called again, though nothing comes till then.
    """

    def __init__(
        self,
        make: Callable[[], Pipeline],
        settings: GenerationSettings,
        log: Callable[[str], None],
        end: Callable[[str], None],
        report: Callable[[Counts], float | None] = lambda counts: None,
    ) -> None:
        self.counts = Counts()
        self._make = make
        self._settings = settings
        self._log = log
        self._end = end
        self._report = report
        self._pipeline: Pipeline | None = make()
        self._news = threading.Condition()
        self._inbox: deque[Waiting] = deque()
        self._ending = False
        self._dead: str | None = None
        # Of the engine thread alone.
        self._waiting: deque[Waiting] = deque()
        self._running: list[Running] = []
        self._blocks = 0
        # Of `_blocks` those of cancelled sequences, held until the pipeline's next step is over.
        self._held = 0
        self._again_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
        self._thread.start()

    def submit(self, call: Call, answers: Answers) -> None:
        """Queue a checked call. Refuses it where too many wait, or where the engine is dead."""
        with self._news:
            refusal = self._no_room(call)
            if refusal is None:
                self._inbox.append(Waiting(call, answers))
                self._news.notify()
        if refusal is not None:
            self.counts.refused += 1
            answers.refuse(refusal)

    def close(self) -> None:
        """Return when every sequence has ended by itself."""
        with self._news:
            self._ending = True
            self._news.notify()
        self._thread.join()
        self._pipeline = None

    def _no_room(self, call: Call) -> CallRefused | None:
        if self._dead is not None:
            return CallRefused(Fault.UNAVAILABLE, f"{_DEAD}: {self._dead}")
        most = self._settings.max_waiting
        if len(self._inbox) + len(self._waiting) < most or call.options.first:
            return None
        # Copied in one step, as the engine's thread goes on: health checks count for nobody.
        every = (*self._waiting, *self._inbox)
        callers = [one.call for one in every if not one.call.options.first]
        waiting = len(callers) - self._about_to_begin(callers)
        if waiting < most:
            return None
        return CallRefused(
            Fault.UNAVAILABLE, f"{waiting} calls wait, and {most} may; come back later"
        )

    def _about_to_begin(self, calls: Sequence[Call]) -> int:
        """How many have room, and wait for the step that runs to end or the thread to wake."""
        left = room_left(self._settings, self._running, self._blocks)
        needed = accumulate(call.blocks for call in calls[: left.places])
        return sum(1 for _ in takewhile(lambda blocks: blocks <= left.blocks, needed))

    def _run(self) -> None:
        """Nothing may end this thread and not the process: what comes later would wait for ever."""
        try:
            while self._round():
                self._tell()
            self._tell()
        except BaseException as error:
            self._die(_line(error))

    def _round(self) -> bool:
        """A turn, once there is one to do; False when all is done and the end was asked for.

        Raises what the pipeline that is built again does.
        """
        try:
            if not self._wait():
                return False
            self._turn()
            return True
        except Exception as error:
            reason = _line(error)
        # Not in the handler: the error's frames hold the old pipeline, with its weights and cache.
        self._start_anew(reason)
        return True

    def _wait(self) -> bool:
        """Until there is something to do or to tell; False when all is done and shall end."""
        with self._news:
            while not (self._inbox or self._waiting or self._running or self._busy()):
                if self._ending:
                    return False
                if not self._news.wait(self._again_s):
                    break
            for one in self._inbox:
                if one.call.options.first:
                    self._waiting.appendleft(one)
                else:
                    self._waiting.append(one)
            self._inbox.clear()
        return True

    def _busy(self) -> bool:
        return self._pipeline is not None and self._pipeline.busy()

    def _turn(self) -> None:
        """One step of all sequences, and what comes before and after it."""
        self._look_who_left()
        self._let_in()
        # Before the step, after which the blocks of what has ended are nobody's for a moment.
        self.counts.cache_reserved = self._reserved()
        if self._busy():
            assert self._pipeline is not None
            self._pipeline.step()
        self._blocks, self._held = self._blocks - self._held, 0
        now = time.monotonic()
        gap = self._settings.send_gap_s if len(self._running) > _FEW else 0.0
        for one in tuple(self._running):
            self._give(one, now, gap)

    def _let_in(self) -> None:
        """In the order of their coming, as long as all of each fits beside all of the others.

        So no sequence is ever pushed out of the cache by another one.
        """
        while self._waiting and self._has_room(self._waiting[0].call):
            self._start(self._waiting.popleft())

    def _has_room(self, call: Call) -> bool:
        left = self._left_for(call)
        return left.places > 0 and call.blocks <= left.blocks

    def _left_for(self, call: Call) -> Room:
        """A health check has room that callers have not: it says nothing of how many they are."""
        first = call.options.first
        return room_left(self._settings, self._running, self._blocks, first=first)

    def _reserved(self) -> float:
        """Of the cache's blocks; 1 where the call that is next waits for more than are left."""
        next_one = self._waiting[0].call if self._waiting else None
        if next_one is not None and next_one.blocks > self._left_for(next_one).blocks:
            return 1.0
        left = room_left(self._settings, self._running, self._blocks).blocks
        return min(1.0, 1.0 - left / self._settings.kv_blocks)

    def _start(self, waiting: Waiting) -> None:
        assert self._pipeline is not None
        try:
            handle = self._pipeline.start(waiting.call)
        except Exception as error:
            self._refuse((waiting,), Fault.INTERNAL, f"the engine refused it: {_line(error)}")
            return
        self._running.append(Running(waiting.call, waiting.answers, handle))
        self._blocks += waiting.call.blocks
        self.counts.prompt_tokens += len(waiting.call.ids)

    def _give(self, one: Running, now: float, gap: float) -> None:
        """Send what is due: the first tokens and the last at once, others when the gap is over."""
        before = one.generated
        try:
            finish = one.look().finish
        except Exception as error:
            self._cancel(one)
            self._refuse((one,), Fault.INTERNAL, f"the engine lost it: {_line(error)}")
            return
        self.counts.new_tokens += one.generated - before
        if finish is not Finish.RUNNING:
            self._drop(one)
            self.counts.finished += 1
            one.send(finish, now)
        elif one.unsent and now - one.sent_at >= gap:
            one.send(finish, now)

    def _look_who_left(self) -> None:
        now = time.monotonic()
        among = len(self._running) + len(self._waiting)
        for one in tuple(self._running):
            if one.answers.gone(among):
                self._cancel(one)
                self.counts.cancelled += 1
                one.send(Finish.CANCELLED, now)
        for waiting in [one for one in self._waiting if one.answers.gone(among)]:
            self._waiting.remove(waiting)
            self.counts.cancelled += 1
            waiting.answers.send(Part((), (), Finish.CANCELLED), len(waiting.call.ids), 0)

    def _cancel(self, one: Running) -> None:
        one.handle.cancel()
        self._running.remove(one)
        self._held += one.call.blocks

    def _drop(self, one: Running) -> None:
        self._running.remove(one)
        self._blocks -= one.call.blocks

    def _refuse(self, calls: Iterable[Running | Waiting], fault: Fault, reason: str) -> None:
        for one in calls:
            self.counts.failed += 1
            # One that cannot be told must not leave the others without a word.
            with suppress(Exception):
                one.answers.refuse(CallRefused(fault, reason))

    def _start_anew(self, reason: str) -> None:
        """End what runs, and build the pipeline again."""
        self._log(f"the engine failed in a step ({reason}); it is built again")
        running, self._running, self._blocks, self._held = self._running, [], 0, 0
        self._refuse(running, Fault.INTERNAL, f"the engine failed in a step: {reason}")
        # Their handles, and the cache, are of the old one: it goes before another takes as much.
        running.clear()
        self._pipeline = None
        self._pipeline = self._make()
        self.counts.rebuilt += 1

    def _die(self, reason: str) -> None:
        """Refuse everybody, and end the process: what comes then fails in Triton, which is how the
        controller finds that the model has to be loaded again (its dead_models)."""
        try:
            with self._news:
                self._dead = reason
                left: list[Running | Waiting] = [*self._running, *self._waiting, *self._inbox]
                self._inbox.clear()
            self._running, self._waiting = [], deque()
            self._refuse(left, Fault.UNAVAILABLE, f"{_DEAD}: {reason}")
            self._tell()
        finally:
            self._end(reason)

    def _tell(self) -> None:
        self.counts.running, self.counts.waiting = len(self._running), len(self._waiting)
        # The pipeline's own is of its last step, before that freed what had ended.
        using = self._pipeline if self._running else None
        if not (self._running or self._waiting):
            self.counts.cache_reserved = 0.0
        try:
            self.counts.cache_use = 0.0 if using is None else using.cache_use()
            self._again_s = self._report(self.counts)
        except Exception as error:
            # No figure is worth a text.
            self._report, self._again_s = lambda counts: None, None
            self._log(f"no more figures are told: {_line(error)}")


def _line(error: BaseException) -> str:
    """Of the characters that the stub's log takes."""
    return in_ascii(named_line(error))
