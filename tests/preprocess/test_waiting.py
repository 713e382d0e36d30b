from __future__ import annotations

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
        check_guests(batch, CALL_COST if max_tokens else UNLIMITED_CALL_COST)
        left += [item.number for item in batch.items]
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
