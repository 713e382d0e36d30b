"""The way of a request for text, one screen: as Preprocess, without rows, buckets and coalescing.

The engine batches token by token itself, so each sequence is a stream of its own: its first tokens
are awaited before a status is chosen, and what comes after them is sent as it comes.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

from preprocess.card import card_of
from preprocess.dialects.operation import Answered, Asked, Operation
from preprocess.garbage import keep_collections_short
from preprocess.generation.answer import StreamAnswer
from preprocess.generation.dialects import NO_WORK, Way, binary_part, operation_of, way_of
from preprocess.generation.dialects.tgi import list_tokens
from preprocess.generation.engine import TextEngine
from preprocess.generation.engines import ENGINES
from preprocess.generation.events import close_all, events_of
from preprocess.generation.openings import unless_left
from preprocess.generation.prompt import Prompt, read_prompts
from preprocess.generation.request import PROMPTS, TextTask, Wanted, read_wanted
from preprocess.generation.sequence import Sequence
from preprocess.generation.voice import Spoken, Voice
from preprocess.metrics_port import open_metrics_port
from preprocess.passage import Passage, internal_error
from preprocess.raw_body import as_meant
from preprocess.response import Answer, Reply, answer_body, answer_response, error_response
from preprocess.settings import read_settings
from preprocess.threads import render, threads
from preprocess.tokens import Tokenizer, shared_tokenizer
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation
from transformer_serving.contract.panics import ENDS
from transformer_serving.contract.worker.log_lines import write_json_lines
from transformer_serving.contract.worker.request_counts import uncounted
from transformer_serving.contract.worker.tracing import read_tracing

Collect = Callable[[dict[str, Any]], None] | None
SEED_HEADER = "x-seed"


class Conversation(NamedTuple):
    """What a request is, in whose words."""

    operation: Operation
    asked: Asked


class Generated(NamedTuple):
    """Sequences whose first tokens are here and who tells of them, or what was `made` of whole
    ones: the answer, and what the caller is sent of it.
    """

    sequences: list[Sequence]
    voice: Voice
    spoken: Spoken
    deadline: float
    made: tuple[Any, Reply] | None = None


class Listed(NamedTuple):
    """What the engine is not asked for: the prompt's tokens."""

    tokens: list[dict[str, Any]]


class TextGeneration:
    """One bundle as an endpoint of clearml-serving; what Preprocess is for the other tasks."""

    model_endpoint: Any = None  # set by the host after construction

    def __init__(self, endpoint_json: bytes, tokenizer_json: Callable[[], bytes]) -> None:
        keep_collections_short()
        self.endpoint: Endpoint = read_endpoint(endpoint_json)
        assert self.endpoint.generation is not None, "read_endpoint asks it of this task"
        self.generation: Generation = self.endpoint.generation
        self.settings = read_settings(has_streams=True)
        self.tracing = read_tracing()
        self.task = TextTask(self.generation)
        self.tokenizer = shared_tokenizer(Tokenizer, tokenizer_json(), self.endpoint.tokens)
        write_json_lines()
        open_metrics_port(self.settings.metrics_host, self.settings.metrics_port)

    @cached_property
    def engine(self) -> TextEngine:
        """Made at the first request: only then the host has said the endpoint's name."""
        named = self.model_endpoint
        return TextEngine(
            self.endpoint, self.generation, self.settings, named.serving_url, named.version
        )

    def card(self) -> dict[str, Any]:
        return card_of(self.endpoint, self.task)

    def turned_away(self, raw: bytes) -> None:
        """Nobody, before the body is read: how much is asked stands in it."""

    def is_idle(self) -> bool:
        """Never: what nobody waits for would hold a place of the engine for seconds."""
        return False

    def begin(self, body: Any, state: dict[str, Any]) -> Conversation:
        """What the request is and the dialect that it is in, kept for the steps after it."""
        state["passage"] = Passage(body, self.tracing)
        named = self.model_endpoint
        url, version = getattr(named, "serving_url", ""), getattr(named, "version", None)
        asked = Asked(body, binary_part(), self.task, self.endpoint, url, version)
        state["conversation"] = conversation = Conversation(operation_of(body), asked)
        return conversation

    def preprocess(self, body: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """What is wanted, checked, or the ServingError that `postprocess` will answer."""
        operation, asked = self.begin(as_meant(body, PROMPTS), state)
        try:
            return read_wanted(way_of(operation).read(asked), self.task, self.endpoint.limits)
        except ServingError as error:
            return error.without_frames()

    def limit_s(self, wanted: Any) -> float:
        """The seconds that it may take, also one that another version of the code has read."""
        return getattr(wanted, "timeout_s", None) or self.settings.generation_timeout_s

    async def process(self, wanted: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """The sequences, whole where no stream is wanted, or an error."""
        if isinstance(wanted, ServingError):
            return wanted
        passage: Passage = state["passage"]
        passage.own_deadline = wanted.timeout_s is not None
        try:
            ask = self._generate if self._needs_engine(state) else self._list_tokens
            with uncounted():
                return await ask(wanted, state, passage.arrived + self.limit_s(wanted))
        except ServingError as error:
            return error.without_frames()
        except ENDS:
            raise
        except BaseException as error:
            return internal_error(error, passage)

    @staticmethod
    def _needs_engine(state: dict[str, Any]) -> bool:
        conversation: Conversation = state["conversation"]
        return conversation.operation.needs_engine

    async def _list_tokens(self, wanted: Wanted, state: dict[str, Any], deadline: float) -> Listed:
        passage: Passage = state["passage"]
        conversation: Conversation = state["conversation"]
        read = partial(list_tokens, conversation.asked, wanted, self.tokenizer)
        wait_s = self.settings.max_wait_s
        passage.texts = 1
        with self.engine.departures.given_up(passage):
            return Listed(await threads.run(wanted.characters, read, passage, deadline, wait_s))

    async def _generate(self, wanted: Wanted, state: dict[str, Any], deadline: float) -> Generated:
        passage: Passage = state["passage"]
        conversation: Conversation = state["conversation"]
        passage.texts = len(wanted.prompts) or 1
        library = self.tokenizer.library
        # Until a sequence is there, whose own end counts.
        with self.engine.departures.given_up(passage):
            prompts = await self._tokenize(wanted, passage, deadline)
            passage.tokens = sum(len(row.ids) for row in prompts)
            passage.tokenized = time.monotonic()
            turns = await self.engine.start(prompts, wanted, library, deadline, passage)
        # What a caller waits for before anything comes is, of a stream, its first tokens.
        passage.left = time.monotonic()
        way, spoken = way_of(conversation.operation), self._spoken(wanted, conversation, passage)
        generated = Generated(turns.sequences, way.voice(spoken), spoken, deadline)
        if wanted.stream:
            passage.answered = time.monotonic()
            return generated
        await unless_left(turns.read(), passage.caller)
        passage.answered = time.monotonic()
        whole = generated._replace(sequences=turns.sequences)
        make = partial(_made, whole, way, conversation.asked)
        with self.engine.departures.given_up(passage):
            pieces = sum(len(one.tokens) for one in whole.sequences)
            return whole._replace(made=await render(pieces, make, passage, deadline))

    def _spoken(self, wanted: Wanted, conversation: Conversation, passage: Passage) -> Spoken:
        asked = conversation.asked
        body = asked.body if isinstance(asked.body, dict) else {}
        bundle = self.endpoint.bundle_version
        return Spoken(body, wanted, asked.name, asked.version, bundle, passage.request_id)

    async def _tokenize(self, wanted: Wanted, passage: Passage, deadline: float) -> list[Prompt]:
        with_text = ENGINES[self.generation.engine].takes_text
        limits = self.endpoint.limits
        read = partial(
            read_prompts, wanted, self.tokenizer, self.generation, limits, with_text=with_text
        )
        return await threads.run(
            wanted.characters, read, passage, deadline, self.settings.max_wait_s
        )

    def postprocess(self, outcome: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """The answer, a stream where one is wanted, or the error's body."""
        passage: Passage = state["passage"]
        if not isinstance(outcome, ServingError):
            try:
                return self._answer(outcome, state)
            except ServingError as error:
                outcome = error.without_frames()
            except ENDS:
                raise
            except BaseException as error:
                outcome = internal_error(error, passage)
        conversation: Conversation = state["conversation"]
        refusal = conversation.operation.in_their_words(outcome, conversation.asked.body)
        headers = self.engine.departures.headers(passage, refusal)
        return error_response(refusal, headers, conversation.operation.dialect)

    def _answer(
        self, generated: Generated | Listed, state: dict[str, Any]
    ) -> Answer | StreamAnswer:
        if isinstance(generated, Listed):
            headers = self.engine.departures.headers(state["passage"])
            answer = generated.tokens
            return answer_response(answer, Reply(answer_body(answer)), headers)
        sequences, voice, spoken, deadline, made = generated
        passage: Passage = state["passage"]
        if made is not None:
            answer, reply = made
            return answer_response(answer, reply, self._seeded(passage, spoken))
        # It holds all that it needs itself: the bundle may be replaced while it runs.
        return StreamAnswer(
            events_of(sequences, voice, passage), self._seeded(passage, spoken),
            partial(close_all, sequences), deadline, lambda: passage.fault,
            partial(self.engine.departures.ended, passage), voice.fault,
        )  # fmt: skip

    def _seeded(self, passage: Passage, spoken: Spoken) -> dict[str, str]:
        return {
            **self.engine.departures.headers(passage, goes_on=spoken.wanted.stream),
            SEED_HEADER: str(spoken.wanted.parameters.seed),
        }


def _made(generated: Generated, way: Way, asked: Asked) -> tuple[Any, Reply]:
    """Raises ServingError."""
    answer = generated.voice.whole(generated.sequences)
    return answer, way.write(Answered(answer, asked, NO_WORK))
