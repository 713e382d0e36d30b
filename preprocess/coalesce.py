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
from typing import Any, Protocol
from weakref import WeakValueDictionary

from contract.endpoint import Endpoint
from contract.errors import ServingError
from preprocess.passage import Passage
from preprocess.rows import Row, pad, unpad
from preprocess.stats import Figures, waiting_tokens
from preprocess.tensors import Array, Tensor
from preprocess.tokens import Encoded
from preprocess.triton_errors import too_late
from preprocess.waiting import WaitingTexts

# Turns of the loop to wait for more texts while the queue still grows.
GROW_TURNS = 8
# How long Triton may take for one call at all; its slot stays taken until it answers, because
# an engine that is late is still working.
CALL_LIMIT_S = 300.0


class Call(Protocol):
    """One call of one model version; `TritonClient.infer` with the model already named."""

    async def __call__(self, inputs: list[Tensor], deadline: float) -> list[Array]: ...


@dataclass(eq=False)
class Ticket:
    """One request in the queue: a row for each text, and who waits for all of them."""

    rows: list[Row | None]
    future: asyncio.Future[None]
    passage: Passage
    missing: int

    @property
    def done(self) -> bool:
        return self.future.done()

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def be_late(self) -> None:
        self.fail(too_late())


@dataclass(eq=False)
class Text:
    """One text of a ticket."""

    ticket: Ticket
    position: int
    encoded: Encoded

    @property
    def length(self) -> int:
        return len(self.encoded.ids)

    @property
    def done(self) -> bool:
        return self.ticket.done

    def answer(self, row: Row) -> None:
        ticket = self.ticket
        ticket.rows[self.position] = row
        ticket.missing -= 1
        if not ticket.missing and not ticket.future.done():
            ticket.passage.answered = time.monotonic()
            ticket.future.set_result(None)


@dataclass
class Admission:
    """Tokens that wait or are being computed, over all endpoints of the worker."""

    limit: int
    tokens: int = 0
    gauge: Any = field(default_factory=waiting_tokens)

    def enter(self, tokens: int) -> None:
        """Count a request in. Raises ServingError `overloaded`; an idle worker takes anything."""
        if self.tokens and self.tokens + tokens > self.limit:
            raise ServingError(
                "overloaded",
                "too many tokens wait for the engine; try again shortly",
                limit=self.limit,
                got=self.tokens + tokens,
            )
        self.tokens += tokens
        self.gauge.set(self.tokens)

    def leave(self, tokens: int) -> None:
        self.tokens -= tokens
        self.gauge.set(self.tokens)


@dataclass(eq=False)
class Coalescer:
    """The queue in front of one model version, used from one event loop.

    `slots` says how many calls may run now.
    """

    endpoint: Endpoint
    engine: Call
    admission: Admission
    slots: Callable[[], int]
    figures: Figures
    _in_flight: int = 0
    _starting: bool = False
    # The loop holds tasks weakly: one that nobody else holds may vanish while it waits.
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.endpoint.limits
        self._waiting: WaitingTexts[Text] = WaitingTexts(
            self.endpoint.tokens.buckets, limits.max_batch_size, limits.max_call_tokens
        )

    async def infer(
        self, encoded: Sequence[Encoded], deadline: float, passage: Passage
    ) -> list[Row]:
        """One row a text, in order. Raises ServingError.

        `deadline` is on time.monotonic's clock: what is late is answered with `deadline` at once,
        while the engine's call goes on for the others.
        """
        if not encoded:
            return []
        passage.tokenized = time.monotonic()
        passage.texts = len(encoded)
        passage.tokens = tokens = sum(len(text.ids) for text in encoded)
        if passage.golden:
            # Neither refused nor counted: a health check must not turn callers away.
            return await self._wait(encoded, deadline - passage.tokenized, passage)
        self.admission.enter(tokens)
        try:
            return await self._wait(encoded, deadline - passage.tokenized, passage)
        finally:
            self.admission.leave(tokens)

    async def _wait(
        self, encoded: Sequence[Encoded], seconds: float, passage: Passage
    ) -> list[Row]:
        loop = asyncio.get_running_loop()
        ticket = Ticket([None] * len(encoded), loop.create_future(), passage, len(encoded))
        for position, text in enumerate(encoded):
            self._waiting.push(Text(ticket, position, text))
        self._wake()
        # Cheaper than a timeout's context, which also has to tell its own cancellation apart.
        timer = loop.call_later(max(0.0, seconds), ticket.be_late)
        try:
            await ticket.future
        finally:
            timer.cancel()
            # A caller that was cancelled wants no row any more.
            ticket.future.cancel()
            if ticket.missing:
                self._waiting.given_up(ticket.missing)
        return [row for row in ticket.rows if row is not None]

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
                batch = self._waiting.take()
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
            _fail(texts, error)
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
            _fail(texts, error)
            return
        half = len(texts) // 2
        await self._halve(texts[:half], length)
        await self._halve(texts[half:], length)

    async def _try(self, texts: list[Text], length: int) -> Exception | None:
        """One engine call. The error, or None after every text has its row."""
        encoded = [text.encoded for text in texts]
        self._tell(texts, length)
        try:
            tensors = pad(encoded, length, self.endpoint.inputs, self.endpoint.tokens)
            outputs = await self.engine(tensors, time.monotonic() + CALL_LIMIT_S)
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

    def _tell(self, texts: list[Text], length: int) -> None:
        """The call to the figures, and its time to the requests that leave for the first time."""
        now = time.monotonic()
        tokens = 0
        only_golden = True
        for text in texts:
            tokens += text.length
            passage = text.ticket.passage
            passage.left = passage.left or now
            only_golden = only_golden and passage.golden
        if not only_golden:
            self.figures.call(len(texts), tokens, len(texts) * length - tokens)


def _wanted(texts: list[Text]) -> list[Text]:
    return [text for text in texts if not text.done]


def _may_be_one_texts(error: Exception) -> bool:
    return isinstance(error, ServingError) and error.kind.code == "engine_failed"


def _fail(texts: list[Text], error: Exception) -> None:
    for text in texts:
        text.ticket.fail(error)


_shared: WeakValueDictionary[tuple[object, ...], Coalescer] = WeakValueDictionary()


def shared_coalescer(
    key: tuple[object, ...],
    endpoint: Endpoint,
    engine: Call,
    admission: Admission,
    slots: Callable[[], int],
    figures: Figures,
) -> Coalescer:
    """The loop's one queue for this engine, however often the host rebuilds the Preprocess."""
    full_key = (asyncio.get_running_loop(), *key)
    coalescer = _shared.get(full_key)
    if coalescer is None:
        coalescer = Coalescer(endpoint, engine, admission, slots, figures)
        _shared[full_key] = coalescer
    return coalescer
