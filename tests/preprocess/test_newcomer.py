"""What a request is told of its wait, by what waits already and by how the engine works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from preprocess.queue.admission import Newcomer, check_wait
from preprocess.queue.cost import Cost
from preprocess.queue.pace import Pace
from preprocess.queue.waiting import WaitingTexts
from transformer_serving.contract.errors import ServingError


@dataclass
class Waiting:
    length: int = 10


def pace_of(call_s: float, cost: Cost) -> Pace:
    pace = Pace()
    pace.rate, pace.call_s, pace.cost = 100.0, call_s, cost
    return pace


# 100 tokens a second; and one whose calls cost most of their time, so that one waits for another.
STEADY = pace_of(1.0, Cost(0.0, 0.01))
LONG = pace_of(2.0, Cost(0.0, 0.01))
BEHIND = pace_of(20.0, Cost(16.0, 0.02))


def queue_of(requests: int, texts: int) -> WaitingTexts[Waiting]:
    """Of each request's texts the first one's turn has come."""
    waiting: WaitingTexts[Waiting] = WaitingTexts((16,), 64)
    for _ in range(requests):
        waiting.push([Waiting() for _ in range(texts)])
    return waiting


def told(newcomer: Newcomer, waiting: WaitingTexts[Waiting], pace: Pace) -> tuple[Any, ...] | None:
    try:
        check_wait(newcomer, waiting, pace, max_wait_s=2.0, now=0.0)
    except ServingError as error:
        return error.kind.code, error.limit, error.got
    return None


@pytest.mark.parametrize(
    ("texts", "pace", "seconds"),
    [
        # Not tokenized yet: behind the one text whose turn has come, and in a call.
        (0, STEADY, "1.1 s"),
        (1, STEADY, "1.1 s"),
        # Its last text's turn comes after four times what its others have.
        (3, STEADY, "1.9 s"),
        # All that waits, and no more, is before it; its own tokens take longer than a call.
        (100, STEADY, "11.0 s"),
        # What runs and one more is known better, and counts in part.
        (1, BEHIND, "16.7 s"),
    ],
)
def test_with_a_deadline_all_of_it_must_be_answered_by_then(
    texts: int, pace: Pace, seconds: str
) -> None:
    newcomer = Newcomer(0.4, 10 * texts, 10 if texts else 0, texts)
    assert told(newcomer, queue_of(1, 10), pace) == ("overloaded", "0.3 s", seconds)
    enough = newcomer._replace(left_s=float(seconds.split()[0]) / 0.75 + 0.2)
    assert told(enough, queue_of(1, 10), pace) is None


@pytest.mark.parametrize(
    ("requests", "pace", "refusal"),
    [
        (1, STEADY, None),
        # A tenth more than is estimated, of a part of the 2 s.
        (1, LONG, ("overloaded", "1.7 s", "2.3 s")),
        # The next call is let in, however long it takes; what comes after that one is not.
        (1, BEHIND, None),
        (110, BEHIND, ("overloaded", "44.0 s", "63.8 s")),
    ],
)
def test_without_one_its_first_call_must_be_back_within_the_wait(
    requests: int, pace: Pace, refusal: tuple[str, ...] | None
) -> None:
    assert told(Newcomer(None, 10, 10, 1), queue_of(requests, 1), pace) == refusal


def test_a_request_is_counted_by_its_texts() -> None:
    class Text:
        def __init__(self, tokens: int) -> None:
            self.ids = [1] * tokens

    texts = [Text(7), Text(2)]
    assert Newcomer.of(texts, 1.0) == Newcomer(1.0, 9, 2, 2)  # type: ignore[arg-type]
    assert Newcomer.of([], None) == Newcomer(None)
