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

        Room that the bucket leaves is filled from smaller ones with texts at least three quarters
        as long as the call: padding them costs less than a call of their own.
        """
        self._drop_done()
        heads = [(queue[0][0], at) for at, queue in enumerate(self._queues) if queue]
        if not heads:
            return None
        bucket = min(heads)[1]
        length = self._buckets[bucket]
        items: list[Item] = []
        room = self._room[bucket]
        self._fill(items, self._queues[bucket], room, 0)
        for smaller in reversed(range(bucket)):
            if 4 * self._buckets[smaller] < 3 * length:
                break
            self._fill(items, self._queues[smaller], room, -(-3 * length // 4))
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

    def _fill(
        self, items: list[Item], queue: deque[tuple[int, Item]], room: int, shortest: int
    ) -> None:
        while queue and len(items) < room:
            item = queue[0][1]
            if not item.done and item.length < shortest:
                return
            queue.popleft()
            self._size -= 1
            if not item.done:
                items.append(item)

    def _drop_done(self) -> None:
        for queue in self._queues:
            while queue and queue[0][1].done:
                queue.popleft()
                self._size -= 1
