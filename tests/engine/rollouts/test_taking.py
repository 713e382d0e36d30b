"""The controller's part over a serving task that is a dict: who takes the steps, who is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.engine.serving import ListedEndpoints
from transformer_serving.contract.rollout import (
    ABORT,
    LEAVING,
    PLANS,
    PROMOTE,
    STATES,
    Plan,
    Seen,
    State,
    plans_text,
    read_states,
    seen_text,
    states_text,
)
from transformer_serving.engine.controller.rollouts.taking import Rollouts

PLAN = Plan("a1", "texts", 77, "new", "old", (10.0, 100.0), 60.0)


class Service(ListedEndpoints):
    """What ClearML has of one service; workers take every route over at once where `prompt`."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.items: dict[str, Any] = {
            PLANS: plans_text([plan]),
            "endpoints": {"texts": {"model_id": "old"}, "texts/77": {"model_id": "new"}},
            "canary": {},
        }
        self.workers: dict[str, Seen] = {}
        self.written = 0
        self.tags: list[tuple[str, str]] = []

    def configuration(self, *, fresh: bool = False) -> Mapping[str, str]:
        return {
            name: item if isinstance(item, str) else json.dumps(item)
            for name, item in self.items.items()
        }

    def section(self, name: str) -> Mapping[str, Any]:
        return dict(self.items[name])

    def configure(self, items: Mapping[str, Any]) -> None:
        self.items |= items
        self.written += 1

    def of_instances(self, name: str) -> Mapping[str, str]:
        return {task: seen_text(seen) for task, seen in self.workers.items()}

    def tag_model(self, model: str, tag: str) -> None:
        self.tags.append((model, tag))

    @property
    def state(self) -> State:
        return read_states(self.items[STATES])["texts"]

    def wish(self, wanted: str) -> None:
        self.items[PLANS] = plans_text([PLAN.wishing(wanted)])

    def sync(self, *workers: str) -> None:
        for worker in workers:
            seen = self.workers.setdefault(worker, Seen())
            seen.beat += 1
            seen.marks["texts"] = self.state.mark


def test_without_a_plan_nothing_is_read_or_written() -> None:
    service = Service(PLAN)
    service.items[PLANS] = ""
    Rollouts(service).take([])
    assert service.written == 0


def test_an_aborted_one_waits_for_the_slowest_worker() -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take([])
    assert service.items["canary"]["texts"]["weights"] == [0.9, 0.1]
    service.sync("one", "two")
    service.wish(ABORT)
    rollouts.take([])
    assert service.items["canary"] == {}
    service.sync("one")
    rollouts.take([])
    assert not service.state.is_over
    assert "texts/77" in service.items["endpoints"]
    service.sync("one", "two")
    rollouts.take([])
    assert service.state.outcome == "went back"
    assert set(service.items["endpoints"]) == {"texts"}
    assert rollouts.shown[0]["words"] == "went back (abort was asked for)"
    assert service.tags == []
    assert "went back (abort was asked for)" in service.reports[-1]


def test_its_end_is_written_again_where_another_writer_undid_it() -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take([])
    service.sync("one")
    service.wish(ABORT)
    before = dict(service.items["endpoints"])
    rollouts.take([])
    service.sync("one")
    rollouts.take([])
    service.items["endpoints"] = before
    rollouts.take([])
    assert set(service.items["endpoints"]) == {"texts"}


def test_what_is_promoted_may_be_rolled_back_to() -> None:
    service = Service(PLAN)
    rollouts = Rollouts(service)
    rollouts.take([])
    service.sync("one")
    service.wish(PROMOTE)
    rollouts.take([])
    assert service.items["endpoints"]["texts"]["model_id"] == "new"
    service.items[STATES] = states_text({"texts": State("a1", LEAVING, by=service.state.by)})
    service.sync("one")
    rollouts.take([])
    assert service.state.outcome == "promoted"
    assert service.tags == [("new", "served")]


def test_of_two_controllers_one_takes_the_steps() -> None:
    service = Service(PLAN)
    first, second = Rollouts(service), Rollouts(service)
    first.take([])
    beat = service.state.beat
    second.take([])
    assert service.state.beat == beat
    assert second.shown[0]["words"] == "step 1 of 2, 10 % of the requests"
    first.take([])
    assert service.state.beat == beat + 1
