"""Which bundle a rollback goes to; the whole way is in tests/stack/test_live_change.py."""

from __future__ import annotations

from transformer_serving.desk.deploy.registry import SERVED, WITHDRAWN, Registered, split


def row(number: int, *tags: str) -> Registered:
    return Registered(f"m{number}", number, "http://files/x.zip", tags)


def test_the_newest_older_one_that_was_served() -> None:
    rows = [row(5, SERVED), row(4, SERVED), row(3, WITHDRAWN), row(2), row(1, SERVED)]
    assert split(rows, "m4") == (rows[1], rows[4])
    assert split(rows, "m5") == (rows[0], rows[1])
    assert split(rows, "m1") == (rows[4], None)


def test_an_endpoint_added_by_hand_goes_to_the_newest_that_was_served() -> None:
    rows = [row(2), row(1, SERVED)]
    assert split(rows, "a model of somebody's own") == (None, rows[1])
    assert split([], "m1") == (None, None)
