from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from preprocess.queue.waiting import (
    CALL_COST,
    PACE,
    UNLIMITED_CALL_COST,
    Batch,
    Place,
    WaitingTexts,
)

BUCKETS = (4, 8, 24, 28, 32)


@dataclass
class Item:
    number: int
    length: int


LENGTHS = st.lists(st.integers(1, 32), min_size=1, max_size=40)
REQUESTS = st.lists(LENGTHS, max_size=40)


def pushed(waiting: WaitingTexts[Item], requests: list[list[int]]) -> list[list[Item]]:
    made: list[list[Item]] = []
    number = 0
    for lengths in requests:
        made.append([Item(number + at, length) for at, length in enumerate(lengths)])
        number += len(lengths)
        waiting.push(made[-1])
    return made


def check_guests(batch: Batch[Item], cost: float) -> None:
    """None of another bucket makes the call's share of useful tokens smaller."""
    shorter = max((size for size in BUCKETS if size < batch.length), default=0)
    tokens = 0
    for count, item in enumerate(batch.items):
        if item.length <= shorter:
            share = tokens / (cost + count * batch.length)
            with_it = (tokens + item.length) / (cost + (count + 1) * batch.length)
            assert with_it >= share - 1e-12
        tokens += item.length


@given(REQUESTS, st.integers(0, 400))
def test_who_is_not_ready_waits_and_leaves_later(requests: list[list[int]], ready: int) -> None:
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, 8, 256)
    items = [item for request in pushed(waiting, requests) for item in request]

    def is_ready(item: Item) -> bool:
        return item.number < ready

    left: list[int] = []
    while waiting.has(is_ready):
        batch = waiting.take(is_ready=is_ready)
        assert batch is not None
        left += [item.number for item in batch.items]
    assert waiting.take(is_ready=is_ready) is None
    assert all(number < ready for number in left)
    assert len(waiting) == len(items) - len(left)
    while batch := waiting.take(most_tokens=1.0, least_room=2**31):
        assert len(batch.items) == 1
        left.append(batch.items[0].number)
    assert sorted(left) == [item.number for item in items]
    assert (waiting.tokens, waiting.due_tokens) == (0, 0)


@given(REQUESTS, st.integers(1, 64), st.none() | st.integers(1, 300), st.data())
def test_every_wanted_text_leaves_once_in_a_call_that_fits(
    requests: list[list[int]], max_batch: int, max_tokens: int | None, data: st.DataObject
) -> None:
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, max_batch, max_tokens)
    items = [item for request in pushed(waiting, requests) for item in request]
    unwanted = {item.number for item in items if data.draw(st.booleans())}
    left: list[int] = []
    while batch := waiting.take(lambda item: item.number not in unwanted):
        assert 1 <= len(batch.items) <= max_batch
        if max_tokens is not None and len(batch.items) > 1:
            assert len(batch.items) * batch.length <= max_tokens
        assert max(item.length for item in batch.items) <= batch.length
        check_guests(batch, (CALL_COST if max_tokens else UNLIMITED_CALL_COST).tokens)
        left += [item.number for item in batch.items]
    assert sorted(left) == [item.number for item in items if item.number not in unwanted]
    assert (len(waiting), waiting.tokens, waiting.due_tokens) == (0, 0, 0)


@given(st.lists(st.integers(1, 32), max_size=200), st.integers(1, 64))
def test_of_single_texts_the_oldest_is_in_the_next_call(lengths: list[int], most: int) -> None:
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, most)
    wanted = [items[0] for items in pushed(waiting, [[length] for length in lengths])]
    while batch := waiting.take():
        assert wanted[0] in batch.items
        wanted = [item for item in wanted if item not in batch.items]
    assert not wanted


def test_guests_are_those_that_make_the_call_no_worse() -> None:
    def taken(lengths: list[int], most: int | None) -> list[int]:
        waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, 8, most)
        pushed(waiting, [[length] for length in lengths])
        batch = waiting.take()
        assert batch is not None
        return [item.length for item in batch.items]

    # One text of 32 in a call that costs 56 more has a share of 0.36: one of 12 or more adds that.
    assert taken([32, 28, 8], 500) == [32, 28]
    assert taken([32, 24], 500) == [32, 24]
    assert taken([32, 8], 500) == [32]
    # Where a call costs as much as 1,024 tokens, company is always welcome.
    assert taken([32, 28, 8], None) == [32, 28, 8]


@given(st.integers(1, 64), st.floats(0, 3000), st.integers(1, 200))
def test_a_call_is_cut_short_but_not_below_a_quarter_of_its_room(
    max_batch: int, most_tokens: float, texts: int
) -> None:
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, max_batch)
    pushed(waiting, [[24]] * texts)
    batch = waiting.take(most_tokens=most_tokens)
    assert batch is not None
    room = min(max_batch, max(most_tokens // 24, -(-max_batch // 4)))
    assert len(batch.items) == min(texts, room)


def test_a_text_of_its_own_passes_a_request_of_many() -> None:
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, 4)
    pushed(waiting, [[8] * 512])
    for _ in range(3):
        waiting.take()
    lonely = Item(9999, 8)
    waiting.push([lonely])
    batch = waiting.take()
    assert batch is not None
    assert batch.items[0] is lonely
    assert waiting.due_tokens == 0


@given(REQUESTS, LENGTHS)
def test_who_goes_first_is_in_the_next_calls_before_all_others(
    requests: list[list[int]], lengths: list[int]
) -> None:
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, 4)
    pushed(waiting, requests)
    waiting.take()
    first = [Item(9000 + at, length) for at, length in enumerate(lengths)]
    waiting.push(first)
    waiting.remove(waiting.push([Item(9999, 4)], first=True))
    urgent = [Item(10_000 + at, length) for at, length in enumerate(lengths)]
    waiting.push(urgent, first=True)
    left: list[Item] = []
    while not all(item in left for item in urgent):
        batch = waiting.take()
        assert batch is not None
        assert any(item in urgent for item in batch.items)
        left += batch.items
    while batch := waiting.take():
        left += batch.items
    assert all(item in left for item in first)
    assert (len(waiting), waiting.tokens, waiting.due_tokens) == (0, 0, 0)


def test_beside_single_texts_without_end_many_texts_get_their_part() -> None:
    """One part in PACE of what is taken, and never none for long."""
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, 4)
    pushed(waiting, [[8] * 128])
    taken = singles = 0
    while taken < 128:
        waiting.push([Item(1000 + singles + at, 8) for at in range(1)])
        for at in range(3):
            waiting.push([Item(5000 + singles + at, 8)])
        singles += 4
        batch = waiting.take()
        assert batch is not None
        taken += sum(item.number < 1000 for item in batch.items)
        assert singles < 8 * PACE * 128
    assert singles >= (PACE - 1) * 128 * 0.9


def test_texts_that_leave_before_an_engine_that_hangs_are_not_kept() -> None:
    """Of a request's texts only the first is due: the others stand in a second line as well."""
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, 4)
    for number in range(1000):
        assert waiting.remove(waiting.push([Item(number, 8), Item(number, 8)])) == 2
        assert max(map(len, (*waiting._queues, waiting._later))) <= 32


class Queue(RuleBasedStateMachine):
    """Requests come, calls leave and callers give up, in any order.

    A text's turn is what was taken when its request came and PACE times the tokens before it. Once
    so much was taken, nobody can pass it any more but who goes first: every call takes one of those
    before it, or it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queue: WaitingTexts[Item] = WaitingTexts(BUCKETS, 3, 100)
        self.places: list[list[Place]] = []
        self.turns: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.owner: dict[int, int] = {}
        self.taken = 0
        self.numbers = 0

    @rule(lengths=LENGTHS, first=st.booleans())
    def come(self, lengths: list[int], first: bool) -> None:
        items = [Item(self.numbers + at, length) for at, length in enumerate(lengths)]
        turn, pace = (-1, 0) if first else (self.taken, PACE)
        for item in items:
            self.turns[item.number], self.lengths[item.number] = turn, item.length
            self.owner[item.number] = len(self.places)
            turn += pace * item.length
        self.numbers += len(items)
        self.places.append(self.queue.push(items, first=first))

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        who = data.draw(st.integers(0, len(self.places) - 1))
        mine = [number for number in self.turns if self.owner[number] == who]
        assert self.queue.remove(self.places[who]) == len(mine)
        for number in mine:
            del self.turns[number]

    @rule()
    def take(self) -> None:
        order = sorted((turn, number) for number, turn in self.turns.items())
        batch = self.queue.take()
        assert (batch is None) == (not order)
        if batch is None:
            return
        numbers = [item.number for item in batch.items]
        # The oldest turn leaves now, so what is before a text shrinks with every call.
        assert order[0][1] in numbers
        # Within a bucket nobody is passed: of one request least of all.
        for size in BUCKETS:
            at = bisect_left(BUCKETS, size)
            bucket = [n for _, n in order if bisect_left(BUCKETS, self.lengths[n]) == at]
            mine = [n for n in numbers if n in bucket]
            assert mine == bucket[: len(mine)]
        for number in numbers:
            del self.turns[number]
            self.taken += self.lengths[number]

    @invariant()
    def the_counts_are_exact(self) -> None:
        assert len(self.queue) == len(self.turns)
        assert self.queue.tokens == sum(self.lengths[number] for number in self.turns)
        due = [number for number, turn in self.turns.items() if turn <= self.taken]
        assert self.queue.due_tokens == sum(self.lengths[number] for number in due)

    @invariant()
    def what_left_is_not_kept(self) -> None:
        kept = sum(map(len, self.queue._queues))
        assert kept <= 2 * len(self.turns) + 64


TestQueue = pytest.mark.slow(Queue.TestCase)
