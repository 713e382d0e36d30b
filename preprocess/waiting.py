"""The texts that wait for the engine, by length bucket: pure, no clock and no loop."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """A text in the queue; `done` when nobody wants its answer any more."""

    @property
    def length(self) -> int: ...

    @property
    def done(self) -> bool: ...


Item = TypeVar("Item", bound=Waiting)

# What a call costs beyond its tokens, as tokens: calls of 20-token texts took a MiniLM 1.3 ms and
# 0.035 ms a token on two cores, and its call 0.5 to 1 ms on its way. An engine whose calls have no
# limit is a GPU's, which computes tokens far faster: an estimate, none was measured.
CALL_COST = 56
UNLIMITED_CALL_COST = 1024


@dataclass(frozen=True)
class Batch(Generic[Item]):
    """What leaves together: texts padded to `length` tokens, oldest of the bucket first."""

    items: list[Item]
    length: int


class WaitingTexts(Generic[Item]):
    """First come, first served by bucket: the oldest text picks the next call's length."""

    def __init__(
        self, buckets: Sequence[int], max_batch_size: int, max_call_tokens: int | None = None
    ) -> None:
        self._buckets = tuple(buckets)
        self._call_cost = CALL_COST if max_call_tokens else UNLIMITED_CALL_COST
        most = max_call_tokens or max_batch_size * self._buckets[-1]
        self._room = [max(1, min(max_batch_size, most // size)) for size in self._buckets]
        self._queues: list[deque[tuple[int, Item]]] = [deque() for _ in buckets]
        self._arrivals = 0
        self._size = 0
        self._given_up = 0

    def __len__(self) -> int:
        """Texts in the queue, also those that nobody wants any more."""
        return self._size

    def push(self, item: Item) -> None:
        bucket = bisect_left(self._buckets, item.length)
        self._queues[bucket].append((self._arrivals, item))
        self._arrivals += 1
        self._size += 1

    def take(self) -> Batch[Item] | None:
        """The next call, as large as the limits let it be; None when nothing waits.

        Room that the bucket leaves is filled from smaller ones, longest texts first, while each
        adds no smaller a share of useful tokens than the call has without it: until then padding
        the text costs less than its part of another call.
        """
        self._drop_done()
        heads = [(queue[0][0], at) for at, queue in enumerate(self._queues) if queue]
        if not heads:
            return None
        bucket = min(heads)[1]
        length, room = self._buckets[bucket], self._room[bucket]
        items = self._popped(self._queues[bucket], room)
        tokens = sum(item.length for item in items)
        for queue in reversed(self._queues[:bucket]):
            while len(items) < room and (guest := self._first(queue)) is not None:
                if guest.length * (self._call_cost + len(items) * length) < length * tokens:
                    return Batch(items, length)
                items += self._popped(queue, 1)
                tokens += guest.length
        return Batch(items, length)

    def given_up(self, texts: int) -> None:
        """So many texts are done without an answer; they go once they are half of the queue.

        An engine that hangs takes nothing: without this the queue would grow with every request
        that came and gave up meanwhile.
        """
        self._given_up += texts
        if 2 * self._given_up <= self._size:
            return
        self._given_up = 0
        for bucket, queue in enumerate(self._queues):
            self._queues[bucket] = deque(entry for entry in queue if not entry[1].done)
        self._size = sum(map(len, self._queues))

    def _popped(self, queue: deque[tuple[int, Item]], most: int) -> list[Item]:
        """Up to so many texts that are still wanted, oldest first."""
        items: list[Item] = []
        while len(items) < most and (item := self._first(queue)) is not None:
            queue.popleft()
            self._size -= 1
            items.append(item)
        return items

    def _first(self, queue: deque[tuple[int, Item]]) -> Item | None:
        """The oldest text that is still wanted; what is older goes."""
        while queue:
            item = queue[0][1]
            if not item.done:
                return item
            queue.popleft()
            self._size -= 1
        return None

    def _drop_done(self) -> None:
        for queue in self._queues:
            self._first(queue)
