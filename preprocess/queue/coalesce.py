"""Texts of many requests into few engine calls: what waits while a call runs leaves together.

No timer: an idle engine is called at once, after a few turns of the loop in which the requests
that have already arrived may still join. Answers return to exactly their own request, also when
one text is bad or a deadline passes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from preprocess.first_call import note_call
from preprocess.passage import Asker
from preprocess.queue.admission import Admission, Newcomer, Share, check_wait
from preprocess.queue.dispatch import Dispatch
from preprocess.queue.impatience import SOON_S
from preprocess.queue.narrowing import answer_all
from preprocess.queue.pace import Pace
from preprocess.queue.pulse import Pulse
from preprocess.queue.ticket import Stay, Text, Ticket
from preprocess.queue.waiting import Batch, WaitingTexts
from preprocess.rows import pad, rows_of
from preprocess.stats import DEADLINE, DISCONNECT, GIVEN_UP, EndpointFigures
from preprocess.tensors import Array, Tensor
from preprocess.tokens import Encoded
from preprocess.traced_calls import TracedTickets, traced_call
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError, too_late
from transformer_serving.contract.worker.request_context import why_nobody_waits

# Turns of the loop to wait for more texts while the queue still grows.
GROW_TURNS = 8
# How long Triton may take for one call at all; its slot stays taken until it answers, because
# an engine that is late is still working.
CALL_LIMIT_S = 300.0


class Call(Protocol):
    """One call of one model version; `TritonClient.infer` with the model already named."""

    async def __call__(self, inputs: list[Tensor], deadline: float) -> list[Array]: ...


@dataclass(eq=False)
class Coalescer:
    """The queue in front of one model version, used from one event loop.

    `slots` says how many calls may run now.
    """

    endpoint: Endpoint
    engine: Call
    admission: Admission
    slots: Callable[[], int]
    figures: EndpointFigures
    dispatch: Dispatch = field(init=False)
    _pulse: Pulse = field(default_factory=Pulse)
    _share: Share = field(default_factory=Share)
    _in_flight: int = 0
    # What is to be answered before this moment cannot be, of what is taken now.
    _ends: float = 0.0
    _starting: bool = False
    # To look again when who is young now is older; and when that is, on the loop's clock: what
    # uvloop gives for a wait of less than a millisecond cannot say it.
    _timer: asyncio.Handle | None = None
    _looks_again: float = 0.0
    _traced: TracedTickets = field(default_factory=dict)
    # The loop holds tasks weakly: one that nobody else holds may vanish while it waits.
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.endpoint.limits
        self._waiting: WaitingTexts[Text] = WaitingTexts(
            self.endpoint.tokens.buckets, limits.max_batch_size, limits.max_call_tokens
        )
        self.dispatch = Dispatch(self._waiting, Pace(self._waiting.call_cost))

    def check_wait(self, asker: Asker, deadline: float, encoded: Sequence[Encoded] = ()) -> None:
        """Raises ServingError `overloaded` where this request would wait too long.

        Also before it is tokenized: a refusal must cost little. Never of one that is alone: a
        golden request that runs is no crowd, whatever is known of the engine's rate.
        """
        if asker.golden or self.has_room():
            return
        now = time.monotonic()
        left = deadline - now
        if left <= 0:
            raise too_late()
        newcomer = Newcomer.of(encoded, left if asker.own_deadline else None)
        limit_s, free, pace = self.admission.max_wait_s, self._is_free(), self.dispatch.pace
        self._pulse.feel(pace, now)
        check_wait(newcomer, self._waiting, pace, limit_s, now, free=free)

    def has_room(self) -> bool:
        """Whether a call could leave at once, and not to wait behind another."""
        if not self.admission.tokens:
            return True
        return not len(self._waiting) and self._is_free()

    def _is_free(self) -> bool:
        pace = self.dispatch.pace
        if pace.waits_behind and pace.free_s(time.monotonic()):
            return False
        # One that is about to leave has its slot, and room for more.
        return self._starting or self._in_flight < self.slots()

    async def infer(self, encoded: Sequence[Encoded], deadline: float, asker: Asker) -> Stay:
        """What becomes of a request's texts, with its times: rows, or the error that ended it.

        `deadline` is on time.monotonic's clock: what is late is answered with `deadline` at once,
        while the engine's call goes on for the others. So is what cannot be answered in time any
        more when its turn comes.
        """
        ticket = Ticket.of(encoded, asker.texts, deadline, golden=asker.golden)
        if not encoded:
            return ticket.stay()
        if asker.trace is not None:
            self._traced[ticket] = asker.trace
        try:
            if asker.golden:
                # Neither refused nor counted: a health check must not turn callers away.
                await self._wait(ticket, encoded, asker)
                return ticket.stay()
            self._check_wait(ticket, encoded, asker)
            taken = self.admission.enter(self._share, ticket.tokens, self._wait_s)
            try:
                await self._wait(ticket, encoded, asker)
            finally:
                self.admission.leave(self._share, taken)
        except Exception as error:
            return ticket.stay(error)
        finally:
            if self._traced:
                self._traced.pop(ticket, None)
        return ticket.stay()

    def _wait_s(self) -> float:
        """Seconds until all that waits is answered."""
        return self.dispatch.wait_s(time.monotonic(), free=self._is_free())

    async def _wait(self, ticket: Ticket, encoded: Sequence[Encoded], asker: Asker) -> None:
        """Until every text has its row. Raises what the ticket failed with."""
        caller = asker.caller
        if caller is not None:
            if caller.done():
                error = why_nobody_waits(caller)
                self._abandon_by(ticket, error)
                raise error
            left = partial(self._left, ticket)
            caller.add_done_callback(left)
        ticket.stand_in(self._waiting, encoded, first=asker.goes_first)
        self.dispatch.impatience.came(ticket.came)
        self.wake()
        # Cheaper than a timeout's context, which also has to tell its own cancellation apart.
        seconds = max(0.0, ticket.deadline - ticket.came)
        timer = asyncio.get_running_loop().call_later(seconds, self._late, ticket)
        try:
            await ticket.future
        except asyncio.CancelledError:
            # A server that cancels the requests of callers that left.
            self._abandon(ticket, DISCONNECT)
            raise
        finally:
            timer.cancel()
            if caller is not None:
                caller.remove_done_callback(left)
            if ticket.missing:
                ticket.give_up(self._waiting)

    def _check_wait(self, ticket: Ticket, encoded: Sequence[Encoded], asker: Asker) -> None:
        """Raises as check_wait does; what is late by now is given up, as it is in an idle queue."""
        try:
            self.check_wait(asker, ticket.deadline, encoded)
        except ServingError as error:
            self._abandon_by(ticket, error)
            raise

    def _late(self, ticket: Ticket) -> None:
        if ticket.fail(self._waiting, too_late()):
            self._abandon(ticket, DEADLINE)

    def _left(self, ticket: Ticket, caller: asyncio.Future[None]) -> None:
        now = time.monotonic()
        self.dispatch.impatience.left(now - ticket.came, now)
        error = why_nobody_waits(caller)
        if ticket.fail(self._waiting, error):
            self._abandon_by(ticket, error)

    def _abandon_by(self, ticket: Ticket, error: ServingError) -> None:
        if reason := GIVEN_UP.get(error.kind.code):
            self._abandon(ticket, reason)

    def _abandon(self, ticket: Ticket, reason: str) -> None:
        if not ticket.golden:
            self.figures.abandoned(reason, ticket.texts)

    def _can_end(self, text: Text) -> bool:
        """Whether a call that leaves now may answer it in time; what cannot is late already."""
        if text.ticket.deadline >= self._ends:
            return True
        self._late(text.ticket)
        return False

    def _take(self) -> Batch[Text] | None:
        now = time.monotonic()
        self._ends = now + self.dispatch.ends_s(now)
        return self.dispatch.take(now, self._can_end, alone=self._in_flight == 1)

    def wake(self) -> None:
        """There may be more texts or slots than there were, as when a Triton is back."""
        # In this order: who asks for slots has those Tritons looked for that lack the model.
        if self._starting or not len(self._waiting) or self._in_flight >= self.slots():
            return
        if self._in_flight:
            now = time.monotonic()
            if hold_s := self.dispatch.hold_s(now):
                self._wake_later(hold_s)
                return
            is_ready = self.dispatch.is_ready(now)
            if is_ready is not None and not self._waiting.has(is_ready):
                self._wake_later(SOON_S)
                return
        self._starting = True
        # It is of many requests, and may outlive the one that woke it by hours.
        task = asyncio.get_running_loop().create_task(self._run(), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wake_later(self, seconds: float) -> None:
        """A call that runs and hangs must not hold up who may leave by then."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is not None:
            if self._looks_again <= when:
                return
            self._timer.cancel()
        self._looks_again = when
        self._timer = loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.wake()

    async def _run(self) -> None:
        """Take what waits and call the engine, until nothing waits."""
        self._in_flight += 1
        try:
            while True:
                await self._grow()
                self._starting = False
                if self._in_flight > 1 and self.dispatch.hold_s(time.monotonic()):
                    return
                batch = self._take()
                if batch is None:
                    return
                self.wake()
                await answer_all(batch.items, batch.length, self._try, self._fail)
                if not len(self._waiting) or self._in_flight > self.slots():
                    # Who comes next begins a call anew; and where a Triton went away, the calls
                    # that still run are enough.
                    return
        finally:
            self._starting = False
            self._in_flight -= 1
            self.wake()

    async def _grow(self) -> None:
        for _ in range(GROW_TURNS):
            size = len(self._waiting)
            await asyncio.sleep(0)
            if len(self._waiting) == size:
                return

    async def _try(self, texts: list[Text], length: int) -> Exception | None:
        """One engine call. The error, or None after every text has its row."""
        encoded = [text.encoded for text in texts]
        tokens = self._tell(texts, length)
        try:
            tensors = pad(encoded, length, self.endpoint.inputs, self.endpoint.tokens)
            if not self._traced:
                outputs = await self._timed(tensors, tokens)
            else:
                with traced_call(self._traced, texts, tokens, length):
                    outputs = await self._timed(tensors, tokens)
            rows = rows_of(outputs, encoded, self.endpoint)
        except Exception as error:
            # Whatever it is, somebody waits for these texts and must hear of it.
            return error
        for text, row in zip(texts, rows, strict=True):
            text.answer(row)
        return None

    async def _timed(self, tensors: list[Tensor], tokens: int) -> list[Array]:
        """The engine's outputs; its time counts where it answers."""
        began = time.monotonic()
        pace = self.dispatch.pace
        running = pace.begin(tokens, began)
        self._pulse.keep(pace, began)
        answered = False
        try:
            outputs = await self.engine(tensors, began + CALL_LIMIT_S)
            answered = True
            note_call()
            return outputs
        except ServingError as error:
            if error.kind.code != "deadline":
                raise
            # It was the call's own, and no caller's.
            raise ServingError(
                "deadline", f"the engine did not answer a call within {CALL_LIMIT_S:g} s"
            ) from None
        finally:
            pace.end(running, time.monotonic(), answered=answered)

    def _tell(self, texts: list[Text], length: int) -> int:
        """The call to the figures, and its time to the tickets that leave for the first time.

        The call's tokens, without padding.
        """
        now = time.monotonic()
        tokens = golden_tokens = golden = 0
        for text in texts:
            tokens += text.length
            ticket = text.ticket
            ticket.left = ticket.left or now
            if ticket.golden:
                golden, golden_tokens = golden + 1, golden_tokens + text.length
        if others := len(texts) - golden:
            counted = tokens - golden_tokens
            self.figures.call(others, counted, others * length - counted)
        return tokens

    def _fail(self, texts: list[Text], error: Exception) -> None:
        for text in texts:
            text.ticket.fail(self._waiting, error)
