"""Triton's vLLM backend, 24.12 or newer, as it is asked: its tensors, and what its answers say.

Of the backend's `auto_complete_config` and docs/additional_outputs.md, read at r24.12, r25.06 and
r26.01. It takes no ids but a text. Of its answers the text is not read: with `logprobs` 0 each new
token comes by its id, with its log-probability. The backend itself takes a GPU, and has not been
asked: the tests have models with these tensors.

Tested by tests/preprocess/generation/test_vllm.py and tests/engine/test_vllm_streams.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from transformer_serving.contract.generation import Finish, Options

TEXT, SAMPLING = "text_input", "sampling_parameters"
FINISH, TOKENS = "finish_reason", "logprobs"
PROMPT_TOKENS, NEW_TOKENS = "num_input_tokens", "num_output_tokens"
# All of them true: a message a step, with what is read of it.
FLAGS = (
    "stream", "exclude_input_in_output", "return_finish_reason", "return_logprobs",
    "return_num_input_tokens", "return_num_output_tokens",
)  # fmt: skip
# By Triton's types; all but the text may be left out, as other clients do.
INPUTS = {
    TEXT: "STRING",
    SAMPLING: "STRING",
    **dict.fromkeys(FLAGS, "BOOL"),
    "return_cumulative_logprob": "BOOL",
}
OUTPUTS = {
    "text_output": "STRING",
    FINISH: "STRING",
    "cumulative_logprob": "FP32",
    TOKENS: "STRING",
    PROMPT_TOKENS: "UINT32",
    NEW_TOKENS: "UINT32",
}
FINISHES = {
    "None": Finish.RUNNING,
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "abort": Finish.CANCELLED,
}


def sampling_of(options: Options, stop: Sequence[str] = ()) -> dict[str, Any]:
    """In vLLM's terms. What ends a sequence is the bundle's ids, not what vLLM finds in the model's
    files; stop strings are told so that it ends by itself, where preprocess ends it too, but for
    those before the least number of tokens, where it looks for none and preprocess leaves it."""
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
    asked = {
        "min_p": sampling.min_p if sampling.do_sample else 0.0,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "min_tokens": options.min_new_tokens,
    }
    found |= {name: value for name, value in asked.items() if value}
    if stop:
        found["stop"] = list(stop)
    return found


def read_tokens(text: str | bytes) -> list[tuple[int, float]]:
    """Of each position the one token that was chosen, with its log-probability.

    Raises ValueError, TypeError or KeyError for anything else.
    """
    found = []
    for position in json.loads(text):
        if not isinstance(position, dict):
            raise TypeError("a token's row")
        [(token, told)] = position.items()
        found.append((int(token), float(told["logprob"])))
    return found
