"""A caller's parameters by our names, and those of vLLM: which are taken, and which are not here.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from preprocess.dialects.operation import given
from transformer_serving.contract.errors import ServingError

# Of vLLM's server and backend: what this engine does not have, and the values that ask for nothing.
VLLM_LACKS: Mapping[str, tuple[Any, ...]] = {
    "length_penalty": (None, 1), "stop_token_ids": (None, []),
    "bad_words": (None, "", []), "allowed_token_ids": (None, []), "use_beam_search": (None, False),
    "skip_special_tokens": (None, True), "spaces_between_special_tokens": (None, True),
    "include_stop_str_in_output": (None, False), "prompt_logprobs": (None,),
}  # fmt: skip
# Of both, and the first two of OpenAI's own.
VLLM_TAKEN = {
    "frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty",
    "min_tokens": "min_new_tokens", "min_p": "min_p",
}  # fmt: skip


def taken(body: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What the body has, by our names. Raises ServingError (400) where two of its names say
    different things of one parameter.
    """
    found: dict[str, str] = {}
    for name, ours in names.items():
        if body.get(name) is None:
            continue
        other = found.setdefault(ours, name)
        if differ(body[name], body[other]):
            raise said_twice(name, f"'{other}' and '{name}'")
    return given(body, names)


def differ(one: Any, other: Any) -> bool:
    """Also where they nest too deep to be compared: no parameter does."""
    try:
        return bool(one != other)
    except RecursionError:
        return True


def said_twice(field: str, both: str) -> ServingError:
    return ServingError(
        "invalid_field", f"{both} say different things of one parameter; send one of them",
        field=field,
    )  # fmt: skip
