"""The Open Inference Protocol's infer, as MLServer's Hugging Face runtime has text-generation.

A row a prompt: its pipeline answers one with a list of objects, several with a list of lists.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from typing import Any

from preprocess.dialects import OPERATIONS
from preprocess.dialects.operation import Answered, Asked, Operation
from preprocess.response import Reply

_INFER: Operation = OPERATIONS["v2.infer"]


def read(asked: Asked) -> dict[str, Any]:
    """`truncate`, of other tasks' bodies, is a parameter here."""
    own: dict[str, Any] = _INFER.read(asked)
    if "truncate" in own:
        own["parameters"] = {**own.get("parameters", {}), "truncate": own.pop("truncate")}
    return own


def write(answered: Answered) -> Reply:
    reply: Reply = _INFER.write(answered)
    return reply
