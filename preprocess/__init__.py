"""The way of a request inside the inference container, one screen.

clearml-serving calls `preprocess`, then awaits `process`, then calls `postprocess`. Defining
`process` replaces its own Triton call. Nothing here raises to the host: a refusal travels as a
`ServingError` through the three steps and leaves as a Response with its own status, because the
host would turn a raised one into 422 or 500.

Tested by tests/bundle/test_preprocess_file.py and tests/preprocess/test_handover.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from preprocess.answers import TASKS
from preprocess.answers.work import Work
from preprocess.card import card_of
from preprocess.dialects import Conversation, needs_engine
from preprocess.engine import Engine
from preprocess.garbage import keep_collections_short
from preprocess.glance import Reach, glance_at
from preprocess.metrics_port import open_metrics_port
from preprocess.passage import Passage, internal_error
from preprocess.raw_body import as_meant
from preprocess.request import Request, read_body
from preprocess.response import Answer, Reply, answer_response
from preprocess.rows import Row
from preprocess.settings import PreprocessSettings, read_settings
from preprocess.threads import FEW_PIECES
from preprocess.tokens import shared_tokenizer
from preprocess.triton.clients import close_clients
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.panics import ENDS
from transformer_serving.contract.worker.log_lines import write_json_lines
from transformer_serving.contract.worker.request_context import current_operation
from transformer_serving.contract.worker.request_counts import uncounted
from transformer_serving.contract.worker.tracing import read_tracing

# The tokenizers' own threads gain nothing for these sizes and take the other core from Triton.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


Collect = Callable[[dict[str, Any]], None] | None
# So long nobody is let in after a refusal: a small part of what a request may wait, so that the
# queue does not run dry meanwhile.
_REACH_S = 0.005
_REACH = 1 / 16
# Of the wait allowed, about which the queue has at a refusal: so much of it can pass without
# anybody let in.
_LONGEST = 1 / 8


class Preprocess:
    """One bundle of any task but text-generation as an endpoint, from its two files.

    It knows of no other bundle: while one takes over from another, `Successor` in handover.py
    stands in front and says which of the two is asked.
    """

    model_endpoint: Any = None  # set by the host after construction

    def __init__(self, endpoint_json: bytes, tokenizer_json: Callable[[], bytes]) -> None:
        keep_collections_short()
        self.endpoint: Endpoint = read_endpoint(endpoint_json)
        self.settings: PreprocessSettings = read_settings()
        self.tracing = read_tracing()
        self.task = TASKS[self.endpoint.task](self.endpoint)
        self._tasks: dict[str, Any] = {}
        self.tokenizer = shared_tokenizer(
            self.task.tokenizer, tokenizer_json(), self.endpoint.tokens
        )
        write_json_lines()
        open_metrics_port(self.settings.metrics_host, self.settings.metrics_port)

    @cached_property
    def engine(self) -> Engine:
        """Made at the first request: only then the host has said the endpoint's name."""
        named = self.model_endpoint
        return Engine(self.endpoint, self.settings, named.serving_url, named.version)

    def card(self) -> dict[str, Any]:
        """What the gateway tells of the endpoint."""
        return card_of(self.endpoint, self.task)

    def is_idle(self) -> bool:
        """Whether what is asked now keeps nobody waiting: a call could leave at once."""
        return not self.engine.has_a_queue()

    def turned_away(self, raw: bytes) -> Answer | None:
        """The refusal of a request that would wait too long, before its body is parsed.

        None where it is let in, or where its body must be read to know.
        """
        if not self.engine.has_a_queue() or not needs_engine():
            return None
        dialect_is_known = current_operation.get() is not None
        glance = glance_at(raw, dialect_is_known=dialect_is_known)
        if glance is None:
            return None
        left_s = glance.timeout_s or self.settings.timeout_s
        error = self.engine.turned_away(left_s, own_deadline=glance.timeout_s is not None)
        if error is None:
            return None
        state: dict[str, Any] = {}
        self.begin(raw, state)
        refusal = self.postprocess(error.without_frames(), state)
        tell = partial(self.engine.departures.again, error)
        waits_s = left_s if glance.timeout_s is not None else self.settings.max_wait_s
        seconds = min(_REACH_S, waits_s * _REACH)
        refusal.reach = Reach(glance, dialect_is_known, seconds, tell, waits_s * _LONGEST)
        return refusal

    def preprocess(self, body: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """The body as a checked Request, or the ServingError that `postprocess` will answer."""
        conversation = self.begin(as_meant(body, self.task.form.telling), state)
        try:
            body = conversation.read()
            return read_body(body, conversation.task, self.endpoint.limits)
        except ServingError as error:
            return error.without_frames()

    def begin(self, body: Any, state: dict[str, Any]) -> Conversation:
        """What the request is and the dialect that it is in, kept for the steps after it."""
        state["passage"] = Passage(body, self.tracing)
        named = self.model_endpoint
        conversation = Conversation(
            body, self.task, self.endpoint,
            getattr(named, "serving_url", ""), getattr(named, "version", None), self._tasks,
        )  # fmt: skip
        state["conversation"] = conversation
        return conversation

    def limit_s(self, request: Any) -> float:
        """The seconds that it may take, also one that another version of the code has read."""
        return getattr(request, "timeout_s", None) or self.settings.timeout_s

    async def process(self, request: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """Tokenize, call the engine, split: one row a piece of work, in order, or an error."""
        if isinstance(request, ServingError):
            return request
        passage = state["passage"]
        passage.own_deadline = request.timeout_s is not None
        deadline = passage.arrived + self.limit_s(request)
        try:
            with uncounted():
                return await self._computed(request, state, deadline)
        except ServingError as error:
            return error.without_frames()
        except ENDS:
            raise
        except BaseException as error:
            return internal_error(error, passage)

    async def _computed(
        self, request: Request, state: dict[str, Any], deadline: float
    ) -> Sequence[Row]:
        """Raises ServingError."""
        passage: Passage = state["passage"]
        conversation: Conversation = state["conversation"]
        encode = partial(conversation.task.encode, request, self.tokenizer)
        state["work"] = work = await self.engine.tokenize(
            request, encode, deadline, passage, waits=conversation.operation.needs_engine
        )
        rows: Sequence[Row] = ()
        # Where there is nothing to ask of it, the tokens themselves were asked for.
        if work.encoded:
            rows = await self.engine.infer(work.encoded, deadline, passage)
        if work.pieces > FEW_PIECES:
            make = partial(_made, conversation, rows, work)
            state["made"] = await self.engine.render(work, make, deadline, passage)
        return rows

    def postprocess(self, outcome: Any, state: dict[str, Any], collect: Collect = None) -> Answer:
        """The task's answer, or the error's body, with its status and headers."""
        passage: Passage = state["passage"]
        conversation: Conversation = state["conversation"]
        if not isinstance(outcome, ServingError):
            try:
                work = state["work"]
                answer, reply = state.get("made") or _made(conversation, outcome, work)
                headers = self.engine.departures.headers(passage)
                response = answer_response(answer, reply, headers)
                response.made_by = (conversation.task, outcome, work)
                return response
            except ServingError as error:
                outcome = error.without_frames()
            except ENDS:
                raise
            except BaseException as error:
                outcome = internal_error(error, passage)
        return conversation.refusal(outcome, self.engine.departures.headers(passage, outcome))


def _made(conversation: Conversation, rows: Sequence[Row], work: Work) -> tuple[Any, Reply]:
    """The answer, and what the caller is sent of it. Raises ServingError."""
    answer = conversation.task.render(rows, work)
    return answer, conversation.reply(answer, work)


def close() -> None:
    """Let go of what the whole worker shares; called when newer code has taken over."""
    close_clients()
