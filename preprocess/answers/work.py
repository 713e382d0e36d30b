"""What a task gives the engine, and what it must remember of it to render the answer.

Tested by tests/preprocess/answers/test_equality.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from preprocess.request import Request
from preprocess.tokens import Encoded

# As JSON so many of an answer's texts take about as long as one of its pieces.
CHARACTERS_A_PIECE = 256


class Work(NamedTuple):
    """The rows of one request; `context` is the task's own: offsets, whose row is whose.

    `pieces` is how many tokens, spans or fillings its answer is made of one by one, or what takes
    as long.
    """

    request: Request
    encoded: Sequence[Encoded]
    context: Any = None
    pieces: int = 0
