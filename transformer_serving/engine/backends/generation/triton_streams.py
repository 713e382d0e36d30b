"""The Triton side of a language model: decoupled requests in, streams of tensors out.

Runs only inside Triton's stub. Tensors cross by DLPack (tensors.py says why).

Tested by tests/engine/test_openvino_generate.py.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np
import triton_python_backend_utils as pb_utils

from transformer_serving.contract.generation import (
    LOGPROBS,
    STATE,
    TOKEN_IDS,
    Farewell,
    Finish,
)
from transformer_serving.engine.backends.generation.calls import CallRefused, Fault, read_call
from transformer_serving.engine.backends.generation.engine import Engine
from transformer_serving.engine.backends.generation.figures import Figures
from transformer_serving.engine.backends.generation.sequences import Part, Pipeline, ask_again_s
from transformer_serving.engine.backends.generation.settings import (
    GenerationSettings,
    read_generation_settings,
)
from transformer_serving.engine.backends.inherited_sockets import close_inherited_sockets
from transformer_serving.engine.backends.model_settings import ModelError, read_settings
from transformer_serving.engine.backends.shared_area import close_own_area
from transformer_serving.engine.backends.tensors import triton_tensor

_MOST_UNKNOWN = 10_000
# As early as our code runs in the stub, whose own names come into pb_utils later.
close_own_area()
close_inherited_sockets()


class LanguageModel(ABC):
    """One instance; `load` makes the pipeline, again where a step of it raised."""

    @staticmethod
    @abstractmethod
    def load(folder: Path, settings: GenerationSettings) -> Pipeline:
        """The pipeline of the version's folder. Raises ModelError for one that cannot be loaded."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        self._figures = Figures(args["model_name"], args["model_version"])
        try:
            self._settings = _settings(json.loads(args["model_config"]))
            self._engine = Engine(
                lambda: self.load(folder, self._settings),
                self._settings,
                pb_utils.Logger.log_error,
                _end_process,
                self._figures.tell,
            )
        except ModelError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        # Of the calls that came with a request id, while somebody holds them.
        self._by_id: WeakValueDictionary[str, _Answers] = WeakValueDictionary()
        # Those that a farewell came for which are not here: they have ended, or are still to come,
        # since a farewell has a stream of its own.
        self._unknown: dict[str, None] = {}

    def execute(self, requests: Sequence[Any]) -> None:
        """Queue them: the answers are the engine thread's to send."""
        for request in requests:
            answers = _Answers(request.get_response_sender())
            identity = request.request_id()
            # Copied: the memory is Triton's once this returns.
            tensors = {one.name(): np.from_dlpack(one).copy() for one in request.inputs()}
            try:
                call = read_call(self._settings, tensors)
            except CallRefused as refusal:
                answers.refuse(refusal)
                continue
            if isinstance(call, Farewell):
                self._end(call.ends)
                answers.end()
            else:
                if identity:
                    self._by_id[identity] = answers
                    # A farewell ends one call: its caller may use the id again.
                    answers.left = identity in self._unknown
                    self._unknown.pop(identity, None)
                self._engine.submit(call, answers)

    def _end(self, identity: str) -> None:
        answers = self._by_id.get(identity)
        if answers is not None:
            answers.left = True
            return
        self._unknown[identity] = None
        if len(self._unknown) > _MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]

    def finalize(self) -> None:
        """Triton calls it when the last stream has ended."""
        self._engine.close()
        self._figures.close()


def _settings(config: dict[str, Any]) -> GenerationSettings:
    if not (config.get("model_transaction_policy") or {}).get("decoupled"):
        raise ModelError("'model_transaction_policy.decoupled' must be true; convert again")
    settings = read_settings(config)
    if settings.instances != 1 or settings.max_batch_size:
        raise ModelError("a language model has one instance and 'max_batch_size' 0; convert again")
    return read_generation_settings(settings)


def _end_process(reason: str) -> NoReturn:
    """Triton fails every call from then on, and the controller loads the model anew. What was sent
    is out: `send` returns when Triton has it."""
    try:
        sys.stderr.write(f"the engine is not healthy, and this process ends: {reason}\n")
        sys.stderr.flush()
    finally:
        os._exit(1)


class _Answers:
    """One request's response sender. `left` is set once the caller said so, and where something
    could not be sent: a text with a hole in it serves nobody, so the engine ends it.
    """

    def __init__(self, sender: Any) -> None:
        self.left = False
        self._sender = sender
        self._asked = time.monotonic()

    def send(self, part: Part, prompt: int, generated: int) -> None:
        last = part.finish is not Finish.RUNNING
        if not self._sent(lambda: (_tokens(part, prompt, generated),), last=last) and last:
            self.refuse(CallRefused(Fault.INTERNAL, "an answer could not be sent"))

    def refuse(self, refusal: CallRefused) -> None:
        if not self._sent(lambda: (_error(refusal),), last=True):
            self.end()

    def end(self) -> None:
        """Without an answer."""
        self._sent(tuple, last=True)

    def gone(self, among: int) -> bool:
        """Also of a caller that went without a word, which Triton is asked for now and then."""
        now = time.monotonic()
        if self.left or now - self._asked < ask_again_s(among):
            return self.left
        self._asked = now
        return bool(self._sender.is_cancelled())

    def _sent(self, answer: Callable[[], tuple[Any, ...]], *, last: bool) -> bool:
        """Whether the answer, which is none or one, could be made and sent."""
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
        try:
            self._sender.send(*answer(), flags=flags)
        except Exception as error:
            self.left = True
            pb_utils.Logger.log_warn(f"an answer could not be sent: {ascii(str(error))}")
            return False
        return True


def _tokens(part: Part, prompt: int, generated: int) -> Any:
    state = np.array([part.finish, prompt, generated], np.int32)
    return pb_utils.InferenceResponse(
        output_tensors=[
            triton_tensor(TOKEN_IDS, np.array(part.ids, np.int32)),
            triton_tensor(LOGPROBS, np.array(part.logprobs, np.float32)),
            triton_tensor(STATE, state),
        ]
    )


def _error(refusal: CallRefused) -> Any:
    code = getattr(pb_utils.TritonError, refusal.fault.name)
    error = pb_utils.TritonError(str(refusal), code)
    return pb_utils.InferenceResponse(output_tensors=[], error=error)
