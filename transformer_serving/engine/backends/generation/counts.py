"""What the engine thread counts, for figures and logs.

Tested by tests/engine/test_generation_engine.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """What came of the calls since the start; `running`, `waiting`, `cache_use` and
    `cache_reserved` are of now.
    """

    running: int = 0
    waiting: int = 0
    cache_use: float = 0.0
    cache_reserved: float = 0.0
    prompt_tokens: int = 0
    new_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    failed: int = 0
    rebuilt: int = 0
