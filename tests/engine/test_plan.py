"""The planning of the controller, driven through random lives of a small world."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from transformer_serving.engine.controller.plan import (
    Action,
    Prepare,
    Reload,
    Remove,
    Retire,
    Situation,
    Withdraw,
    plan,
)
from transformer_serving.engine.controller.records import (
    DIFFERS,
    PASSING,
    REMOVAL,
    FailedChange,
    Kind,
    ModelRecord,
    Version,
    failed_again,
)

MODELS = st.sampled_from(["a", "b", "c"])
FINGERPRINTS = st.sampled_from(["good1", "good2", "good3", "bad1", "bad2"])
GRACE_S = 30.0
# Of ten minutes: two versions at 0, 10, 30, 70, 150, 310 s, and what a retirement adds.
MOST_ACTIONS = 16


def version(number: int, fingerprint: str) -> Version:
    return Version(
        number=number,
        token=fingerprint,
        config="",
        backend="",
        bundle_version=number,
        verified=True,
        model_id="",
        content=fingerprint,
        since=0.0,
    )


class World(RuleBasedStateMachine):
    """Endpoints, a Triton and the controller's memory; `step` is one round of the controller."""

    @initialize()
    def begin(self) -> None:
        self.endpoints: dict[str, str] = {}
        self.reached = False
        self.triton: dict[str, frozenset[int]] | None = {}
        self.records: dict[str, ModelRecord] = {}
        self.failures: dict[tuple[str, str], FailedChange] = {}
        # What lies on the disk and cannot be loaded from there.
        self.damaged: set[tuple[str, str]] = set()
        self.now = 1000.0
        self.lost: set[str] = set()
        self.unproven: set[str] = set()
        # What was tried as a whole, to load it again or to fetch it, and failed since it served.
        self.unloadable: set[tuple[str, str]] = set()
        # Nothing can be fetched then, nor a grace be ended; what lies there can be loaded again.
        self.disk_is_full = False

    @rule(model=MODELS, fingerprint=FINGERPRINTS)
    def add(self, model: str, fingerprint: str) -> None:
        self.endpoints[model] = fingerprint

    @rule(model=MODELS)
    def drop(self, model: str) -> None:
        self.endpoints.pop(model, None)

    @rule()
    def control_plane_answers(self) -> None:
        self.reached = True

    @rule()
    def controller_restarts(self) -> None:
        self.reached = False
        self.failures = {}

    @rule()
    def triton_dies(self) -> None:
        self.triton = None

    @rule()
    def triton_starts(self) -> None:
        if self.triton is None:
            self.triton = {}
            self.lost = set(self.records)

    @rule()
    def the_state_comes_to_another_machine(self) -> None:
        self.unproven = set(self.records)

    @rule(model=MODELS)
    def files_are_damaged(self, model: str) -> None:
        if model in self.records:
            self.damaged.add((model, self.records[model].fingerprint))

    @rule(is_full=st.booleans())
    def the_disk_fills_or_is_cleared(self, is_full: bool) -> None:
        self.disk_is_full = is_full

    @precondition(lambda self: self.triton is not None)
    @rule(model=MODELS, seconds=st.integers(1, 400))
    def a_grace_ends_on_a_full_disk_and_triton_restarts(self, model: str, seconds: int) -> None:
        self.reached, self.disk_is_full = True, False
        for fingerprint in ("good1", "good2"):
            self.endpoints[model] = fingerprint
            self.now += 400
            self.step()
        self.disk_is_full = True
        for _ in range(seconds):
            self.now += 1
            self.step()
        self.triton = {}
        self.lost = set(self.records)

    @rule()
    def nothing_can_be_loaded(self) -> None:
        """Neither what was served nor what is wanted."""
        self.triton = {}
        self.lost = set(self.records)
        self.damaged = {(model, record.fingerprint) for model, record in self.records.items()}
        self.endpoints.update(dict.fromkeys(self.records, "bad1"))

    @precondition(lambda self: self.triton is not None)
    @rule()
    def ten_minutes_are_few_actions(self) -> None:
        done = dict.fromkeys("abc", 0)
        for _ in range(600):
            for model, action in self.planned().items():
                done[model] += 1
                self.apply(model, action)
            self.now += 1
        assert max(done.values()) <= MOST_ACTIONS, done

    @rule(seconds=st.floats(0.1, 400))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def step(self) -> None:
        for model, action in self.planned().items():
            self.apply(model, action)

    @precondition(lambda self: self.triton is not None)
    @rule()
    def everything_settles(self) -> None:
        self.reached = True
        self.endpoints = {m: f for m, f in self.endpoints.items() if f.startswith("good")}
        self.damaged = set()
        self.disk_is_full = False
        for _ in range(6):
            self.step()
            self.now += 400
        assert self.planned() == {}
        assert {m: r.fingerprint for m, r in self.records.items()} == self.endpoints
        assert self.triton == {m: r.numbers for m, r in self.records.items()}
        assert all(len(record.versions) == 1 for record in self.records.values())

    def planned(self) -> dict[str, Action]:
        wanted = dict(self.endpoints) if self.reached else None
        unproven = frozenset(self.unproven)
        return plan(Situation(wanted, self.records, self.failures, self.triton, self.now, unproven))

    def apply(self, model: str, action: Action) -> None:
        assert self.triton is not None, "nothing is planned while Triton is away"
        if isinstance(action, Remove):
            assert self.reached
            assert model not in self.endpoints
            del self.records[model]
            self.unproven.discard(model)
            self.triton.pop(model, None)
        elif isinstance(action, Prepare):
            self.prepare(model)
        elif isinstance(action, Reload):
            self.reload(self.records[model])
        elif isinstance(action, Retire):
            self.retire(self.records[model])

    def prepare(self, model: str) -> None:
        assert self.reached
        fingerprint = self.endpoints[model]
        if fingerprint.startswith("bad") or self.disk_is_full:
            self.unloadable.add((model, fingerprint))
            self.fail(model, fingerprint)
            return
        self.damaged.discard((model, fingerprint))
        number = int(fingerprint[-1])
        before = self.records.get(model)
        old = [v for v in before.versions if v.number != number][:1] if before else []
        grace = [dataclasses.replace(v, drop_at=v.drop_at or self.now + GRACE_S) for v in old]
        self.serve(
            ModelRecord(model, model, fingerprint, (version(number, fingerprint), *grace), "")
        )

    def reload(self, record: ModelRecord) -> None:
        if (record.model, record.fingerprint) in self.damaged:
            self.unloadable.add((record.model, record.fingerprint))
            self.fail(record.model, record.fingerprint)
        else:
            self.serve(record)

    def retire(self, record: ModelRecord) -> None:
        kept = tuple(v for v in record.versions if v.drop_at is None or v.drop_at > self.now)
        assert len(kept) < len(record.versions)
        if self.disk_is_full or (record.model, record.fingerprint) in self.damaged:
            self.fail(record.model, record.retirement)
        else:
            self.serve(dataclasses.replace(record, versions=kept))
            self.failures.pop((record.model, record.retirement), None)

    def fail(self, model: str, fingerprint: str) -> None:
        failure = self.failures.get((model, fingerprint))
        if failure is not None:
            assert self.now >= failure.retry_at, "tried again too early"
        self.failures[model, fingerprint] = failed_again(failure, fingerprint, "bad", self.now)

    def serve(self, record: ModelRecord) -> None:
        assert self.triton is not None
        self.records[record.model] = record
        self.triton[record.model] = record.numbers
        self.lost.discard(record.model)
        self.unproven.discard(record.model)
        self.failures.pop((record.model, record.fingerprint), None)
        self.unloadable.discard((record.model, record.fingerprint))

    @invariant()
    def what_is_lost_is_put_back_at_once(self) -> None:
        """No failure of anything else holds it back, or makes it a download."""
        if getattr(self, "triton", None) is None:
            return
        planned = self.planned()
        for model in self.lost & set(self.records):
            record = self.records[model]
            asked_for = not self.reached or model in self.endpoints
            if asked_for and (model, record.fingerprint) not in self.unloadable:
                assert planned.get(model) == Reload()

    @invariant()
    def last_good_state_serves(self) -> None:
        """Nothing but a death of Triton ever takes a good version away."""
        triton = getattr(self, "triton", None)
        if triton is None:
            return
        for model, record in self.records.items():
            assert record.fingerprint.startswith("good")
            if model not in self.lost:
                assert record.numbers <= triton[model]


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=30)


def test_pauses_double_up_to_five_minutes_and_start_anew_for_another_thing() -> None:
    failure, pauses = None, []
    for _ in range(8):
        failure = failed_again(failure, "x", "reason", 0.0)
        pauses.append(failure.retry_at)
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]
    assert failed_again(failure, "y", "reason", 0.0).retry_at == 10


@pytest.mark.parametrize(("now", "over"), [(1299, False), (1300, True), (940, False), (939, True)])
def test_a_pause_is_over_at_its_end_and_when_the_clock_was_set_back(now: float, over: bool) -> None:
    """By more than a minute: else an hour back would make every pause one of an hour more."""
    failure = FailedChange("x", "reason", 1000.0, 1, 1300.0)
    assert failure.pause_over(now) is over


@pytest.mark.parametrize(("now", "kept"), [(1029, 2), (1030, 1), (940, 2), (939, 1)])
def test_a_grace_is_over_at_its_end_and_when_the_clock_was_set_back(now: float, kept: int) -> None:
    newest = dataclasses.replace(version(2, "x"), since=1000.0)
    older = dataclasses.replace(version(1, "x"), drop_at=1030.0)
    record = ModelRecord("m", "m", "x", (newest, older), "")
    assert record.kept(now) == (newest, older)[:kept]


def test_what_is_unproven_is_loaded_again_even_where_it_is_ready() -> None:
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    loaded = {"a": frozenset({1})}
    situation = Situation({"a": "good1"}, {"a": record}, {}, loaded, 11.0, frozenset({"a"}))
    assert plan(situation) == {"a": Reload()}
    refused = failed_again(None, "good1", "at 32 tokens", 11.0, DIFFERS)
    assert plan(dataclasses.replace(situation, failures={("a", "good1"): refused})) == {}
    # What is deployed instead is not held back by that.
    newer = dataclasses.replace(
        situation, wanted={"a": "good2"}, failures={("a", "good1"): refused}
    )
    assert plan(newer) == {"a": Prepare()}


def test_what_is_untrusted_is_unloaded_and_only_fetched() -> None:
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    loaded = {"a": frozenset({1})}
    situation = Situation(
        {"a": "good1"}, {"a": record}, {}, loaded, 11.0, untrusted=frozenset({"a"})
    )
    assert plan(situation) == {"a": Withdraw()}
    # Nothing is loaded while nobody says what is wanted.
    assert plan(dataclasses.replace(situation, loaded={}, wanted=None)) == {}
    assert plan(dataclasses.replace(situation, loaded={})) == {"a": Prepare()}
    refused = {("a", "good1"): failed_again(None, "good1", "is not signed", 11.0)}
    assert plan(dataclasses.replace(situation, loaded={}, failures=refused)) == {}
    assert plan(dataclasses.replace(situation, wanted={})) == {"a": Remove()}


def test_a_failed_proof_is_tried_again_rarely() -> None:
    failure, pauses = None, []
    for _ in range(5):
        failure = failed_again(failure, "x", "reason", 0.0, DIFFERS)
        pauses.append(failure.retry_at)
    assert pauses == [60, 240, 960, 3600, 3600]


def test_a_model_that_cannot_be_loaded_again_is_fetched_again() -> None:
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    failure = FailedChange("good1", "files are damaged", 0.0, 1, 10.0)
    failures = {("a", "good1"): failure}
    situation = Situation({"a": "good1"}, {"a": record}, failures, {}, 11.0)
    assert plan(situation) == {"a": Prepare()}
    assert plan(dataclasses.replace(situation, wanted=None)) == {"a": Reload()}
    assert plan(dataclasses.replace(situation, now=5.0)) == {}


@pytest.mark.parametrize("kind", sorted({*PASSING, Kind.DIED, Kind.MISSING}))
def test_what_says_nothing_of_the_files_fetches_none(kind: Kind) -> None:
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    failure = failed_again(None, "good1", "not its files", 0.0, kind=kind)
    situation = Situation({"a": "good1"}, {"a": record}, {("a", "good1"): failure}, {}, 11.0)
    assert plan(situation) == {"a": Reload()}


@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        (Kind.DIED, [Reload(), Reload(), Prepare()] * 2),
        (Kind.UNREACHED, [Reload(), Reload(), Prepare()] * 2),
        (Kind.REFUSED, [Prepare(), Reload()] * 3),
    ],
)
def test_what_fails_again_and_again_is_fetched_now_and_then(kind: Kind, turns: list[Any]) -> None:
    """What lies here may be damaged; not each time, for where it is fetched from may be away, or
    have others in its place.
    """
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    found = []
    failure = None
    for _ in range(6):
        failure = failed_again(failure, "good1", "its process died", 0.0, kind=kind)
        failures = {("a", "good1"): failure}
        situation = Situation({"a": "good1"}, {"a": record}, failures, {}, 10_000.0)
        found.append(plan(situation))
    assert found == [{"a": turn} for turn in turns]


def test_what_cannot_be_deleted_is_left_alone_for_a_while() -> None:
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    failures = {
        (model, REMOVAL): failed_again(None, REMOVAL, "denied", 0.0) for model in ("a", "left")
    }
    left = frozenset({"left"})
    situation = Situation({}, {"a": record}, failures, {}, 5.0, leftover=left)
    assert plan(situation) == {}
    assert plan(dataclasses.replace(situation, now=11.0)) == {"a": Remove(), "left": Remove()}
    # Why it could not be loaded does not keep it from going.
    refused = {("a", "good1"): failed_again(None, "good1", "bad", 0.0)}
    assert plan(dataclasses.replace(situation, failures=refused, leftover=frozenset())) == {
        "a": Remove()
    }
