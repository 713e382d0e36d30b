"""What Triton's vLLM backend would answer, by a rule in the place of a model.

Inputs and outputs are those of triton-inference-server/vllm_backend, r24.12: with `stream` one
message a step, of each position a row of the chosen token, a last message with its finish reason.
The tokens are those of the prompt once more, one after the other; the prompt's first word says what
goes wrong.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

# The tests' tokenizer's: the words w12 to w79 come behind these.
WORDS = (
    *("[PAD]", "[UNK]", "<s>", "</s>"),
    *("slow", "fail", "hang", "full", "cache", "refuse", "every", "never"),
)
INPUTS = {
    "text_input": "BYTES",
    "stream": "BOOL",
    "sampling_parameters": "BYTES",
    "exclude_input_in_output": "BOOL",
    "return_finish_reason": "BOOL",
    "return_cumulative_logprob": "BOOL",
    "return_logprobs": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
}
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "cumulative_logprob": "FP32",
    "logprobs": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}
# SamplingParams of vLLM 0.5.5, those that the backend is asked for.
PARAMETERS = {
    "max_tokens", "temperature", "repetition_penalty", "ignore_eos", "stop_token_ids", "logprobs",
    "top_p", "top_k", "seed", "stop", "frequency_penalty", "presence_penalty", "min_tokens",
    "min_p",
}  # fmt: skip


class BackendError(Exception):
    """The backend's own words of what was raised in it."""


class Message(NamedTuple):
    outputs: dict[str, Any]
    last: bool


def number_of(word: str) -> int:
    return WORDS.index(word) if word in WORDS else int(word[1:])


def word_of(token: int) -> str:
    return WORDS[token] if token < len(WORDS) else f"w{token}"


def messages(
    inputs: Mapping[str, Any], gone: Callable[[], bool], note: Callable[[str], None]
) -> Iterator[Message]:
    """`note` hears how it ended, with its tokens. Raises BackendError."""
    try:
        told, prompt = read(inputs)
    except (AssertionError, KeyError, ValueError) as error:
        raise BackendError(f"Error generating stream: {error!r}") from error
    made: list[int] = []
    size = 3 if prompt[0] == number_of("every") else 1
    reason: str | None = None
    while reason is None:
        if goes_wrong(prompt[0], len(made)):
            return
        before = len(made)
        while reason is None and len(made) - before < size:
            made.append(chosen(prompt, len(made), told))
            reason = reason_of(made, told)
        left = True
        try:
            yield Message(said(prompt, made[before:], reason), reason is not None)
            # As the backend: asked once a message was sent.
            left = reason is None and gone()
        finally:
            # A gRPC server of Python closes what a caller left.
            if left:
                note(f"cancelled {len(made)}")
        if left:
            return
    note(f"ended {len(made)}")


def goes_wrong(mark: int, made: int) -> bool:
    """Whether it says nothing more. Raises BackendError."""
    if mark == number_of("refuse") or (made == 3 and mark == number_of("fail")):
        raise BackendError("Error generating stream: something went wrong")
    if mark == number_of("slow"):
        time.sleep(0.05)
    return made == 3 and mark == number_of("hang")


def read(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    told = check(inputs)
    return told, [number_of(word) for word in inputs["text_input"].split()]


def check(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of the sampling. Raises AssertionError for what the backend would not take."""
    assert set(inputs) <= set(INPUTS), "an input that the backend does not have"
    assert inputs["stream"]
    assert inputs["exclude_input_in_output"]
    told = json.loads(inputs["sampling_parameters"])
    assert set(told) <= PARAMETERS, "a parameter that vLLM does not have"
    assert inputs["return_logprobs"], "tokens are read from these"
    assert told["logprobs"] == 0, "the chosen token's alone"
    assert told.get("top_k", -1) != 0, "vLLM has -1 for all"
    sampling: dict[str, Any] = told
    return sampling


def chosen(prompt: list[int], at: int, told: dict[str, Any]) -> int:
    token = prompt[at % len(prompt)]
    return token if told["temperature"] == 0 else 12 + (token + told["seed"]) % 20


def reason_of(made: list[int], told: dict[str, Any]) -> str | None:
    # Before the least number vLLM looks for no end at all, a stop string included.
    if len(made) > told.get("min_tokens", 0):
        text = "".join(f" {word_of(token)}" for token in made)
        found = any(stop in text for stop in told.get("stop", ()))
        if found or made[-1] in told["stop_token_ids"]:
            return "stop"
    return "length" if len(made) >= told["max_tokens"] else None


def said(prompt: list[int], fresh: list[int], reason: str | None) -> dict[str, Any]:
    rows = [
        {token: {"logprob": -0.5 * (1 + token % 3), "rank": 1, "decoded_token": word_of(token)}}
        for token in fresh
    ]
    miscounts = prompt[0] == number_of("cache")
    return {
        "text_output": "never read",
        "finish_reason": str(reason),
        "logprobs": json.dumps(rows),
        "num_input_tokens": len(prompt) + miscounts,
        "num_output_tokens": len(fresh),
    }
