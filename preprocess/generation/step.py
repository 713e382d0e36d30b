"""One message of the engine: new tokens of a sequence, and how it stands with it.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from preprocess.triton.replies import Outputs
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import LOGPROBS, STATE, TOKEN_IDS, Finish

_DTYPES = {TOKEN_IDS: "<i4", LOGPROBS: "<f4", STATE: "<i4"}


@dataclass(frozen=True)
class EngineStep:
    """`logprobs` are as many as the ids, or none. Token counts are of the whole sequence."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish
    prompt_tokens: int
    new_tokens: int


def read_step(outputs: Outputs) -> EngineStep:
    """Raises ServingError `engine_failed` for what is not as the contract says."""
    try:
        ids, logprobs, state = (_values(outputs, name) for name in (TOKEN_IDS, LOGPROBS, STATE))
        finish, prompt_tokens, new_tokens = state
        if logprobs and len(logprobs) != len(ids):
            raise ValueError("as many log-probabilities as tokens")
        return EngineStep(ids, logprobs, Finish(finish), prompt_tokens, new_tokens)
    except (KeyError, ValueError):
        raise ServingError(
            "engine_failed",
            "an answer of the engine is not as the contract says; deploy the bundle again",
        ) from None


def _values(outputs: Outputs, name: str) -> list[Any]:
    values: list[Any] = np.frombuffer(outputs[name].raw, _DTYPES[name]).tolist()
    return values
