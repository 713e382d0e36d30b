"""OpenAI's completions and chat completions: what its API reference has of them, where it can.

Beside its fields those that vLLM's server takes of transformers' terms. Sampling is its default; a
temperature of 0 takes the likeliest token. Log-probabilities are the chosen tokens' alone.

Tested by tests/preprocess/generation/test_voices.py and tests/preprocess/generation/test_chat.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from preprocess.dialects.operation import Asked, check_name, read_fields, read_flag
from preprocess.generation.chat import words_of
from preprocess.generation.dialects.parameters import VLLM_LACKS, VLLM_TAKEN, taken
from preprocess.generation.dialects.sampling import as_vllm, fold_seed
from preprocess.generation.dialects.tgi import LACKS as TGI_LACKS
from preprocess.request import wrong
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation

_TAKEN = {
    "max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens",
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "seed": "seed",
    "repetition_penalty": "repetition_penalty", "n": "num_return_sequences", "stop": "stop",
    "ignore_eos": "ignore_eos", **VLLM_TAKEN,
}  # fmt: skip
# About the caller and its billing.
_UNHEARD = (
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
    "parallel_tool_calls", "prompt_cache_retention", "prompt_cache_options",
)  # fmt: skip
# What this engine does not have, and the values that ask for nothing.
_LACKS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (None, 1), "logit_bias": (None, {}), "suffix": (None, ""), "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none", "auto"), "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}), "top_logprobs": (None, 0),
    "modalities": (None, ["text"]), "audio": (None,), "prediction": (None,),
    "reasoning_effort": (None, "none"), "web_search_options": (None,),
    "verbosity": (None, "medium"), "add_generation_prompt": (None, True),
    "continue_final_message": (None, False), **VLLM_LACKS,
}  # fmt: skip
_DEVELOPER = "developer"
_COMMON = ("model", "stream", "stream_options", "logprobs", *_TAKEN, *_UNHEARD)
_OF_COMPLETIONS = ("prompt", "echo", *_COMMON)
# And where text-generation-inference's own parameters may stand beside the prompt. Of those
# `return_full_text` is `echo`, and these answers have no `details`.
_TAKEN_AT_TGI = {**_TAKEN, "do_sample": "do_sample", "truncate": "truncate"}
_LACKS_AT_TGI = {**TGI_LACKS, **_LACKS}
_FULL_TEXT, _DETAILS = "return_full_text", "details"


def read_completion(asked: Asked) -> dict[str, Any]:
    return _read_completion(asked, read_fields(asked.body, _OF_COMPLETIONS, tuple(_LACKS)))


def read_tgi_completion(asked: Asked) -> dict[str, Any]:
    """As npm's @huggingface/inference asks for text: its task's parameters, as they are, and the
    prompt.
    """
    known = (*_OF_COMPLETIONS, *_TAKEN_AT_TGI, _FULL_TEXT, _DETAILS)
    body = read_fields(asked.body, known, tuple(_LACKS_AT_TGI))
    read_flag(body, _DETAILS)
    return _read_completion(asked, body)


def _read_completion(asked: Asked, body: Mapping[str, Any]) -> dict[str, Any]:
    prompt = body.get("prompt")
    rows = prompt if isinstance(prompt, list) else [prompt]
    if any(type(row) in (int, list) for row in rows):
        raise ServingError(
            "invalid_field",
            "field 'prompt' holds token ids, which may be another tokenizer's, and must hold texts",
            field="prompt",
        )
    full_text = read_flag(body, _FULL_TEXT)
    echo = read_flag(body, "echo") or full_text
    logprobs = body.get("logprobs")
    if logprobs not in (None, 0, 1) or isinstance(logprobs, bool):
        raise ServingError(
            "impossible", "parameter 'logprobs' gives those of the chosen tokens alone; send 1 or "
            "leave it out", field="logprobs", limit=1,
        )  # fmt: skip
    if echo and logprobs is not None:
        raise ServingError(
            "impossible", "the prompt's log-probabilities, which 'logprobs' asks for beside "
            "'echo', are not known; leave out one of the two", field="logprobs",
        )  # fmt: skip
    own = _read(asked, body, echo=echo, logprobs=logprobs is not None)
    # A list of one is no reason to refuse a stream.
    own["text"] = rows[0] if len(rows) == 1 else prompt
    return own


def read_chat(asked: Asked) -> dict[str, Any]:
    body = read_fields(asked.body, ("messages", *_COMMON), tuple(_LACKS))
    own = _read(asked, body, echo=False, logprobs=read_flag(body, "logprobs"))
    own["messages"] = _as_its_template_names(body.get("messages"), asked.endpoint.generation)
    return own


def _as_its_template_names(messages: Any, generation: Generation | None) -> Any:
    """With `system` for `developer`, OpenAI's later name of it, unless the model's template has
    that: most write nothing of what a role says that they do not know.
    """
    template = None if generation is None else generation.chat_template
    if not isinstance(messages, list) or template is None or _DEVELOPER in words_of(template):
        return messages
    return [
        {**row, "role": "system"}
        if isinstance(row, Mapping) and row.get("role") == _DEVELOPER
        else row
        for row in messages
    ]


def _read(asked: Asked, body: Mapping[str, Any], *, echo: bool, logprobs: bool) -> dict[str, Any]:
    for name, allowed in _LACKS_AT_TGI.items():
        if body.get(name) not in allowed:
            raise ServingError(
                "impossible", f"field '{name}' is not supported; leave it out", field=name
            )
    check_name(body, "model")
    _check_stream_options(body)
    parameters = {"do_sample": True, **taken(body, _TAKEN_AT_TGI)}
    as_vllm(parameters, asked.endpoint.generation)
    fold_seed(parameters)
    parameters |= {"return_full_text": echo, "logprobs": logprobs}
    return {"parameters": parameters, "stream": read_flag(body, "stream")}


def _check_stream_options(body: Mapping[str, Any]) -> None:
    options = body.get("stream_options")
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise wrong("stream_options", "an object", options)
    for name in ("include_usage", "include_obfuscation"):
        read_flag(options, name)
