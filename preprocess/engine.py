"""The engine of one Preprocess: its model version in Triton, and the queue before it.

Tested by tests/gateway/test_error_rows.py and tests/gateway/test_metrics.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from preprocess.answers.work import Work
from preprocess.passage import Departures, Passage
from preprocess.queue.admission import Admission
from preprocess.queue.coalesce import Call, Coalescer
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.settings import PreprocessSettings
from preprocess.stats import EndpointFigures
from preprocess.tensors import Array, Tensor
from preprocess.threads import render, threads
from preprocess.tokens import Encoded
from preprocess.triton.clients import shared_client
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.naming import triton_model_name
from transformer_serving.contract.worker.process_wide import process_wide


class _Anybody(NamedTuple):
    """Who asks, before anything else is known of the request."""

    own_deadline: bool
    golden: bool = False
    goes_first: bool = False
    texts: int = 0
    caller: None = None
    trace: None = None


class Engine:
    """One bundle's engine under the endpoint's name, `serving_url` and the host's `version`."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: PreprocessSettings,
        serving_url: str,
        version: str | None,
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self.model = triton_model_name(serving_url, version)
        self._client = shared_client(settings.transport, settings.triton)
        self._coalescer: Coalescer | None = None
        name = f"{serving_url}/{version}" if version else serving_url
        self.departures = Departures(name, endpoint.bundle_version)

    async def is_ready(self) -> bool:
        """Whether Triton has this bundle's version."""
        return await self._client.is_ready(self.model, self._endpoint.bundle_version)

    async def infer(
        self, encoded: Sequence[Encoded], deadline: float, passage: Passage
    ) -> Sequence[Row]:
        """One row a text, in order. Raises ServingError."""
        stay = await self._queue().infer(encoded, deadline, passage)
        passage.note(stay)
        return stay.result()

    def has_a_queue(self) -> bool:
        """Whether a request would have to wait for others now."""
        return not self._queue().has_room()

    def turned_away(self, left_s: float, *, own_deadline: bool) -> ServingError | None:
        """Why a request that has `left_s` seconds would be refused now, whatever is in it."""
        try:
            self._queue().check_wait(_Anybody(own_deadline), time.monotonic() + left_s)
        except ServingError as error:
            return error
        return None

    async def tokenize(
        self, request: Request, encode: Callable[[], Work], deadline: float, passage: Passage, *,
        waits: bool = True,
    ) -> Work:  # fmt: skip
        """`encode()`. Raises ServingError, `overloaded` before a request that `waits` for the
        engine costs anything.
        """
        queue, wait_s = self._queue(), self._settings.max_wait_s
        passage.texts = len(request.pairs or request.texts)
        with self.departures.given_up(passage):
            if waits:
                queue.check_wait(passage, deadline)
            return await threads.run(request.characters, encode, passage, deadline, wait_s)

    async def render(
        self, work: Work, make: Callable[[], Any], deadline: float, passage: Passage
    ) -> Any:
        """`make()`, beside the loop where it takes long. Raises ServingError."""
        with self.departures.given_up(passage):
            return await render(work.pieces, make, passage, deadline)

    def _queue(self) -> Coalescer:
        if self._coalescer is None:
            self._coalescer = self._shared_queue()
        return self._coalescer

    def _shared_queue(self) -> Coalescer:
        """The queue before this model version; shared with earlier and later rebuilds."""
        client, settings = self._client, self._settings
        model, version = self.model, self._endpoint.bundle_version
        outputs, most = self._endpoint.outputs, settings.calls_in_flight

        async def call(inputs: list[Tensor], deadline: float) -> list[Array]:
            return await client.infer(model, version, inputs, outputs, deadline, most)

        queue = shared_coalescer(
            (settings.transport, settings.triton, model, version),
            self._endpoint,
            call,
            admission(settings.max_waiting_tokens, settings.max_wait_s),
            lambda: client.slots(model, version, most),
            self.departures.figures,
        )
        client.queues.add(queue)
        return queue


@cache
def admission(max_waiting_tokens: int, max_wait_s: float) -> Admission:
    """By the worker's one count of waiting tokens."""
    counts = process_wide("waiting_tokens", Counter[str])
    return Admission(max_waiting_tokens, max_wait_s, counts)


_shared: WeakValueDictionary[tuple[object, ...], Coalescer] = WeakValueDictionary()


def shared_coalescer(
    key: tuple[object, ...],
    endpoint: Endpoint,
    engine: Call,
    admission: Admission,
    slots: Callable[[], int],
    figures: EndpointFigures,
) -> Coalescer:
    """The loop's one queue for this engine, however often the host rebuilds the Preprocess."""
    full_key = (asyncio.get_running_loop(), *key)
    coalescer = _shared.get(full_key)
    if coalescer is None:
        coalescer = Coalescer(endpoint, engine, admission, slots, figures)
        _shared[full_key] = coalescer
    return coalescer
