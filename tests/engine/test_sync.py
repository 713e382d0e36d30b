"""An answer that says something new wakes the loop; every other is taken up in its round."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engine.serving import ListedEndpoints
from transformer_serving.engine.controller.sync import Sync
from transformer_serving.engine.errors import EngineError


@dataclass
class Loop:
    """One that looks as often as a test says."""

    pool: ThreadPoolExecutor
    plane: ListedEndpoints = field(default_factory=ListedEndpoints)

    def __post_init__(self) -> None:
        self.sync = Sync(self.plane, self.pool, 0.0, "*", lambda model: None)

    def look(self) -> bool:
        """Whether the answer woke it; it is taken up in any case."""
        woken = threading.Event()
        self.sync.start_when_due(woken.set)
        # Of one thread: what was asked before is over then, with all that is done at its end.
        self.pool.submit(int).result(60)
        last = self.sync.last
        took_up = self.sync.finish()
        assert took_up == (self.plane.error is None)
        assert (self.sync.last != last) == took_up
        return woken.is_set()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    with ThreadPoolExecutor(1) as pool:
        one = Loop(pool)
        one.plane.add("m", tmp_path / "m")
        yield one


def test_an_answer_that_is_the_same_wakes_nobody(loop: Loop, tmp_path: Path) -> None:
    assert [loop.look() for _ in range(3)] == [True, False, False]
    loop.plane.add("m", tmp_path / "other")
    assert [loop.look() for _ in range(2)] == [True, False]
    loop.plane.remove("m")
    assert [loop.look() for _ in range(2)] == [True, False]


def test_an_outage_and_its_end_wake_the_loop(loop: Loop) -> None:
    loop.look()
    loop.plane.error = EngineError("away")
    assert [loop.look() for _ in range(2)] == [True, True]
    assert loop.sync.error == "away"
    loop.plane.error = None
    assert [loop.look() for _ in range(2)] == [True, False]
    assert loop.sync.error is None
