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


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    plane, pool = ListedEndpoints(), AtOnce()
    sync = Sync(plane, pool, 1.0, "*", str, lambda model: None)
    one = Looks(plane, pool, sync, Notices(sync, NOTICE_S))
    monkeypatch.setattr(time, "monotonic", lambda: one.now)
    return one


def test_where_clearml_answers_the_grace_ends_after_the_notice(looks: Looks) -> None:
    looks.turn(100)
    assert looks.action is None
    looks.turn(29)
    assert looks.action is None
    looks.turn(1)
    assert looks.action == Retire()


def test_in_an_outage_no_worker_hears_of_an_update_and_after_it_each_must(looks: Looks) -> None:
    looks.turn(100)
    assert looks.action is None
    looks.turn(2)
    looks.plane.error = EngineError("away")
    looks.turn(1000)
    assert looks.action is None
    looks.plane.error = None
    looks.turn(30)
    assert looks.action is None
    looks.turn(1)
    assert looks.action == Retire()


def test_a_call_that_hangs_is_an_outage(looks: Looks) -> None:
    looks.turn(100)
    assert looks.action is None
    looks.pool.hangs = []
    looks.turn(1000)
    assert looks.action is None
    hung, looks.pool.hangs = looks.pool.hangs[0], None
    hung.set_result([])
    looks.turn(30)
    assert looks.action is None
    looks.turn(2)
    assert looks.action == Retire()


def test_before_the_next_answer_nobody_knows_of_an_outage(looks: Looks) -> None:
    """The last answer is older than the update, whatever the clock says."""
    looks.turn(100)
    began = looks.now
    assert not looks.notices.over(began)
    looks.now += 1000
    assert not looks.notices.over(began)


def test_the_next_update_is_one_of_its_own(looks: Looks) -> None:
    looks.turn(1)
    assert not looks.notices.known(UPDATED)
    looks.turn(60)
    assert looks.notices.known(UPDATED)
    third = replace(UPDATED, versions=(replace(NEWEST, number=3), *UPDATED.versions))
    assert not looks.notices.known(third)
    looks.turn(31)
    assert looks.notices.known(third)
