"""A caller's parameters by our names, and what those of vLLM ask that is not here.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from preprocess.dialects.operation import given
from transformer_serving.contract.errors import ServingError

# Of vLLM's server and backend: what this engine does not have, and the values that ask for nothing.
VLLM_LACKS: Mapping[str, tuple[Any, ...]] = {
    "min_p": (None, 0), "length_penalty": (None, 1), "stop_token_ids": (None, []),
    "bad_words": (None, "", []), "allowed_token_ids": (None, []), "use_beam_search": (None, False),
    "skip_special_tokens": (None, True), "spaces_between_special_tokens": (None, True),
    "include_stop_str_in_output": (None, False), "prompt_logprobs": (None,),
}  # fmt: skip
LEAST = "min_tokens"


def taken(body: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What the body has, by our names. Raises ServingError (400) where two of its names say
    different things of one parameter.
    """
    found: dict[str, str] = {}
    for name, ours in names.items():
        if body.get(name) is None:
            continue
        other = found.setdefault(ours, name)
        if body[name] != body[other]:
            raise said_twice(name, f"'{other}' and '{name}'")
    return given(body, names)


def said_twice(field: str, both: str) -> ServingError:
    return ServingError(
        "invalid_field", f"{both} say different things of one parameter; send one of them",
        field=field,
    )  # fmt: skip


def check_least(body: Mapping[str, Any], stops: tuple[str, ...]) -> None:
    """A least number of tokens asks for nothing at 0, nor beside `ignore_eos`, which goes on to the
    most there may be, as load generators send both. Raises ServingError (422).
    """
    least = body.get(LEAST)
    goes_on = body.get("ignore_eos") is True and not any(body.get(name) for name in stops)
    if least not in (None, 0) and not (type(least) is int and goes_on):
        raise ServingError(
            "impossible",
            f"'{LEAST}' is not supported; leave it out, or send 'ignore_eos' and no stop beside it",
            field=LEAST,
        )  # fmt: skip
