"""What a worker counts of a rollout: from the lists that preprocess fills to the text it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from clearml.backend_api import Session
from clearml.backend_interface.session import SendError
from clearml_serving.serving.model_request_processor import ModelRequestProcessor

from transformer_serving.contract.rollout import (
    HOLDING,
    LEAVING,
    NEW,
    OLD,
    OVER,
    PLANS,
    RETURNING,
    SEEN,
    STATES,
    Plan,
    Seen,
    State,
    plans_text,
    read_seen,
    states_text,
)
from transformer_serving.contract.worker.watched_answers import MOST, watched_answers
from transformer_serving.control_plane.auth import API_VERSION
from transformer_serving.gateway.rollout.figures import (
    RolloutFigures,
    UntoldError,
    into_own,
    tell_rollouts,
)
from transformer_serving.gateway.rollout.mirror import MIRRORS, Noted
from transformer_serving.gateway.rollout.under_way import UNDER_WAY, note_under_way

PLAN = Plan("a1", "texts", 77, "new", "old", (10.0, 100.0), 60.0)
HELD = State("a1", HOLDING, 0)


@pytest.fixture(autouse=True)
def nobody_watched() -> Iterator[None]:
    watched_answers().clear()
    yield
    watched_answers().clear()


def items(state: State | None) -> dict[str, str]:
    states = {} if state is None else {"texts": state}
    return {PLANS: plans_text([PLAN]), STATES: states_text(states)}


class Worker:
    def __init__(self) -> None:
        self.written: list[str] = []
        self.figures = RolloutFigures(self.written.append, 60.0)

    @property
    def seen(self) -> Seen:
        return read_seen(self.written[-1])


def test_without_a_rollout_nothing_is_watched_or_written() -> None:
    worker = Worker()
    for found in ({}, items(None), items(replace(HELD, phase=OVER)), items(State("another"))):
        worker.figures.synced(found)
    assert worker.written == []
    assert watched_answers() == {}


def test_answers_are_counted_to_the_step_that_they_were_given_in() -> None:
    worker = Worker()
    worker.figures.synced(items(HELD))
    assert (worker.seen.marks, worker.seen.every_s) == ({"texts": "a1 holding 0"}, 60.0)
    assert set(watched_answers()) == {"texts", "texts/77"}
    watched_answers()["texts"].extend([(200, 9, 0.01), (499, 0, 0.01)])
    watched_answers()["texts/77"].append((502, 9, 0.02))
    worker.figures.synced(items(replace(HELD, step=1)))
    watched_answers()["texts/77"].append((200, 9, 0.02))
    worker.figures.synced(items(replace(HELD, step=1)))
    seen = worker.seen
    assert seen.marks == {"texts": "a1 holding 1"}
    assert (seen.steps["a1 0"][OLD].requests, seen.steps["a1 0"][NEW].errors) == (1, 1)
    assert (seen.steps["a1 1"][NEW].requests, seen.steps["a1 1"][NEW].errors) == (1, 0)


def test_what_is_answered_on_the_way_back_is_not_counted() -> None:
    worker = Worker()
    worker.figures.synced(items(replace(HELD, phase=RETURNING)))
    watched_answers()["texts"].append((200, 9, 0.01))
    worker.figures.synced(items(replace(HELD, phase=RETURNING)))
    assert worker.seen.steps == {}
    assert worker.seen.marks == {"texts": "a1 returning 0"}


def test_when_it_is_over_that_is_told_once() -> None:
    worker = Worker()
    worker.figures.synced(items(HELD))
    worker.figures.synced(items(replace(HELD, phase=OVER)))
    told = len(worker.written)
    worker.figures.synced(items(replace(HELD, phase=OVER)))
    assert len(worker.written) == told
    assert watched_answers() == {}
    assert worker.seen.marks == {}


def test_each_time_is_told_from_the_one_before() -> None:
    """A worker that still lives is known by it."""
    worker = Worker()
    worker.figures.synced(items(HELD))
    beat = worker.seen.beat
    worker.figures.synced(items(HELD))
    assert worker.seen.beat == beat + 1


def test_a_worker_that_cannot_count_keeps_a_bounded_list() -> None:
    worker = Worker()
    worker.figures.synced(items(HELD))
    assert watched_answers()["texts"].maxlen == MOST


MIRRORED = replace(PLAN, mirror=0.25)


@pytest.fixture
def no_mirrors() -> Iterator[None]:
    MIRRORS.clear()
    yield
    MIRRORS.clear()


def of(plan: Plan, state: State) -> dict[str, str]:
    return {PLANS: plans_text([plan]), STATES: states_text({"texts": state})}


@pytest.mark.usefixtures("no_mirrors")
def test_what_was_mirrored_is_told_and_no_more_begins_on_the_way_back() -> None:
    worker = Worker()
    worker.figures.synced(of(MIRRORED, HELD))
    mirror = MIRRORS["texts"]
    assert (mirror.candidate, mirror.bundle, mirror.asks_both) == ("texts/77", "77", False)
    mirror.noted.extend([Noted("same"), Noted("differs"), Noted("failed")])
    mirror.left_out += 4
    worker.figures.synced(of(MIRRORED, HELD))
    assert MIRRORS["texts"] is mirror
    worker.figures.synced(of(MIRRORED, replace(HELD, phase=RETURNING)))
    new = worker.seen.steps["a1 0"][NEW]
    assert (new.compared, new.differ, new.left_out) == (2, 1, 4)
    assert MIRRORS == {}


@pytest.mark.usefixtures("no_mirrors")
def test_in_a_shadow_requests_of_callers_are_not_counted() -> None:
    worker = Worker()
    shadow = replace(MIRRORED, steps=(100.0,), shadow=True)
    worker.figures.synced(of(shadow, HELD))
    assert watched_answers() == {}
    arms = (("old", 200, 9, 0.01), ("new", 502, 9, 0.02))
    MIRRORS["texts"].noted.append(Noted("failed", arms))
    worker.figures.synced(of(shadow, HELD))
    found = worker.seen.steps["a1 0"]
    assert (found[OLD].requests, found[OLD].errors, found[NEW].errors) == (1, 0, 1)
    assert found[NEW].compared == 0


@pytest.mark.usefixtures("no_mirrors")
def test_without_a_share_nothing_is_mirrored() -> None:
    Worker().figures.synced(of(PLAN, HELD))
    assert MIRRORS == {}


class Processor(ModelRequestProcessor):  # type: ignore[misc]
    """The host's own, as much of it as one request needs once an endpoint is drawn for it."""

    is_preprocess_async = is_postprocess_async = False
    is_process_async = True

    def __init__(self) -> None:
        self._kafka_stats_url = None
        self._metric_logging: dict[str, Any] = {}
        self.ends = asyncio.Event()

    async def ask(self, url: str) -> Any:
        return await self._process_request(processor=self, url=url, body={})

    def preprocess(self, body: Any, state: Any, collect: Any) -> Any:
        return body

    postprocess = preprocess

    async def process(self, body: Any, state: Any, collect: Any) -> Any:
        await self.ends.wait()
        return body


@pytest.fixture
def noting() -> Iterator[type[Processor]]:
    class Noting(Processor):
        pass

    note_under_way(Noting)
    yield Noting
    UNDER_WAY.clear()


async def begun(processor: Processor, url: str = "texts/77") -> asyncio.Task[Any]:
    task = asyncio.create_task(processor.ask(url))
    await asyncio.sleep(0)
    return task


def mark(worker: Worker, phase: str, *, changed: bool = False) -> str:
    worker.figures.synced(items(replace(HELD, phase=phase)), changed=changed)
    told = worker.seen.marks["texts"]
    # By it the controller knows that the worker lives, and knows of the rollout.
    assert told.startswith("a1")
    return told


@pytest.mark.parametrize("phase", [LEAVING, RETURNING])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_the_candidate_is_not_let_go_of_before_its_last_request_has_ended(
    noting: type[Processor], phase: str, is_cancelled: bool
) -> None:
    worker, processor = Worker(), noting()
    assert mark(worker, HOLDING, changed=True) == "a1 holding 0"
    last = await begun(processor)
    await begun(processor, "texts")
    # A step takes nothing away.
    assert mark(worker, HOLDING) == "a1 holding 0"
    assert mark(worker, phase, changed=True) == "a1"
    assert mark(worker, phase) == "a1"
    if is_cancelled:
        last.cancel()
    else:
        processor.ends.set()
    await asyncio.wait([last])
    assert mark(worker, phase) == f"a1 {phase} 0"


async def test_who_asks_the_candidate_by_its_own_name_is_not_waited_for(
    noting: type[Processor],
) -> None:
    worker, processor = Worker(), noting()
    mark(worker, HOLDING, changed=True)
    assert mark(worker, RETURNING, changed=True) == "a1 returning 0"
    direct = await begun(processor)
    assert mark(worker, RETURNING) == "a1 returning 0"
    # Unless it may have been drawn: somebody may have written the route back in between.
    assert mark(worker, RETURNING, changed=True) == "a1"
    processor.ends.set()
    await direct
    assert mark(worker, RETURNING) == "a1 returning 0"


async def test_of_a_rollout_that_is_over_nobody_is_noted(noting: type[Processor]) -> None:
    worker = Worker()
    mark(worker, HOLDING, changed=True)
    worker.figures.synced(items(replace(HELD, phase=OVER)), changed=True)
    assert UNDER_WAY == {}


@pytest.mark.usefixtures("noting")
async def test_requests_are_noted_from_when_the_host_draws_them() -> None:
    """It lets them in before it has told its own task of the change, which may take a second."""
    drawn: list[asyncio.Task[Any]] = []

    class Host(Processor):
        def deserialize(self, task: Any) -> bool:
            work = self._process_request(processor=self, url="texts/77", body={})
            drawn.append(asyncio.ensure_future(work))
            return True

    class Task:
        def __init__(self, state: State) -> None:
            found = {name: SimpleNamespace(value=text) for name, text in items(state).items()}
            self._data = SimpleNamespace(configuration=found)

        @staticmethod
        def current_task() -> None:
            """Nothing is written."""

    tell_rollouts(Host)
    Host().deserialize(Task(HELD))
    await asyncio.sleep(0)
    assert len(UNDER_WAY["texts/77"]) == len(drawn) == 1
    drawn[0].cancel()
    await asyncio.wait(drawn)


@pytest.fixture
def server_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its version, which the SDK hears of where it logs in."""
    for name in ("api_version", "max_api_version"):
        monkeypatch.setattr(Session, name, API_VERSION)


class OwnTask:
    """A worker's own, whose server answers what is sent with that subcode; 0: well."""

    def __init__(self, subcode: int) -> None:
        self.id = "own"
        self.sent: list[Any] = []
        self._subcode = subcode

    def current_task(self) -> OwnTask:
        return self

    def send(self, request: Any) -> None:
        self.sent.append(request)
        if self._subcode:
            meta = SimpleNamespace(result_subcode=self._subcode)
            raise SendError(SimpleNamespace(meta=meta), "refused")


@pytest.mark.usefixtures("server_is_known")
def test_what_was_seen_is_one_row_of_the_workers_own_task() -> None:
    own = OwnTask(0)
    into_own(own)("{}")
    [request] = own.sent
    [row] = request.configuration
    assert (request.task, row.name, row.value) == ("own", SEEN, "{}")
    # Rows of others stay, and so does a task that has ended.
    assert (request.replace_configuration, request.force) == (False, True)


def test_a_process_without_a_task_writes_nothing() -> None:
    into_own(SimpleNamespace(current_task=lambda: None))("{}")


@pytest.mark.usefixtures("server_is_known")
@pytest.mark.parametrize(("subcode", "raised"), [(101, UntoldError), (131, SendError)])
def test_a_task_that_is_gone_is_told_from_another_refusal(
    subcode: int, raised: type[Exception]
) -> None:
    with pytest.raises(raised):
        into_own(OwnTask(subcode))("{}")


@pytest.mark.usefixtures("server_is_known")
@pytest.mark.parametrize(
    ("task", "said"),
    [
        (OwnTask(101), "this worker's task own is not in ClearML"),
        (OwnTask(131), "could not be told: SendError"),
        (OwnTask(0), None),
    ],
    ids=["gone", "refused", "well"],
)
def test_what_cannot_be_told_is_said_and_keeps_no_worker_from_its_configuration(
    task: OwnTask, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Host:
        async def _process_request(self, **_: Any) -> None:
            """Nobody asks."""

        def deserialize(self, task: Any) -> str:
            return "taken over"

    class Task:
        _data = SimpleNamespace(
            configuration={name: SimpleNamespace(value=text) for name, text in items(HELD).items()}
        )
        current_task = task.current_task

    tell_rollouts(Host)
    assert Host().deserialize(Task()) == "taken over"
    assert len(task.sent) == 1
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (said is not None)
    assert said is None or said in told[0]
