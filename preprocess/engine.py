"""The engine of one Preprocess: its model version in Triton, and the queue before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from contract.naming import triton_model_name
from preprocess.coalesce import Admission, Coalescer, shared_coalescer
from preprocess.handover import Handover
from preprocess.passage import Departures, Passage
from preprocess.rows import Row
from preprocess.settings import Settings
from preprocess.stats import listen
from preprocess.tensors import Array, Tensor
from preprocess.tokens import Encoded
from preprocess.tracing import tracer
from preprocess.triton_client import shared_client


class Engine:
    """Made at an endpoint's first request: only then its name is known."""

    def __init__(self, preprocess: Any) -> None:
        self._endpoint = preprocess.endpoint
        self._settings: Settings = preprocess.settings
        named = preprocess.model_endpoint
        self._model = triton_model_name(named.serving_url, named.version)
        self._client = shared_client(self._settings.transport, self._settings.triton)
        self._coalescer: Coalescer | None = None
        version = self._endpoint.bundle_version
        url = f"{named.serving_url}/{named.version}" if named.version else named.serving_url
        self.departures = Departures(url, tracer())
        self.handover = Handover(
            self._model, preprocess, lambda: self._client.is_ready(self._model, version)
        )

    async def infer(
        self, encoded: Sequence[Encoded], deadline: float, passage: Passage
    ) -> list[Row]:
        """One row a text, in order. Raises ServingError."""
        listen(self._settings.metrics_host, self._settings.metrics_port)
        if self._coalescer is None:
            self._coalescer = self._queue()
        return await self._coalescer.infer(encoded, deadline, passage)

    def _queue(self) -> Coalescer:
        """The queue before this model version; shared with earlier and later rebuilds."""
        client, settings = self._client, self._settings
        model, version = self._model, self._endpoint.bundle_version
        outputs = self._endpoint.outputs

        async def call(inputs: list[Tensor], deadline: float) -> list[Array]:
            return await client.infer(model, version, inputs, outputs, deadline)

        return shared_coalescer(
            (settings.transport, settings.triton, model, version),
            self._endpoint,
            call,
            admission(settings.max_waiting_tokens),
            lambda: settings.calls_in_flight * client.servers,
            self.departures.figures,
        )


@cache
def admission(max_waiting_tokens: int) -> Admission:
    """The worker's one count of waiting tokens."""
    return Admission(max_waiting_tokens)
