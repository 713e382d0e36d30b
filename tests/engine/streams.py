"""Callers of a language model in a real Triton, each with a stream of its own that it can leave."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.triton_server import TritonServer
from transformer_serving.contract.generation import Farewell, Finish, Options, Sampling

GREEDY = Sampling(False, 1.0, 1.0, 0, 1.0)


def options(new: int = 16, **changes: Any) -> Options:
    given: dict[str, Any] = {"eos_ids": (), "sampling": GREEDY, "seed": 0, **changes}
    return Options(max_new_tokens=new, **given)


class Caller:
    """One sequence, asked for at once. `began_at` and `ended_at` are of time.monotonic."""

    def __init__(
        self, server: TritonServer, model: str, ids: Sequence[int], asked: Options | bytes,
        identity: str | None = None,
    ) -> None:  # fmt: skip
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.states: list[list[int]] = []
        self.messages = 0
        self.first = threading.Event()
        self.began_at = self.ended_at = math.inf
        self._ended = threading.Event()
        self._error: InferenceServerException | None = None
        self._server = server
        self._client = server.client()
        self._client.start_stream(self._take)
        self._model = model
        self._id = identity or uuid.uuid4().hex
        inputs = inputs_of(ids, asked if isinstance(asked, bytes) else asked.to_json())
        self._client.async_stream_infer(model, inputs, request_id=self._id)

    def end(self, seconds: float = 60) -> Finish:
        """Raises the error that came in the place of a last message."""
        assert self._ended.wait(seconds), f"no end within {seconds} s after {len(self.ids)} tokens"
        self._client.stop_stream()
        if self._error is not None:
            raise self._error
        return Finish(self.states[-1][0])

    def leave(self) -> None:
        """Say so, as preprocess does, and take what comes until the engine knows."""
        part(self._server, self._model, self._id)
        self._client.stop_stream()

    def vanish(self) -> None:
        """Without a word, as a worker that is killed. Triton 2.51 may not survive it."""
        self._client.stop_stream(cancel_requests=True)

    def _take(self, result: Any, error: InferenceServerException | None) -> None:
        if self._ended.is_set():
            # Of the stream that this side ended.
            return
        if error is not None:
            self._error = error
        else:
            self.messages += 1
            self.ids += result.as_numpy("token_ids").tolist()
            self.logprobs += result.as_numpy("logprobs").tolist()
            self.states.append(result.as_numpy("state").tolist())
        if self.ids and not self.first.is_set():
            self.began_at = time.monotonic()
            self.first.set()
        if error is not None or self.states[-1][0] != Finish.RUNNING:
            self.ended_at = time.monotonic()
            self.first.set()
            self._ended.set()


def inputs_of(ids: Sequence[int], asked: bytes) -> list[Any]:
    inputs = []
    for name, array, kind in (
        ("input_ids", np.array(ids, np.int32), "INT32"),
        ("options", np.frombuffer(asked, np.uint8), "UINT8"),
    ):
        value = triton.InferInput(name, array.shape, kind)
        value.set_data_from_numpy(array)
        inputs.append(value)
    return inputs


def part(server: TritonServer, model: str, identity: str) -> None:
    """Say farewell to the call of that id, on a stream of its own, and wait until it was heard."""
    farewell = Farewell(identity)
    with server.client() as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer(model, inputs_of(farewell.input_ids, farewell.to_json()))
        client.stop_stream()


def figures(server: TritonServer, model: str) -> dict[str, float]:
    """The model's generation figures on Triton's own page, by their names without the prefix."""
    from urllib.request import urlopen

    prefix = "transformer_serving_generation_"
    with urlopen(f"http://{server.addresses.metrics}/metrics", timeout=60) as page:
        rows = page.read().decode().splitlines()
    return {
        row.split("{")[0].removeprefix(prefix): float(row.rsplit(" ", 1)[1])
        for row in rows
        if row.startswith(prefix) and f'model="{model}"' in row
    }


def until(server: TritonServer, model: str, seconds: float = 20, **wanted: float) -> None:
    """Wait for figures to be so."""
    deadline = time.monotonic() + seconds
    while True:
        found = figures(server, model)
        if all(found.get(name) == value for name, value in wanted.items()):
            return
        assert time.monotonic() < deadline, f"wanted {wanted}, got {found}"
        time.sleep(0.05)
