"""Callers of a language model in a real Triton, each with a stream of its own that it can leave."""

from __future__ import annotations

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
    """One sequence, asked for at once."""

    def __init__(
        self, server: TritonServer, model: str, ids: Sequence[int], asked: Options | bytes
    ) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.states: list[list[int]] = []
        self.messages = 0
        self.first = threading.Event()
        self._ended = threading.Event()
        self._error: InferenceServerException | None = None
        self._client = server.client()
        self._client.start_stream(self._take)
        self._model = model
        self._id = uuid.uuid4().hex
        self._ask(ids, asked if isinstance(asked, bytes) else asked.to_json(), self._id)

    def _ask(self, ids: Sequence[int], asked: bytes, identity: str = "") -> None:
        inputs = []
        for name, array, kind in (
            ("input_ids", np.array(ids, np.int32), "INT32"),
            ("options", np.frombuffer(asked, np.uint8), "UINT8"),
        ):
            value = triton.InferInput(name, array.shape, kind)
            value.set_data_from_numpy(array)
            inputs.append(value)
        self._client.async_stream_infer(self._model, inputs, request_id=identity)

    def end(self, seconds: float = 60) -> Finish:
        """Raises the error that came in the place of a last message."""
        assert self._ended.wait(seconds), f"no end within {seconds} s after {len(self.ids)} tokens"
        self._client.stop_stream()
        if self._error is not None:
            raise self._error
        return Finish(self.states[-1][0])

    def leave(self) -> None:
        """Say so, as preprocess does, and take what comes until the engine knows."""
        farewell = Farewell(self._id)
        self._ask(farewell.input_ids, farewell.to_json())
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
        if self.ids:
            self.first.set()
        if error is not None or self.states[-1][0] != Finish.RUNNING:
            self.first.set()
            self._ended.set()


def figures(server: TritonServer, model: str) -> dict[str, float]:
    """The model's generation figures on Triton's own page, by their names without the prefix."""
    from urllib.request import urlopen

    prefix = "transformer_serving_generation_"
    with urlopen(f"http://{server.addresses.metrics}/metrics", timeout=10) as page:
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
