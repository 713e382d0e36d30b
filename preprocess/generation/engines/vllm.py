"""Triton's vLLM backend, 24.12 or newer: text in, and of its answers the tokens.

It tokenizes the text itself, special tokens included. What it decoded is not read: the same
detokenizer and stop strings make the text of its tokens as for other engines (contract.vllm).

Tested by tests/preprocess/generation/test_vllm.py, against a model with these tensors; the backend
itself has not been asked, which takes a GPU.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import numpy as np

from preprocess.generation.prompt import Prompt
from preprocess.generation.step import EngineStep, not_as_agreed
from preprocess.tensors import Tensor
from preprocess.triton.replies import Outputs
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Options
from transformer_serving.contract.vllm.tensors import (
    FINISH,
    FINISHES,
    FLAGS,
    NEW_TOKENS,
    PROMPT_TOKENS,
    SAMPLING,
    TEXT,
    TOKENS,
    read_tokens,
    sampling_of,
)


def request(prompt: Prompt, options: Options, stop: tuple[str, ...]) -> StreamedRequest:
    """Without a farewell: the backend knows of a caller that left by the cancelled stream alone.

    Raises ServingError `impossible` for a prompt that no text gives.
    """
    if prompt.text is None:
        raise ServingError(
            "impossible",
            "the endpoint's engine takes a text, and none gives these tokens, special ones "
            "included; leave out 'truncate', or shorten the prompt yourself",
            field=prompt.field,
        )
    return StreamedRequest(
        "",
        [
            _text(TEXT, prompt.text),
            _text(SAMPLING, json.dumps(sampling_of(options, stop))),
            *(Tensor(name, "BOOL", np.array([True])) for name in FLAGS),
        ],
        None,
    )


def reader(prompt: Prompt) -> Callable[[Outputs], EngineStep]:
    """Of one sequence: the backend counts each message's tokens alone."""
    made = 0

    def read(outputs: Outputs) -> EngineStep:
        nonlocal made
        try:
            finish = FINISHES[_string(outputs, FINISH)]
            if _count(outputs, PROMPT_TOKENS) != len(prompt.ids):
                raise _other_tokenizer()
            tokens = read_tokens(_string(outputs, TOKENS))
            if _count(outputs, NEW_TOKENS) != len(tokens):
                raise ValueError("a log-probability a token")
        except (KeyError, ValueError, TypeError, AttributeError, struct.error):
            raise not_as_agreed() from None
        made += len(tokens)
        ids, logprobs = [one for one, _ in tokens], [value for _, value in tokens]
        return EngineStep(ids, logprobs, finish, made)

    return read


def _other_tokenizer() -> ServingError:
    return ServingError(
        "engine_failed",
        "the engine makes other tokens of the prompt than the bundle's tokenizer; deploy the "
        "model's own files",
    )


def _text(name: str, text: str) -> Tensor:
    return Tensor(name, "BYTES", np.array([text.encode()], np.object_))


def _string(outputs: Outputs, name: str) -> str:
    """The one string of a tensor, which stands behind its length."""
    raw = bytes(outputs[name].raw)
    [size] = struct.unpack_from("<I", raw)
    if len(raw) != size + 4:
        raise ValueError("one string")
    return raw[4:].decode()


def _count(outputs: Outputs, name: str) -> int:
    [count] = np.frombuffer(outputs[name].raw, "<u4").tolist()
    return int(count)
