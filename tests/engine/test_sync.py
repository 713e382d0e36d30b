"""An answer that is new or late wakes the loop; every other is taken up in its round."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engine.serving import ListedEndpoints
from transformer_serving.engine.controller.control_plane.served import Served
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


def test_a_late_answer_wakes_the_loop_as_its_time_is_counted(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of 1.1 s would count as one of 1.5, and each grace would end so much later."""
    now, takes_s = 1000.0, 0.0
    endpoints = loop.plane.endpoints

    def late() -> Sequence[Served]:
        nonlocal now
        now += takes_s
        return endpoints()

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(loop.plane, "endpoints", late)
    loop.look()
    takes_s = 0.4
    assert not loop.look()
    takes_s = 1.1
    assert loop.look()
