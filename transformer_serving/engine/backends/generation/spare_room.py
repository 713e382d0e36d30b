"""What is left of an engine's places and blocks, for a caller or for a health check.

A check has a place and SPARE_BLOCKS blocks beside those that callers share, and so takes none of
theirs. Only where several run at once the others have what is the callers'.

Tested by tests/engine/test_generation_engine.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from transformer_serving.contract.engine_parameters import SPARE_BLOCKS
from transformer_serving.engine.backends.generation.sequences import Running
from transformer_serving.engine.backends.generation.settings import GenerationSettings

_SPARE_PLACES = 1


class Room(NamedTuple):
    places: int
    blocks: int


def room_left(
    settings: GenerationSettings, running: Iterable[Running], blocks: int, *, first: bool = False
) -> Room:
    """Beside those that run, which have `blocks`; `first` is for a health check."""
    # In one step, as the engine's thread goes on.
    every = tuple(running)
    spare = Room(_SPARE_PLACES, SPARE_BLOCKS)
    if not first:
        # What no check has in use is kept for the next one.
        checks = [one.call.blocks for one in every if one.call.options.first]
        spare = Room(min(spare.places, len(checks)), min(spare.blocks, sum(checks)))
    return Room(
        settings.max_running + spare.places - len(every),
        settings.kv_blocks + spare.blocks - blocks,
    )
