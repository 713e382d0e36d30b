"""Texts of many requests into few engine calls: what waits while a call runs leaves together.

No timer: an idle engine is called at once, after a few turns of the loop in which the requests
that have already arrived may still join. Answers return to exactly their own request, also when
one text is bad or a deadline passes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from preprocess.admission import SURE, Admission, Newcomer, check_wait
from preprocess.pace import Pace
from preprocess.passage import Asker
from preprocess.rows import pad, unpad
from preprocess.stats import DEADLINE, DISCONNECT, EndpointFigures
from preprocess.tensors import Array, Tensor
from preprocess.ticket import Stay, Text, Ticket
from preprocess.tokens import Encoded
from preprocess.waiting import Batch, WaitingTexts
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError, caller_left, too_late

# Turns of the loop to wait for more texts while the queue still grows.
GROW_TURNS = 8
# How long Triton may take for one call at all; its slot stays taken until it answers, because
# an engine that is late is still working.
CALL_LIMIT_S = 300.0
# A slow engine's calls are cut to about so long, for who waits behind them.
LONG_CALL_S = 0.25


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
    pace: Pace = field(default_factory=Pace)
    _in_flight: int = 0
    # What is to be answered before this moment cannot be, of what is taken now.
    _ends: float = 0.0
    _starting: bool = False
    # The loop holds tasks weakly: one that nobody else holds may vanish while it waits.
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.endpoint.limits
        self._waiting: WaitingTexts[Text] = WaitingTexts(
            self.endpoint.tokens.buckets, limits.max_batch_size, limits.max_call_tokens
        )

    def check_wait(self, asker: Asker, deadline: float, encoded: Sequence[Encoded] = ()) -> None:
        """Raises ServingError `overloaded` where this request would wait too long.

        Also before it is tokenized: a refusal must cost little. Never of one that is alone: a
        golden request that runs is no crowd, whatever is known of the engine's rate.
        """
        waiting = self._waiting
        if asker.golden or not self.admission.tokens:
            return
        if not len(waiting) and self._in_flight < self.slots():
            return
        now = time.monotonic()
        left = deadline - now
        if left <= 0:
            raise too_late()
        newcomer = Newcomer(
            left if asker.own_deadline else None,
            sum(len(text.ids) for text in encoded),
            len(encoded[-1].ids) if encoded else 0,
        )
        check_wait(newcomer, waiting, self.pace, self.admission.max_wait_s, now)

    async def infer(self, encoded: Sequence[Encoded], deadline: float, asker: Asker) -> Stay:
        """What becomes of a request's texts, with its times: rows, or the error that ended it.

        `deadline` is on time.monotonic's clock: what is late is answered with `deadline` at once,
        while the engine's call goes on for the others. So is what cannot be answered in time any
        more when its turn comes.
        """
        ticket = Ticket.of(encoded, asker.golden, deadline)
        if not encoded:
            return ticket.stay()
        try:
            if asker.golden:
                # Neither refused nor counted: a health check must not turn callers away.
                await self._wait(ticket, encoded, asker.caller)
                return ticket.stay()
            self.check_wait(asker, deadline, encoded)
            wait_s = self.pace.wait_s(self._waiting.tokens, ticket.came)
            self.admission.enter(ticket.tokens, wait_s)
            try:
                await self._wait(ticket, encoded, asker.caller)
            finally:
                self.admission.leave(ticket.tokens)
        except Exception as error:
            return ticket.stay(error)
        return ticket.stay()

    async def _wait(
        self, ticket: Ticket, encoded: Sequence[Encoded], caller: asyncio.Future[None] | None
    ) -> None:
        """Until every text has its row. Raises what the ticket failed with."""
        if caller is not None:
            if caller.done():
                self._abandon(ticket, DISCONNECT)
                raise caller_left()
            left = partial(self._left, ticket)
            caller.add_done_callback(left)
        ticket.stand_in(self._waiting, encoded)
        self._wake()
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

    def _late(self, ticket: Ticket) -> None:
        if ticket.fail(self._waiting, too_late()):
            self._abandon(ticket, DEADLINE)

    def _left(self, ticket: Ticket, caller: object) -> None:
        if ticket.fail(self._waiting, caller_left()):
            self._abandon(ticket, DISCONNECT)

    def _abandon(self, ticket: Ticket, reason: str) -> None:
        if not ticket.golden:
            self.figures.abandoned(reason, ticket.missing)

    def _can_end(self, text: Text) -> bool:
        """Whether a call that leaves now may answer it in time; what cannot is late already."""
        if text.ticket.deadline >= self._ends:
            return True
        self._late(text.ticket)
        return False

    def _take(self) -> Batch[Text] | None:
        pace = self.pace
        self._ends = 0.0
        if pace.calls:
            now = time.monotonic()
            self._ends = now + SURE * pace.call_ends_s(self._waiting.tokens, now)
        return self._waiting.take(self._can_end, pace.rate * LONG_CALL_S if pace.rate else inf)

    def _wake(self) -> None:
        if not self._starting and self._in_flight < self.slots() and len(self._waiting):
            self._starting = True
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        """Take what waits and call the engine, until nothing waits."""
        self._in_flight += 1
        try:
            while True:
                await self._grow()
                self._starting = False
                batch = self._take()
                if batch is None:
                    return
                self._wake()
                await self._call(batch.items, batch.length)
                if self._in_flight > self.slots():
                    # A Triton went away; the calls that still run are enough.
                    return
        finally:
            self._starting = False
            self._in_flight -= 1
            self._wake()

    async def _grow(self) -> None:
        for _ in range(GROW_TURNS):
            size = len(self._waiting)
            await asyncio.sleep(0)
            if len(self._waiting) == size:
                return

    async def _call(self, texts: list[Text], length: int) -> None:
        """Answer every text; an engine error of a joined call is narrowed to the bad text."""
        error = await self._try(texts, length)
        if error is None:
            return
        if len(texts) == 1 or not _may_be_one_texts(error):
            self._fail(texts, error)
            return
        await self._narrow(texts, length)

    async def _narrow(self, texts: list[Text], length: int) -> None:
        """Find one bad text with log2(n) calls, then answer the rest with one more.

        `suspects` is always known to hold a bad text: when one half is answered, the other holds
        it, and need not be tried as a whole.
        """
        suspects = _wanted(texts)
        rest: list[Text] = []
        while len(suspects) > 1:
            half = len(suspects) // 2
            first, second = suspects[:half], suspects[half:]
            error = await self._try(first, length)
            if error is None:
                suspects = second
            else:
                suspects, rest = first, rest + second
        await self._halve(suspects, length)
        await self._halve(rest, length)

    async def _halve(self, texts: list[Text], length: int) -> None:
        """Answer every text, in halves where they fail: 2n calls where each of n texts is bad."""
        texts = _wanted(texts)
        error = await self._try(texts, length) if texts else None
        if error is None:
            return
        if len(texts) == 1 or not _may_be_one_texts(error):
            self._fail(texts, error)
            return
        half = len(texts) // 2
        await self._halve(texts[:half], length)
        await self._halve(texts[half:], length)

    async def _try(self, texts: list[Text], length: int) -> Exception | None:
        """One engine call. The error, or None after every text has its row."""
        encoded = [text.encoded for text in texts]
        tokens = self._tell(texts, length)
        try:
            tensors = pad(encoded, length, self.endpoint.inputs, self.endpoint.tokens)
            outputs = await self._timed(tensors, tokens)
            if any(array.shape[:1] != (len(texts),) for array in outputs):
                raise ServingError("engine_failed", "the engine answered another number of texts")
            rows = [
                unpad(arrays, text.encoded, self.endpoint)
                for text, *arrays in zip(texts, *outputs, strict=True)
            ]
        except Exception as error:
            # Whatever it is, somebody waits for these texts and must hear of it.
            return error
        for text, row in zip(texts, rows, strict=True):
            text.answer(row)
        return None

    async def _timed(self, tensors: list[Tensor], tokens: int) -> list[Array]:
        """The engine's outputs; its time counts where it answers."""
        began = time.monotonic()
        self.pace.begin(tokens, began)
        answered = False
        try:
            outputs = await self.engine(tensors, began + CALL_LIMIT_S)
            answered = True
            return outputs
        finally:
            self.pace.end(tokens, time.monotonic(), answered=answered)

    def _tell(self, texts: list[Text], length: int) -> int:
        """The call to the figures, and its time to the tickets that leave for the first time.

        The call's tokens, without padding.
        """
        now = time.monotonic()
        tokens = 0
        only_golden = True
        for text in texts:
            tokens += text.length
            ticket = text.ticket
            ticket.left = ticket.left or now
            only_golden = only_golden and ticket.golden
        if not only_golden:
            self.figures.call(len(texts), tokens, len(texts) * length - tokens)
        return tokens

    def _fail(self, texts: list[Text], error: Exception) -> None:
        for text in texts:
            text.ticket.fail(self._waiting, error)


def _wanted(texts: list[Text]) -> list[Text]:
    return [text for text in texts if not text.done]


def _may_be_one_texts(error: Exception) -> bool:
    return isinstance(error, ServingError) and error.kind.code == "engine_failed"
