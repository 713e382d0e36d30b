"""Narrowing against engines that are functions: who is asked for, and how often."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from preprocess.queue.narrowing import answer_all
from transformer_serving.contract.errors import ServingError

FAILED, AWAY = (ServingError(code, "played") for code in ("engine_failed", "unavailable"))


@dataclass(eq=False)
class Request:
    """Of so many texts, those at `bad` are bad; its caller leaves during that call."""

    texts: int
    bad: frozenset[int] = frozenset()
    leaves: int | None = None
    rows: int = 0
    error: Exception | None = None
    left: bool = False

    @property
    def done(self) -> bool:
        return self.left or self.error is not None or self.rows == self.texts


@dataclass(eq=False)
class Text:
    request: Request
    bad: bool

    @property
    def done(self) -> bool:
        return self.request.done


@dataclass
class Engine:
    """Fails on a bad text, and on anything in the calls of `away`."""

    requests: list[Request]
    away: range = range(0)
    calls: list[int] = field(default_factory=list)

    async def attempt(self, texts: list[Any], length: int) -> Exception | None:
        assert texts
        assert not any(text.done for text in texts)
        self.calls.append(len(texts))
        for request in self.requests:
            request.left |= not request.done and request.leaves == len(self.calls)
        if len(self.calls) in self.away:
            return AWAY
        if any(text.bad for text in texts):
            return FAILED
        for text in texts:
            text.request.rows += 1
        return None

    def fail(self, texts: list[Any], error: Exception) -> None:
        for text in texts:
            if not text.done:
                text.request.error = error

    def answer(self) -> None:
        texts: Any = [
            Text(request, at in request.bad)
            for request in self.requests
            for at in range(request.texts)
        ]
        asyncio.run(answer_all(texts, 8, self.attempt, self.fail))


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    made = []
    for texts in draw(st.lists(st.integers(1, 5), min_size=1, max_size=24)):
        bad = draw(st.sampled_from([0, 0, 0, 1]))
        places = draw(st.frozensets(st.integers(0, texts - 1), max_size=texts)) if bad else ()
        made.append(Request(texts, frozenset(places), draw(st.none() | st.integers(1, 12))))
    return made


@given(requests(), st.integers(1, 12), st.integers(0, 12))
def test_nothing_is_computed_for_nobody_and_everybody_hears(
    asked: list[Request], first: int, times: int
) -> None:
    engine = Engine(asked, range(first, first + times))
    engine.answer()
    assert all(request.done for request in asked)
    for request in asked:
        assert request.left or request.rows == request.texts or request.error is not None
        if not request.bad:
            assert request.error is not FAILED
        if not times and not request.left:
            assert (request.error is FAILED) == bool(request.bad)


@given(requests(), st.integers(1, 12))
@example([Request(1, frozenset([0])), *(Request(1) for _ in range(63))], 2)
def test_an_engine_that_has_gone_is_not_asked_as_if_a_text_were_bad(
    asked: list[Request], gone: int
) -> None:
    engine = Engine(asked, range(gone, 1000))
    texts = sum(request.texts for request in asked)
    engine.answer()
    # What was not asked together any more: a half of each size, and the rest.
    assert len(engine.calls) <= gone + texts.bit_length()


@pytest.mark.parametrize(
    ("leaves", "away", "calls"),
    [
        (None, range(0), [64, 32, 16, 8, 4, 2, 1, 1, 63]),
        (2, range(0), [64, 32]),
        (None, range(2, 1000), [64, 32, 32]),
        # It is back: those that it did not answer are told at once, the others are answered.
        (None, range(2, 3), [64, 32, 32]),
    ],
)
def test_the_calls_of_one_bad_text_among_64(
    leaves: int | None, away: range, calls: list[int]
) -> None:
    asked = [Request(1, frozenset([0] if at == 0 else []), leaves) for at in range(64)]
    engine = Engine(asked, away)
    engine.answer()
    assert engine.calls == calls
