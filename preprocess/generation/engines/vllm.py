"""Triton's vLLM backend, 24.12 or newer: text in, and of its answers the tokens.

The tensors are those of the backend's `auto_complete_config` and docs/additional_outputs.md. It
takes no ids but a text, and tokenizes that itself, special tokens included. Its text is not read:
with `logprobs` 0 each new token comes by its id, with its log-probability, and the same
detokenizer and stop strings make the text as for other engines.

Tested by tests/preprocess/generation/test_vllm.py, against a model with these tensors; the backend
itself has not been asked, which takes a GPU.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from preprocess.generation.prompt import Prompt
from preprocess.generation.step import EngineStep, not_as_agreed
from preprocess.tensors import Tensor
from preprocess.triton.replies import Outputs
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Finish, Options

_RETURNED = ("finish_reason", "logprobs", "num_input_tokens", "num_output_tokens")
_FINISHES = {
    "None": Finish.RUNNING,
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "abort": Finish.CANCELLED,
}


def request(prompt: Prompt, options: Options, stop: tuple[str, ...]) -> StreamedRequest:
    """Without a farewell: the backend knows of a caller that left by the cancelled stream alone.

    Raises ServingError `impossible` for a prompt that no text gives.
    """
    if prompt.text is None:
        raise ServingError(
            "impossible",
            "the endpoint's engine takes a text, and none gives these tokens, special ones "
            "included; leave out 'truncate', or shorten the prompt yourself",
            field="text",
        )
    flags = ("stream", "exclude_input_in_output", *(f"return_{name}" for name in _RETURNED))
    return StreamedRequest(
        "",
        [
            _text("text_input", prompt.text),
            _text("sampling_parameters", json.dumps(_sampling(options, stop))),
            *(Tensor(name, "BOOL", np.array([True])) for name in flags),
        ],
        None,
    )


def _sampling(options: Options, stop: tuple[str, ...]) -> dict[str, Any]:
    """In vLLM's terms. What ends a sequence is the bundle's ids, not what vLLM finds in the model's
    files; stop strings are told so that it ends by itself, where preprocess ends it too."""
    sampling = options.sampling
    found: dict[str, Any] = {
        "max_tokens": options.max_new_tokens,
        "temperature": 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": True,
        "stop_token_ids": list(options.eos_ids),
        "logprobs": 0,
    }
    if sampling.do_sample:
        found |= {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # vLLM's name of all.
            "top_k": sampling.top_k or -1,
            "seed": options.seed,
        }
    if stop:
        found["stop"] = list(stop)
    return found


def reader(prompt: Prompt) -> Callable[[Outputs], EngineStep]:
    """Of one sequence: the backend counts each message's tokens alone."""
    made = 0

    def read(outputs: Outputs) -> EngineStep:
        nonlocal made
        try:
            finish = _FINISHES[_string(outputs, "finish_reason")]
            if _count(outputs, "num_input_tokens") != len(prompt.ids):
                raise _other_tokenizer()
            tokens = _tokens(_string(outputs, "logprobs"))
            if _count(outputs, "num_output_tokens") != len(tokens):
                raise ValueError("a log-probability a token")
        except (KeyError, ValueError, TypeError, AttributeError, struct.error):
            raise not_as_agreed() from None
        made += len(tokens)
        ids, logprobs = [one for one, _ in tokens], [value for _, value in tokens]
        return EngineStep(ids, logprobs, finish, made)

    return read


def _tokens(text: str) -> list[tuple[int, float]]:
    """Of each position the one token that was chosen. Raises ValueError for anything else."""
    found = []
    for position in json.loads(text):
        [(token, told)] = position.items()
        found.append((int(token), float(told["logprob"])))
    return found


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
