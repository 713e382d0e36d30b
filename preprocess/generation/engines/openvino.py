"""The backend `openvino_generate`: tokens in, tokens out, as contract.generation says.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocess.generation.prompt import Prompt
from preprocess.generation.step import EngineStep, not_as_agreed
from preprocess.tensors import Tensor
from preprocess.triton.replies import Outputs
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.generation import (
    INPUT_IDS,
    LOGPROBS,
    OPTIONS,
    STATE,
    TOKEN_IDS,
    Farewell,
    Finish,
    Options,
)

_DTYPES = {TOKEN_IDS: "<i4", LOGPROBS: "<f4", STATE: "<i4"}


def request(prompt: Prompt, options: Options, stop: tuple[str, ...]) -> StreamedRequest:
    """Stop strings are not told: openvino_genai fails on them without its own tokenizer."""
    # Nobody else can know it, and end this one.
    identity = uuid.uuid4().hex
    farewell = Farewell(identity)
    return StreamedRequest(
        identity,
        _inputs(prompt.array, options.to_json()),
        _inputs(np.array(farewell.input_ids, np.int32), farewell.to_json()),
    )


def reader(prompt: Prompt) -> Callable[[Outputs], EngineStep]:
    """Each message stands for itself."""
    return read_step


def read_step(outputs: Outputs) -> EngineStep:
    """Raises ServingError `engine_failed` for what is not as the contract says."""
    try:
        ids, logprobs, state = (_values(outputs, name) for name in (TOKEN_IDS, LOGPROBS, STATE))
        finish, _, new_tokens = state
        if logprobs and len(logprobs) != len(ids):
            raise ValueError("as many log-probabilities as tokens")
        return EngineStep(ids, logprobs, Finish(finish), new_tokens)
    except (KeyError, ValueError):
        raise not_as_agreed() from None


def _inputs(ids: NDArray[np.int32], options: bytes) -> list[Tensor]:
    told = np.frombuffer(options, np.uint8)
    return [Tensor(INPUT_IDS, "INT32", ids), Tensor(OPTIONS, "UINT8", told)]


def _values(outputs: Outputs, name: str) -> list[Any]:
    values: list[Any] = np.frombuffer(outputs[name].raw, _DTYPES[name]).tolist()
    return values
