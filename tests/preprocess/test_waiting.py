from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from hypothesis import given, strategies as st

from preprocess.waiting import CALL_COST, UNLIMITED_CALL_COST, Batch, WaitingTexts

BUCKETS = (4, 8, 24, 28, 32)


@dataclass
class Item:
    number: int
    length: int
    done: bool = False


ITEMS = st.lists(st.tuples(st.integers(1, 32), st.booleans()), max_size=200)


def check_guests(batch: Batch[Item], cost: int) -> None:
    """None of another bucket makes the call's share of useful tokens smaller."""
    shorter = max((size for size in BUCKETS if size < batch.length), default=0)
    tokens = 0
    for count, item in enumerate(batch.items):
        if item.length <= shorter:
            share = tokens / (cost + count * batch.length)
            with_it = (tokens + item.length) / (cost + (count + 1) * batch.length)
            assert with_it >= share - 1e-12
        tokens += item.length


def bucket_of(item: Item) -> int:
    return bisect_left(BUCKETS, item.length)


def could_join(batch: Batch[Item], item: Item, cost: int) -> bool:
    tokens = sum(one.length for one in batch.items)
    return item.length * (cost + len(batch.items) * batch.length) >= batch.length * tokens


@given(ITEMS, st.integers(1, 64), st.none() | st.integers(1, 300))
def test_every_wanted_text_leaves_once_in_a_call_that_fits(
    rows: list[tuple[int, bool]], max_batch: int, max_tokens: int | None
) -> None:
    items = [Item(number, length, done) for number, (length, done) in enumerate(rows)]
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, max_batch, max_tokens)
    for item in items:
        waiting.push(item)
    left: list[int] = []
    while batch := waiting.take():
        assert 1 <= len(batch.items) <= max_batch
        if max_tokens is not None and len(batch.items) > 1:
            assert len(batch.items) * batch.length <= max_tokens
        assert all(not item.done for item in batch.items)
        assert max(item.length for item in batch.items) <= batch.length
        cost = CALL_COST if max_tokens else UNLIMITED_CALL_COST
        check_guests(batch, cost)
        left += [item.number for item in batch.items]
        stayed = [item for item in items if not item.done and item.number not in left]
        shorter = [item for item in stayed if bucket_of(item) < BUCKETS.index(batch.length)]
        room = min(max_batch, (max_tokens or max_batch * BUCKETS[-1]) // batch.length)
        if shorter and len(batch.items) < room:
            nearest = max(map(bucket_of, shorter))
            first = next(item for item in shorter if bucket_of(item) == nearest)
            assert not could_join(batch, first, cost)
    assert sorted(left) == [item.number for item in items if not item.done]
    assert len(waiting) == 0


@given(ITEMS, st.integers(1, 64))
def test_the_oldest_text_is_in_the_next_call(rows: list[tuple[int, bool]], max_batch: int) -> None:
    items = [Item(number, length, done) for number, (length, done) in enumerate(rows)]
    waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, max_batch)
    for item in items:
        waiting.push(item)
    wanted = [item for item in items if not item.done]
    while batch := waiting.take():
        assert wanted[0] in batch.items
        wanted = [item for item in wanted if item not in batch.items]


def test_guests_are_those_that_make_the_call_no_worse() -> None:
    def taken(lengths: list[int], most: int | None) -> list[int]:
        waiting: WaitingTexts[Item] = WaitingTexts(BUCKETS, 8, most)
        for number, length in enumerate(lengths):
            waiting.push(Item(number, length))
        batch = waiting.take()
        assert batch is not None
        return [item.length for item in batch.items]

    # One text of 32 in a call that costs 56 more has a share of 0.36: one of 12 or more adds that.
    assert taken([32, 28, 8], 500) == [32, 28]
    assert taken([32, 24], 500) == [32, 24]
    assert taken([32, 8], 500) == [32]
    # Where a call costs as much as 1,024 tokens, company is always welcome.
    assert taken([32, 28, 8], None) == [32, 28, 8]
