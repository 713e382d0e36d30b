"""The engine of a language model: sequences opened at its Triton, as many as may run here.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence as Rows
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from preprocess.first_call import note_call
from preprocess.generation.engines import ENGINES
from preprocess.generation.figures import TextFigures, Uncounted, tell_streams_limit
from preprocess.generation.openings import all_open, close_each, in_time, unless_left
from preprocess.generation.prompt import Prompt
from preprocess.generation.request import Wanted
from preprocess.generation.seats import Seats, Taken, seats
from preprocess.generation.sequence import Patience, Sequence, cut_by
from preprocess.generation.turns import Turns
from preprocess.passage import Departures, Passage
from preprocess.settings import PreprocessSettings
from preprocess.traced_calls import TracedStream
from preprocess.triton.clients import shared_client
from preprocess.triton.replies import Replies
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError, too_late
from transformer_serving.contract.generation import MAX_SEED, Generation, Options
from transformer_serving.contract.naming import triton_model_name

# What a sequence is asked with.
Row = tuple[Prompt, Options]
# Sequences of one request at the same time, where no stream wants all of them.
_AT_ONCE = 64


class Run(NamedTuple):
    """What the sequences of one request have in common."""

    wanted: Wanted
    library: Any
    patience: Patience
    passage: Passage
    taken: Taken


class TextEngine:
    """One bundle's engine under the endpoint's name, `serving_url` and the host's `version`."""

    def __init__(
        self, endpoint: Endpoint, generation: Generation, settings: PreprocessSettings,
        serving_url: str, version: str | None,
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._generation = generation
        self._row = ENGINES[generation.engine]
        self._settings = settings
        self.model = triton_model_name(serving_url, version)
        self._client = shared_client("grpc", settings.triton_grpc)
        name = f"{serving_url}/{version}" if version else serving_url
        self.departures = Departures(name, endpoint.bundle_version)
        self.figures = TextFigures(name)
        tell_streams_limit(settings.max_streams)

    async def is_ready(self) -> bool:
        """Whether Triton has this bundle's version."""
        return await self._client.is_ready(self.model, self._endpoint.bundle_version)

    async def start(
        self, prompts: Rows[Prompt], wanted: Wanted, library: Any, deadline: float, passage: Passage
    ) -> Turns:
        """Each prompt's sequences in order; of those that run already the first tokens are here:
        of a stream all, else the first one.

        Raises ServingError, also `left` when the caller does meanwhile.
        """
        count = len(prompts) * wanted.parameters.sequences
        # Of a health check a count of its own: it must not turn anybody away, nor be.
        room = Seats({}) if passage.golden else seats
        # The endpoint's rows begin with its first request all the same.
        figures = Uncounted() if passage.golden else self.figures
        # Before anything is made of what may be refused.
        most = self._settings.max_streams
        if not wanted.stream:
            # The others begin behind its first token, when they are read.
            count = 1
        taken = room.take(count, most, figures)
        patience = Patience(deadline, self._settings.token_gap_s, passage.caller)
        run = Run(wanted, library, patience, passage, taken)
        rows = self._rows(prompts, wanted, first=passage.goes_first)
        running = await self._sequences(run, *islice(rows, count))
        note_call()
        figures.first(time.monotonic() - passage.arrived)
        later = (partial(self._next, run, row) for row in rows)
        return Turns(running, later, lambda mine: room.share_of(_AT_ONCE, most, mine))

    async def _sequences(self, run: Run, *rows: Row) -> list[Sequence]:
        """Those of seats that are taken, which they give back."""
        try:
            asked = [self._row.request(*row, run.wanted.parameters.stop) for row in rows]
            opening = [self._open(one, run.patience, run.passage) for one in asked]
            replies = await unless_left(all_open(opening), run.passage.caller, close_each)
        except BaseException:
            run.taken.give_back(len(rows))
            raise
        seated = [run.taken.with_seat(one) for one in replies]
        return _made(
            [
                partial(self._sequence, run, *row, one)
                for row, one in zip(rows, seated, strict=True)
            ],
            seated,
        )

    def _sequence(self, run: Run, prompt: Prompt, options: Options, replies: Replies) -> Sequence:
        return Sequence(
            replies, self._row.reader(prompt), run.library, prompt.ids,
            run.wanted.parameters.stop, options, run.patience, run.taken.figures,
        )  # fmt: skip

    async def _next(self, run: Run, row: Row) -> Sequence:
        run.taken.take_another(self._settings.max_streams)
        return (await self._sequences(run, row))[0]

    def _rows(self, prompts: Rows[Prompt], wanted: Wanted, *, first: bool) -> Iterator[Row]:
        """One a sequence."""
        of_each = wanted.parameters.sequences
        for at, prompt in enumerate(prompts):
            for one in range(of_each):
                yield prompt, self._options(prompt, wanted, at * of_each + one, first=first)

    def _options(self, prompt: Prompt, wanted: Wanted, at: int, *, first: bool) -> Options:
        asked = wanted.parameters
        return Options(
            max_new_tokens=prompt.new_tokens,
            eos_ids=() if asked.ignore_eos else self._generation.eos_ids,
            sampling=asked.sampling,
            seed=(asked.seed + at) % (MAX_SEED + 1),
            logprobs=asked.logprobs,
            first=first,
        )

    async def _open(
        self, request: StreamedRequest, patience: Patience, passage: Passage
    ) -> Replies:
        if passage.trace is None:
            return await self._opened(request, patience)
        traced = TracedStream(passage.trace.trace)
        with traced.opening():
            replies = await self._opened(request, patience)
        replies.when_closed(lambda: traced.ended(failed=replies.failed))
        return replies

    async def _opened(self, request: StreamedRequest, patience: Patience) -> Replies:
        began, first_s = time.monotonic(), self._settings.first_token_s

        def left() -> float:
            # While tokens of the same request come, the engine is at it.
            now, since = time.monotonic(), max(began, patience.came)
            return min(patience.deadline, since + first_s) - now

        left_s = patience.deadline - began
        if left_s <= 0:
            raise too_late()
        bundle = self._endpoint.bundle_version
        opening = self._client.open(self.model, bundle, request, left_s, patience.arrived)
        try:
            return await in_time(opening, left, Replies.close)
        except TimeoutError:
            if time.monotonic() >= patience.deadline:
                raise too_late() from None
            raise ServingError(
                "deadline",
                "the first token did not come in time; TRANSFORMER_SERVING_FIRST_TOKEN_S sets how "
                "long is waited",
                limit=f"{first_s:g} s",
            ) from None


def _made(making: Rows[Callable[[], Sequence]], replies: Rows[Replies]) -> list[Sequence]:
    """Every one of them; where one fails none stays open, nor keeps its seat."""
    made: list[Sequence] = []
    try:
        for make in making:
            made.append(make())
    except BaseException as error:
        for sequence in made:
            sequence.close(cut_by(error))
        for one in replies:
            one.close(failed=True)
        raise
    return made
