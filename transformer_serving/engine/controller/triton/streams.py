"""A language model in Triton, asked as the controller asks: several prompts on one stream.

Tested by tests/engine/test_language_model_proof.py and tests/engine/test_vllm_streams.py.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from transformer_serving.contract.generation import Finish
from transformer_serving.engine.controller.triton.connections import CHANNEL
from transformer_serving.engine.controller.triton.voices import OURS, VOICES, Inputs, Voice
from transformer_serving.engine.endpoint_config import backend_of
from transformer_serving.engine.model_config import ModelConfig
from transformer_serving.engine.proof.greedy import Asked, Continued

# A Triton that does not end a stream within so long hangs.
_END_S = 10.0


class Streams:
    """Each call of `generate` has a connection of its own: a client has one stream at a time."""

    def __init__(self, address: str) -> None:
        self._address = address

    def generate(
        self, config: ModelConfig, version: str, asked: Sequence[Asked], timeout_s: float
    ) -> list[Continued]:
        """All at one time, of the configuration's model.

        Raises InferenceServerException for the first that gets an error, or where no message came
        for `timeout_s`.
        """
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        voice = VOICES.get(backend_of(config), OURS)
        found = {uuid.uuid4().hex: _Continuing(one, voice) for one in asked}
        with triton_grpc.InferenceServerClient(self._address, channel_args=CHANNEL) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))

            def ask(inputs: Inputs, identity: str = "") -> None:
                client.async_stream_infer(
                    config.name, inputs, model_version=version, request_id=identity
                )

            try:
                for identity, one in zip(found, asked, strict=True):
                    ask(voice.ask(one), identity)
                while not all(one.ended for one in found.values()):
                    result = _next(answers, timeout_s)
                    found[result.get_response().id].take(result)
            finally:
                # A stream that failed as a whole takes no farewell.
                with contextlib.suppress(InferenceServerException):
                    for identity, continuing in found.items():
                        if voice.farewell is not None and not continuing.ended:
                            ask(voice.farewell(identity))
                _end(client)
        return [one.whole() for one in found.values()]


class _Continuing:
    def __init__(self, asked: Asked, voice: Voice) -> None:
        self._asked = asked
        self._voice = voice
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._finish = Finish.RUNNING

    @property
    def ended(self) -> bool:
        return self._finish is not Finish.RUNNING

    def take(self, result: Any) -> None:
        part = self._voice.read(self._asked, result)
        self._ids += part.ids
        self._logprobs += part.logprobs
        self._finish = part.finish

    def whole(self) -> Continued:
        return Continued(tuple(self._ids), tuple(self._logprobs), self._finish)


def _end(client: triton_grpc.InferenceServerClient) -> None:
    """Wait for the end of the stream, which Triton 2.51 may not survive to be cancelled; one that
    has no end is cut off all the same."""
    cut = threading.Timer(_END_S, client.stop_stream, [True])
    cut.daemon = True
    cut.start()
    client.stop_stream()
    cut.cancel()


def _next(answers: queue.SimpleQueue[tuple[Any, Any]], timeout_s: float) -> Any:
    began = time.monotonic()
    try:
        result, error = answers.get(timeout=timeout_s)
    except queue.Empty:
        waited = time.monotonic() - began
        raise InferenceServerException(
            f"no token came within {waited:.0f} s", status="StatusCode.DEADLINE_EXCEEDED"
        ) from None
    if error is not None:
        raise error
    return result
