"""The way of a request inside the inference container, one screen.

clearml-serving calls `preprocess`, then awaits `process`, then calls `postprocess`. Defining
`process` replaces its own Triton call. Nothing here raises to the host: a refusal travels as a
`ServingError` through the three steps and leaves as a Response with its own status, because the
host would turn a raised one into 422 or 500.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

from contract.endpoint import Endpoint, read_endpoint
from contract.errors import ServingError
from contract.naming import triton_model_name
from preprocess.answers import TASKS
from preprocess.answers.work import Work
from preprocess.coalesce import Admission, Coalescer, shared_coalescer
from preprocess.handover import Handover
from preprocess.request import read_body
from preprocess.response import Answer, answer_response, error_response
from preprocess.rows import Array, Row
from preprocess.settings import Settings, read_settings
from preprocess.tokens import off_loop, shared_tokenizer
from preprocess.triton_client import Tensor, close_clients, shared_client

log = logging.getLogger("transformer_serving.preprocess")

Collect = Callable[[dict[str, Any]], None] | None


class Preprocess:
    """One endpoint of clearml-serving; the generated preprocess.py gives it its two files."""

    # The gateway may send what postprocess returns as it is.
    serves_responses = True
    model_endpoint: Any = None  # set by the host after construction

    def __init__(self, endpoint_json: bytes, tokenizer_json: Callable[[], bytes]) -> None:
        self.endpoint: Endpoint = read_endpoint(endpoint_json)
        self.settings: Settings = read_settings()
        self.task = TASKS[self.endpoint.task](self.endpoint)
        self._coalescer: Coalescer | None = None
        self._handed: Handover | None = None
        self.tokenizer = shared_tokenizer(
            self.task.tokenizer, tokenizer_json(), self.endpoint.tokens
        )

    def preprocess(self, body: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """The body as a checked Request, or the ServingError that `postprocess` will answer."""
        state["arrived"] = time.monotonic()
        server = self._handover().server()
        if server is not None:
            state["served_by"] = server, {}
            return server.preprocess(body, state["served_by"][1], collect)
        try:
            return read_body(body, self.task, self.endpoint.limits)
        except ServingError as error:
            return error

    async def process(self, request: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """Tokenize, call the engine, split: one row a piece of work, in order, or an error."""
        if "served_by" in state:
            await self._handover().probe()
            server, inner = state["served_by"]
            return await server.process(request, inner, collect)
        if isinstance(request, ServingError):
            return request
        try:
            deadline = state["arrived"] + (request.timeout_s or self.settings.timeout_s)
            state["work"] = work = await off_loop(
                request.characters, lambda: self.task.encode(request, self.tokenizer)
            )
            return await self._infer(work, deadline)
        except ServingError as error:
            return error
        except Exception as error:
            # The last line of defence: the caller gets a reference, the log has the trace.
            return self._internal(error)

    def postprocess(self, outcome: Any, state: dict[str, Any], collect: Collect = None) -> Answer:
        """The task's answer, or the error's body, with status and bundle version header."""
        if "served_by" in state:
            server, inner = state["served_by"]
            served: Answer = server.postprocess(outcome, inner, collect)
            return served
        if not isinstance(outcome, ServingError):
            try:
                answer = self.task.render(outcome, state["work"])
                return answer_response(answer, self.endpoint.bundle_version)
            except ServingError as error:
                outcome = error
            except Exception as error:
                outcome = self._internal(error)
        return error_response(outcome, self.endpoint.bundle_version)

    async def _infer(self, work: Work, deadline: float) -> list[Row]:
        if self._coalescer is None:
            self._coalescer = self._connect()
        return await self._coalescer.infer(work.encoded, deadline)

    @cached_property
    def _model(self) -> str:
        endpoint = self.model_endpoint
        return triton_model_name(endpoint.serving_url, endpoint.version)

    def _handover(self) -> Handover:
        if self._handed is None:
            client = shared_client(self.settings.triton_http)
            version = self.endpoint.bundle_version
            self._handed = Handover(
                self._model, self, lambda: client.is_ready(self._model, version)
            )
        return self._handed

    def _connect(self) -> Coalescer:
        """The queue before this bundle's model version; shared with earlier and later rebuilds."""
        client = shared_client(self.settings.triton_http)
        model, version = self._model, self.endpoint.bundle_version
        outputs = self.endpoint.outputs

        async def engine(inputs: list[Tensor], deadline: float) -> list[Array]:
            return await client.infer(model, version, inputs, outputs, deadline)

        return shared_coalescer(
            (self.settings.triton_http, model, version),
            self.endpoint,
            engine,
            admission(self.settings),
            self.settings.calls_in_flight,
        )

    def _internal(self, error: Exception) -> ServingError:
        reference = uuid.uuid4().hex[:12]
        log.error("request failed, reference %s", reference, exc_info=error)
        return ServingError(
            "internal", f"a fault of the serving code, reference {reference}; see the worker's log"
        )


@cache
def admission(settings: Settings) -> Admission:
    """The worker's one count of waiting tokens."""
    return Admission(settings.max_waiting_tokens)


def close() -> None:
    """Let go of what the whole worker shares; called when newer code has taken over."""
    close_clients()
