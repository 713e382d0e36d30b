"""The texts that wait for the engine, by length bucket: pure, no clock and no loop.

Whose turn it is: a request's first text stands in line as it comes. Each further one stands where a
request would stand that came when the engine had taken PACE times the tokens of those before it.
What goes first, such as a health check, stands before all of them.
So a request of many texts has one part in PACE of the engine while others wait, and all of it when
nobody does; and what came behind a text passes it only for so long, never without end.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

from preprocess.queue.cost import OwnCost


class Waiting(Protocol):
    """A text in the queue."""

    @property
    def length(self) -> int: ...


Item = TypeVar("Item", bound=Waiting)
# A text's place in line: its turn in tokens taken, its number among all, and the text itself or
# None once it has left. A list, because it stands in two heaps and leaves both at once.
Place = list[Any]

# One request's texts get this part of the engine, one in so many, while others wait.
PACE = 4
_BEFORE_ALL = -1

# What a call costs beyond its tokens, as tokens: calls of 20-token texts took a MiniLM 1.3 ms and
# 0.035 ms a token on two cores, and its call 0.5 to 1 ms on its way. An engine whose calls have no
# limit is a GPU's: on an H200 a MiniLM's call took 0.4 ms and 0.00011 ms a token (docs/gpu.md).
# On slower cores a call's own part was 59 to 63 tokens of a MiniLM (8 ms) and 38 to 43 of a BERT
# base (58 to 65 ms), but 8 to 20 of a BERT large (51 to 130 ms): docs/decisions/queue.md.
CALL_COST = OwnCost(56, 0.06)
UNLIMITED_CALL_COST = OwnCost(3600)
# A call that is cut short in time still has this part of its room: one that takes long by a cost
# of its own would else be cut to one text, and the engine do nothing but calls.
_LEAST_ROOM = 4


def _every(item: object) -> bool:
    return True


@dataclass(frozen=True)
class Batch(Generic[Item]):
    """What leaves together: texts padded to `length` tokens, oldest of the bucket first."""

    items: list[Item]
    length: int


class WaitingTexts(Generic[Item]):
    """The oldest turn picks the next call's length; within a length, turns go in order.

    `tokens` counts all that wait, `due_tokens` those whose turn has come: what a text that comes
    now would wait for. Both are exact at once, also when texts leave without an answer. A call
    costs `call_cost` beside its tokens.
    """

    def __init__(
        self, buckets: Sequence[int], max_batch_size: int, max_call_tokens: int | None = None
    ) -> None:
        self._buckets = tuple(buckets)
        self.call_cost = CALL_COST if max_call_tokens else UNLIMITED_CALL_COST
        most = max_call_tokens or max_batch_size * self._buckets[-1]
        self._most_tokens, self._most_texts = most, max_batch_size
        self._room = [max(1, min(max_batch_size, most // size)) for size in self._buckets]
        self._queues: list[list[Place]] = [[] for _ in buckets]
        self._later: list[Place] = []
        self._numbers = 0
        self._taken = self._ripe = 0
        self._size = 0
        self._left_behind = 0
        self.tokens = 0
        self.due_tokens = 0

    def __len__(self) -> int:
        return self._size

    def push(self, items: Sequence[Item], *, first: bool = False) -> list[Place]:
        """One request's texts in their order; their places, by which they can be removed."""
        turn, pace = (_BEFORE_ALL, 0) if first else (self._taken, PACE)
        places: list[Place] = []
        for item in items:
            length = item.length
            place: Place = [turn, self._numbers, item]
            self._numbers += 1
            heappush(self._queues[bisect_left(self._buckets, length)], place)
            if turn > self._taken:
                heappush(self._later, place)
            else:
                self.due_tokens += length
            self.tokens += length
            turn += pace * length
            places.append(place)
        self._size += len(places)
        return places

    def remove(self, places: Sequence[Place]) -> int:
        """Take out those that still wait; how many they were."""
        left = 0
        for place in places:
            if place[2] is not None:
                self._leave(place)
                left += 1
        self._left_behind += left
        if 2 * self._left_behind > self._size + 16:
            self._tidy()
        return left

    def calls(self, tokens: float) -> int:
        """How many calls so many of the waiting tokens fill."""
        if not self._size:
            return 0
        texts = self._size * tokens / self.tokens
        return int(max(texts / self._most_texts, tokens / self._most_tokens))

    def calls_of(self, texts: int, tokens: int) -> int:
        """How many calls a request makes of its own."""
        return math.ceil(max(texts / self._most_texts, tokens / self._most_tokens))

    def fills_a_call(self) -> bool:
        """Whether what waits would fill a call of the longest bucket."""
        return self._size >= self._room[-1]

    def has(self, is_ready: Callable[[Item], bool]) -> bool:
        """Whether the next in line of a bucket is ready."""
        return any(queue and self._first(queue, _every, is_ready) for queue in self._queues)

    def take(
        self,
        is_wanted: Callable[[Item], bool] = _every,
        most_tokens: float = math.inf,
        is_ready: Callable[[Item], bool] = _every,
        least_room: int = _LEAST_ROOM,
    ) -> Batch[Item] | None:
        """The next call, as large as the limits let it be; None when nothing waits.

        It has no more than `most_tokens`, but one part in `least_room` of its room in any case.
        Who stands behind one that is not ready waits with it.

        Room that the bucket leaves is filled from smaller ones, longest texts first, while each
        adds no smaller a share of useful tokens than the call has without it: until then padding
        the text costs less than its part of another call. A text that `is_wanted` says no to is
        left out; it may remove its own request's places, no others.
        """
        heads = [
            (place[0], place[1], at)
            for at, queue in enumerate(self._queues)
            if queue and (place := self._first(queue, is_wanted, is_ready)) is not None
        ]
        if not heads:
            return None
        bucket = min(heads)[2]
        length, room = self._buckets[bucket], self._room[bucket]
        room = int(min(room, max(most_tokens // length, -(-room // least_room))))
        items = self._popped(self._queues[bucket], room, is_wanted, is_ready)
        tokens = sum(item.length for item in items)
        for queue in reversed(self._queues[:bucket] if self._size else ()):
            while (
                len(items) < room and (place := self._first(queue, is_wanted, is_ready)) is not None
            ):
                size = place[2].length
                if size * (self.call_cost.tokens + len(items) * length) < length * tokens:
                    break
                items += self._popped(queue, 1, is_wanted, is_ready)
                tokens += size
        self._taken += tokens
        self._ripen()
        return Batch(items, length)

    def _popped(
        self,
        queue: list[Place],
        most: int,
        is_wanted: Callable[[Item], bool],
        is_ready: Callable[[Item], bool],
    ) -> list[Item]:
        items: list[Item] = []
        while len(items) < most and (place := self._first(queue, is_wanted, is_ready)) is not None:
            heappop(queue)
            items.append(place[2])
            self._leave(place)
        return items

    def _first(
        self,
        queue: list[Place],
        is_wanted: Callable[[Item], bool],
        is_ready: Callable[[Item], bool],
    ) -> Place | None:
        """The next in line of a bucket that is still wanted, if it is ready; those before it go."""
        while queue:
            place = queue[0]
            if place[2] is not None and is_wanted(place[2]):
                return place if is_ready(place[2]) else None
            if place[2] is not None:
                self._leave(place)
            if queue and queue[0] is place:
                heappop(queue)
        return None

    def _leave(self, place: Place) -> None:
        length = place[2].length
        place[2] = None
        self._size -= 1
        self.tokens -= length
        if place[0] <= self._ripe:
            self.due_tokens -= length

    def _ripen(self) -> None:
        """Count in whose turn has come by what was taken."""
        self._ripe = self._taken
        while self._later and self._later[0][0] <= self._ripe:
            item = heappop(self._later)[2]
            if item is not None:
                self.due_tokens += item.length

    def _tidy(self) -> None:
        """Drop the places of texts that left: before an engine that hangs they would pile up."""
        self._left_behind = 0
        for queue in (*self._queues, self._later):
            queue[:] = [place for place in queue if place[2] is not None]
            heapify(queue)
