"""A language model in Triton, asked as the controller asks: several prompts on one stream.

Tested by tests/engine/test_language_model_proof.py.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from transformer_serving.contract.generation import (
    INPUT_IDS,
    LOGPROBS,
    OPTIONS,
    STATE,
    TOKEN_IDS,
    Finish,
)
from transformer_serving.engine.proof.greedy import Asked, Continued


class Streams:
    """Each call of `generate` has a connection of its own: a client has one stream at a time."""

    def __init__(self, address: str) -> None:
        self._address = address

    def generate(
        self, model: str, version: str, asked: Sequence[Asked], timeout_s: float
    ) -> list[Continued]:
        """All at one time. Raises InferenceServerException for the first that gets an error, or
        where no message came for `timeout_s`."""
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        found = [_Continuing() for _ in asked]
        with triton_grpc.InferenceServerClient(self._address) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            try:
                for at, one in enumerate(asked):
                    client.async_stream_infer(
                        model, _inputs(one), model_version=version, request_id=str(at)
                    )
                while not all(one.ended for one in found):
                    result = _next(answers, timeout_s)
                    found[int(result.get_response().id)].take(result)
            finally:
                client.stop_stream(cancel_requests=True)
        return [one.whole() for one in found]


class _Continuing:
    def __init__(self) -> None:
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._finish = Finish.RUNNING

    @property
    def ended(self) -> bool:
        return self._finish is not Finish.RUNNING

    def take(self, result: Any) -> None:
        self._ids += result.as_numpy(TOKEN_IDS).tolist()
        self._logprobs += result.as_numpy(LOGPROBS).tolist()
        self._finish = Finish(int(result.as_numpy(STATE)[0]))

    def whole(self) -> Continued:
        return Continued(tuple(self._ids), tuple(self._logprobs), self._finish)


def _inputs(one: Asked) -> list[triton_grpc.InferInput]:
    ids = np.array(one.prompt, np.int32)
    options = np.frombuffer(one.options.to_json(), np.uint8)
    inputs = []
    for name, array, kind in ((INPUT_IDS, ids, "INT32"), (OPTIONS, options, "UINT8")):
        value = triton_grpc.InferInput(name, array.shape, kind)
        value.set_data_from_numpy(array)
        inputs.append(value)
    return inputs


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
