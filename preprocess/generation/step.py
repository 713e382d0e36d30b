"""One message of the engine: new tokens of a sequence, and how it stands with it.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Finish


@dataclass(frozen=True)
class EngineStep:
    """`logprobs` are as many as the ids, or none. `new_tokens` counts the whole sequence's."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish
    new_tokens: int


def not_as_agreed() -> ServingError:
    return ServingError(
        "engine_failed",
        "an answer of the engine is not as the contract says; deploy the bundle again",
    )
