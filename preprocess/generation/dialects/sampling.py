"""What other servers are told of sampling, in our parameters, which are changed in their place.

Tested by tests/preprocess/generation/test_sampling.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from preprocess.generation.request import OF_SAMPLING
from transformer_serving.contract.generation import LEAST_SAMPLING, MAX_SEED, Generation

_SPEAKING_OF_IT = ("do_sample", *OF_SAMPLING, "typical_p")
_WITHOUT_EFFECT = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    "min_new_tokens": 0,
}  # fmt: skip


def as_vllm(own: dict[str, Any], generation: Generation | None) -> None:
    """Who sends one of them samples, from all tokens where neither the request nor the model says
    of how many. A temperature of 0 takes the likeliest token, as does one that engines would round
    to it, and a `top_k` of -1 leaves every token in.
    """
    if _is(own.get("top_k"), -1):
        own["top_k"] = 0
    if _is_none(own.get("temperature")):
        del own["temperature"]
        own["do_sample"] = False
        if _is_none(own.get("top_p")):
            # It has nothing to choose from, and is refused where it has.
            del own["top_p"]
    elif _any(own):
        own.setdefault("do_sample", True)
    if own.get("do_sample") is True and generation is not None and generation.top_k_is_unsaid:
        own.setdefault("top_k", 0)


def as_tgi(own: dict[str, Any], sent: Mapping[str, Any]) -> None:
    """Who sends one of them samples where it changes anything, also with `do_sample` false, and
    else takes the likeliest token: NextTokenChooser of its server/text_generation_server/utils.

    What is left out of `sent`, the caller's parameters, changes nothing: router/src/validation.rs
    knows of no model's values. Ours are left where nothing is said of sampling at all.
    """
    if all(sent.get(name) is None for name in _SPEAKING_OF_IT):
        return
    if own.get("do_sample", False) is False:
        top_p = own.get("top_p", 1)
        # What is no number stays, to be refused.
        own["do_sample"] = (
            own.get("temperature", 1) != 1
            or own.get("top_k", 0) != 0
            or (_is_number(top_p) and top_p < 1)
        )
    for name, value in _WITHOUT_EFFECT.items():
        own.setdefault(name, value)


def fold_seed(own: dict[str, Any]) -> None:
    """A seed of 64 bits, with a sign or without, becomes the one of ours that is 2^63 from it."""
    seed = own.get("seed")
    # What is no such number stays, to be refused.
    if type(seed) is int and -MAX_SEED - 1 <= seed <= 2 * MAX_SEED + 1:
        own["seed"] = seed % (MAX_SEED + 1)


def _any(own: dict[str, Any]) -> bool:
    return any(name in own for name in OF_SAMPLING)


def _is_none(value: Any) -> bool:
    """A number that engines would take for 0."""
    return _is_number(value) and 0 <= value <= LEAST_SAMPLING


def _is(value: Any, number: int) -> bool:
    return _is_number(value) and value == number


def _is_number(value: Any) -> TypeGuard[int | float]:
    """False is no 0."""
    return type(value) in (int, float)
