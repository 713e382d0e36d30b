"""The requests that run at the candidate of a rollout, which is not to be taken from under them.

The host takes a change over beside them. What it drew for the candidate before its route went may
wait for the engine still, or ask it again for the rest of a long list.

Tested by tests/gateway/test_rollout_figures.py.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import wraps
from typing import Any

# By the candidate's name; the sync thread makes the rows, and mostly there are none.
UNDER_WAY: dict[str, set[object]] = {}


class Leavers:
    """Who ran at a candidate when its route had just gone. In the sync thread.

    Only those are waited for: callers may ask the candidate by its own name as long as it is there.
    """

    def __init__(self) -> None:
        self._of: dict[str, frozenset[object]] = {}

    def note(self, candidates: set[str]) -> None:
        """Of these it is known who runs there, from now on. Told before the host draws for them."""
        for name in candidates - UNDER_WAY.keys():
            UNDER_WAY[name] = set()

    def keep(self, candidates: set[str]) -> None:
        """Of others no more."""
        for gone in UNDER_WAY.keys() - candidates:
            del UNDER_WAY[gone]
        self._of = {name: left for name, left in self._of.items() if name in candidates}

    def begin(self, candidate: str) -> None:
        """The host has just taken over routes without it: its last requests are those of now."""
        self._of[candidate] = frozenset(UNDER_WAY[candidate])

    def has(self, candidate: str) -> bool:
        """Whether one of them still runs."""
        if candidate not in self._of:
            self.begin(candidate)
        return not self._of[candidate].isdisjoint(frozenset(UNDER_WAY[candidate]))


def note_under_way(processor_class: Any) -> None:
    """Have the host's processor note what it asks of the candidates, by what it has drawn."""
    process = processor_class._process_request

    @wraps(process)
    def process_request(self: Any, processor: Any, url: str, body: Any) -> Awaitable[Any]:
        work: Awaitable[Any] = process(self, processor=processor, url=url, body=body)
        running = UNDER_WAY.get(url)
        return work if running is None else _noted(running, work)

    processor_class._process_request = process_request


async def _noted(running: set[object], work: Awaitable[Any]) -> Any:
    request = object()
    running.add(request)
    try:
        return await work
    finally:
        running.discard(request)
