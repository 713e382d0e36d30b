"""The planning of the controller, driven through random lives of a small world."""

from __future__ import annotations

import dataclasses

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
    plan,
)
from transformer_serving.engine.controller.records import (
    DIFFERS,
    FailedChange,
    ModelRecord,
    Version,
    failed_again,
)

MODELS = st.sampled_from(["a", "b", "c"])
FINGERPRINTS = st.sampled_from(["good1", "good2", "good3", "bad1", "bad2"])
GRACE_S = 30.0


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
        self.failures: dict[str, FailedChange] = {}
        self.now = 1000.0
        self.lost: set[str] = set()
        self.unproven: set[str] = set()

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
            self.serve(self.records[model])
        elif isinstance(action, Retire):
            record = self.records[model]
            kept = tuple(v for v in record.versions if v.drop_at is None or v.drop_at > self.now)
            assert len(kept) < len(record.versions)
            self.serve(dataclasses.replace(record, versions=kept))

    def prepare(self, model: str) -> None:
        assert self.reached
        fingerprint = self.endpoints[model]
        failure = self.failures.get(model)
        if failure is not None and failure.fingerprint == fingerprint:
            assert self.now >= failure.retry_at, "tried again too early"
        if fingerprint.startswith("bad"):
            self.failures[model] = failed_again(failure, fingerprint, "bad", self.now)
            return
        number = int(fingerprint[-1])
        before = self.records.get(model)
        old = [v for v in before.versions if v.number != number][:1] if before else []
        grace = [dataclasses.replace(v, drop_at=v.drop_at or self.now + GRACE_S) for v in old]
        self.serve(
            ModelRecord(model, model, fingerprint, (version(number, fingerprint), *grace), "")
        )

    def serve(self, record: ModelRecord) -> None:
        assert self.triton is not None
        self.records[record.model] = record
        self.triton[record.model] = record.numbers
        self.lost.discard(record.model)
        self.unproven.discard(record.model)
        self.failures.pop(record.model, None)

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


def test_what_is_unproven_is_loaded_again_even_where_it_is_ready() -> None:
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    loaded = {"a": frozenset({1})}
    situation = Situation({"a": "good1"}, {"a": record}, {}, loaded, 11.0, frozenset({"a"}))
    assert plan(situation) == {"a": Reload()}
    refused = failed_again(None, "good1", "at 32 tokens", 11.0, DIFFERS)
    assert plan(dataclasses.replace(situation, failures={"a": refused})) == {}
    # What is deployed instead is not held back by that.
    newer = dataclasses.replace(situation, wanted={"a": "good2"}, failures={"a": refused})
    assert plan(newer) == {"a": Prepare()}


def test_a_failed_proof_is_tried_again_rarely() -> None:
    failure, pauses = None, []
    for _ in range(5):
        failure = failed_again(failure, "x", "reason", 0.0, DIFFERS)
        pauses.append(failure.retry_at)
    assert pauses == [60, 240, 960, 3600, 3600]


def test_a_model_that_cannot_be_loaded_again_is_fetched_again() -> None:
    record = ModelRecord("a", "a", "good1", (version(1, "good1"),), "")
    failure = FailedChange("good1", "files are damaged", 0.0, 1, 10.0)
    situation = Situation({"a": "good1"}, {"a": record}, {"a": failure}, {}, 11.0)
    assert plan(situation) == {"a": Prepare()}
    assert plan(dataclasses.replace(situation, wanted=None)) == {"a": Reload()}
    assert plan(dataclasses.replace(situation, now=5.0)) == {}
