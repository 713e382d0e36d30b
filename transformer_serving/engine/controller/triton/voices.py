"""How a proof asks a language model, a row for each backend: what it sends, and what it reads.

Tested by tests/engine/test_language_model_proof.py and tests/engine/test_vllm_streams.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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
    Farewell,
    Finish,
)
from transformer_serving.contract.vllm.tensors import (
    FINISH,
    FINISHES,
    FLAGS,
    PROMPT_TOKENS,
    SAMPLING,
    TEXT,
    TOKENS,
    read_tokens,
    sampling_of,
)
from transformer_serving.engine.proof.greedy import Asked

Inputs = list[triton_grpc.InferInput]


@dataclass(frozen=True)
class Part:
    """New tokens of a sequence, and how it stands with it."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish


@dataclass(frozen=True)
class Voice:
    """`farewell` ends a call of that id; None where the backend knows none. `read` raises
    InferenceServerException for what is no answer to what was asked."""

    ask: Callable[[Asked], Inputs]
    read: Callable[[Asked, Any], Part]
    farewell: Callable[[str], Inputs] | None


def _ask_ours(asked: Asked) -> Inputs:
    return _ours(np.array(asked.prompt, np.int32), asked.options.to_json())


def _farewell(identity: str) -> Inputs:
    farewell = Farewell(identity)
    return _ours(np.array(farewell.input_ids, np.int32), farewell.to_json())


def _ours(ids: Any, options: bytes) -> Inputs:
    return [
        _input(INPUT_IDS, ids, "INT32"),
        _input(OPTIONS, np.frombuffer(options, np.uint8), "UINT8"),
    ]


def _read_ours(asked: Asked, result: Any) -> Part:
    return Part(
        result.as_numpy(TOKEN_IDS).tolist(),
        result.as_numpy(LOGPROBS).tolist(),
        Finish(int(result.as_numpy(STATE)[0])),
    )


def _ask_vllm(asked: Asked) -> Inputs:
    if asked.text is None:
        raise InferenceServerException("a prompt without a text, and vLLM takes no ids")
    return [
        _input(TEXT, np.array([asked.text.encode()], np.object_), "BYTES"),
        _input(SAMPLING, np.array([_sampling(asked)], np.object_), "BYTES"),
        *(_input(name, np.array([True]), "BOOL") for name in FLAGS),
    ]


def _sampling(asked: Asked) -> bytes:
    return json.dumps(sampling_of(asked.options)).encode()


def _read_vllm(asked: Asked, result: Any) -> Part:
    try:
        finish = FINISHES[result.as_numpy(FINISH).item().decode()]
        prompt = int(result.as_numpy(PROMPT_TOKENS).item())
        tokens = read_tokens(result.as_numpy(TOKENS).item())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InferenceServerException(
            f"an answer is not as the vLLM backend's are ({type(error).__name__})"
        ) from None
    if prompt != len(asked.prompt):
        raise InferenceServerException(
            f"the engine made {prompt} tokens of a prompt of {len(asked.prompt)}: its tokenizer is "
            "another one than the bundle's"
        )
    return Part([one for one, _ in tokens], [value for _, value in tokens], finish)


def _input(name: str, array: Any, kind: str) -> triton_grpc.InferInput:
    value = triton_grpc.InferInput(name, array.shape, kind)
    value.set_data_from_numpy(array)
    return value


OURS = Voice(_ask_ours, _read_ours, _farewell)
# By Triton's backends; every other one is asked as ours are.
VOICES = {"vllm": Voice(_ask_vllm, _read_vllm, None)}
