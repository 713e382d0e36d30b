"""Only seconds in which ClearML answers let a worker learn of an update."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.engine.serving import ListedEndpoints
from transformer_serving.engine.controller.notices import Notices
from transformer_serving.engine.controller.plan import Retire, Situation, plan
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.sync import Sync
from transformer_serving.engine.errors import EngineError

NOTICE_S = 30.0
NEWEST = Version(2, "new", "", "onnxruntime", 2, True, "m", "c", 0.0)
UPDATED = ModelRecord("m", "m", "f", (NEWEST, replace(NEWEST, number=1, drop_at=1.0)), "")


class AtOnce(Executor):
    """Answers as it is asked; `hangs` says that it does not."""

    def __init__(self) -> None:
        self.hangs: list[Future[Any]] | None = None

    def submit(self, step: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.hangs is not None:
            self.hangs.append(future)
            return future
        try:
            future.set_result(step(*arguments, **named))
        except EngineError as error:
            future.set_exception(error)
        return future


@dataclass
class Looks:
    """A sync each second of a clock that the test turns on."""

    plane: ListedEndpoints
    pool: AtOnce
    sync: Sync
    notices: Notices
    now: float = 1000.0

    def turn(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.sync.start_when_due(lambda: None)
            self.sync.finish()

    @property
    def action(self) -> object:
        """What is planned for a model whose grace is over by the clock."""
        unknown = self.notices.unknown([UPDATED])
        loaded = {"m": UPDATED.numbers}
        situation = Situation({"m": "f"}, {"m": UPDATED}, {}, loaded, 9e9, unknown=unknown)
        return plan(situation).get("m")

    def retires_after(self, seconds: int) -> None:
        self.turn(seconds - 1)
        assert self.action is None
        self.turn(1)
        assert self.action == Retire()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    plane, pool = ListedEndpoints(), AtOnce()
    sync = Sync(plane, pool, 1.0, "*", lambda model: None)
    one = Looks(plane, pool, sync, Notices(sync, NOTICE_S))
    monkeypatch.setattr(time, "monotonic", lambda: one.now)
    return one


def test_where_clearml_answers_the_grace_ends_after_the_notice(looks: Looks) -> None:
    looks.turn(100)
    assert looks.action is None
    looks.retires_after(30)


def test_in_an_outage_no_worker_hears_of_an_update_and_after_it_each_can(looks: Looks) -> None:
    looks.turn(100)
    assert looks.action is None
    looks.turn(2)
    looks.plane.error = EngineError("away")
    looks.turn(1000)
    assert looks.action is None
    looks.plane.error = None
    looks.retires_after(29)


def test_a_call_that_hangs_is_an_outage(looks: Looks) -> None:
    looks.turn(100)
    assert looks.action is None
    looks.pool.hangs = []
    looks.turn(1000)
    assert looks.action is None
    hung, looks.pool.hangs = looks.pool.hangs[0], None
    hung.set_result([])
    looks.retires_after(29)


def test_before_the_next_answer_nobody_knows_of_an_outage(looks: Looks) -> None:
    """The last answer is older than the update, whatever the clock says."""
    looks.turn(100)
    began = looks.notices.now()
    assert looks.notices.left_s(began) == NOTICE_S
    looks.now += 1000
    assert looks.notices.left_s(began) == NOTICE_S


def test_the_next_update_is_one_of_its_own(looks: Looks) -> None:
    looks.turn(1)
    assert not looks.notices.known(UPDATED)
    looks.turn(60)
    assert looks.notices.known(UPDATED)
    third = replace(UPDATED, versions=(replace(NEWEST, number=3), *UPDATED.versions))
    assert not looks.notices.known(third)
    looks.turn(31)
    assert looks.notices.known(third)


@dataclass
class Slow:
    """A controller's syncs, every `poll_s`, each answered `takes_s` after it was asked for."""

    looks: Looks
    poll_s: float
    takes_s: float = 0.0

    def __post_init__(self) -> None:
        self.sync = Sync(self.looks.plane, self.looks.pool, self.poll_s, "*", lambda model: None)
        self.coming: list[tuple[float, Future[Any]]] = []
        self.asked = 0

    def turn(self) -> None:
        self.looks.now += 0.5
        self.looks.pool.hangs = []
        self.sync.start_when_due(lambda: None)
        self.asked += len(self.looks.pool.hangs)
        self.coming += [(self.looks.now + self.takes_s, one) for one in self.looks.pool.hangs]
        while self.coming and self.coming[0][0] <= self.looks.now:
            one = self.coming.pop(0)[1]
            if self.looks.plane.error is None:
                one.set_result([])
            else:
                one.set_exception(self.looks.plane.error)
        self.sync.finish()

    def known_after_s(self, notices: Notices, most_s: float) -> float:
        began = self.looks.now
        while not notices.known(UPDATED):
            self.turn()
            assert self.looks.now - began < most_s
        return self.looks.now - began


TIMES = [(6.0, 30.0), (60.0, 150.0), (300.0, 630.0)]


@pytest.mark.parametrize(("poll_s", "notice_s"), TIMES)
@pytest.mark.parametrize("each", [3, 4, 5])
def test_a_sync_that_fails_now_and_then_only_puts_the_end_off(
    looks: Looks, poll_s: float, notice_s: float, each: int
) -> None:
    syncs = Slow(looks, poll_s)
    notices = Notices(syncs.sync, notice_s)
    syncs.turn()
    began = looks.now
    while not notices.known(UPDATED):
        looks.plane.error = EngineError("502") if syncs.asked % each == each - 1 else None
        syncs.turn()
        assert looks.now - began < 4 * notice_s
    assert looks.now - began >= notice_s


@pytest.mark.parametrize(("poll_s", "notice_s"), [(2.0, 6.0), *TIMES])
def test_slow_answers_are_answers(looks: Looks, poll_s: float, notice_s: float) -> None:
    """A worker that asked just before the update asks once more, as slowly."""
    syncs = Slow(looks, poll_s, 12.0)
    notices = Notices(syncs.sync, notice_s)
    while syncs.sync.last is None:
        syncs.turn()
    assert syncs.known_after_s(notices, 15 * notice_s + 30) >= 2 * 12 + poll_s


@pytest.mark.parametrize("before_s", [0.0, 0.4, 0.9])
@pytest.mark.parametrize(("poll_s", "notice_s"), [(2.0, 6.0), *TIMES])
@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_after_an_outage_of_an_hour_every_worker_has_had_its_poll(
    looks: Looks, poll_s: float, notice_s: float, before_s: float, hangs: bool
) -> None:
    """One that asked just before the update, and would have asked again in the outage."""
    syncs = Slow(looks, poll_s)
    notices = Notices(syncs.sync, notice_s)
    syncs.turn()
    began = looks.now
    while looks.now < began + before_s * poll_s:
        assert not notices.known(UPDATED)
        syncs.turn()
    outage_ends = looks.now + 3600
    while looks.now < outage_ends:
        assert not notices.known(UPDATED)
        syncs.takes_s = outage_ends - looks.now if hangs else 0.0
        looks.plane.error = None if hangs else EngineError("away")
        syncs.turn()
    syncs.takes_s, looks.plane.error = 0.0, None
    assert syncs.known_after_s(notices, notice_s + 3 * poll_s) >= poll_s
