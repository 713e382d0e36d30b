"""The calls that run, by model and Triton, and how many more of a model may.

Tested by tests/preprocess/test_several_tritons.py.
"""

from __future__ import annotations

from collections.abc import Collection

from preprocess.triton.member import Member, Model


class RunningCalls:
    """Also those on Tritons that are known no more, where they may hang."""

    def __init__(self) -> None:
        self._calls: dict[Model, dict[Member, int]] = {}

    def begin(self, model: Model, member: Member) -> None:
        member.in_flight += 1
        running = self._calls.setdefault(model, {})
        running[member] = running.get(member, 0) + 1

    def end(self, model: Model, member: Member) -> None:
        member.in_flight -= 1
        running = self._calls[model]
        running[member] -= 1
        if not running[member]:
            del running[member]
            if not running:
                # Versions that were replaced are kept no more.
                del self._calls[model]

    def with_room(self, model: Model, members: list[Member], most: float) -> list[Member]:
        """Those on which fewer calls of the model run than `most`."""
        running = self._calls.get(model, {})
        return [member for member in members if running.get(member, 0) < most]

    def slots(
        self, model: Model, here: Collection[Member], every: Collection[Member], most: int
    ) -> int:
        """How many calls of the model may run now: `most` on each of those that are `here`.

        What hangs elsewhere, or was carried to one that was full, takes nobody's place. With nobody
        here each of `every` may have `most` and none more: there it would grow without end.
        """
        running = self._calls.get(model, {})
        slots = sum(running.values())
        for member in here or every:
            room = most - running.get(member, 0)
            if room > 0 or not here:
                slots += room
        return max(most, slots)
