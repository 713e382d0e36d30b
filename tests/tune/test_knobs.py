"""What is turned: the values that are tried, and the bundle that a setting is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as some

from transformer_serving.contract.manifest import TORCH
from transformer_serving.desk.builders.call_sizes import NARROW
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.bundle.writer import content_of, write_bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.knobs import (
    BY_NAME,
    KNOBS,
    LADDERS,
    THREADS,
    Scope,
    Setting,
    content_at,
    knobs_named,
    setting_of,
    with_values,
)
from transformer_serving.desk.tune.sources import content
from transformer_serving.engine.model_config import FILE_NAME as CONFIG, from_text
from transformer_serving.engine.proof.parity_set import ParitySet, read_parity_set

USUAL = Setting("fp32", 0, "converted", 0, 2, 1, 1)
LENGTHS = some.lists(some.integers(1, 20_000), min_size=1, unique=True).map(sorted)


@pytest.fixture
def scope(small: Bundle) -> Scope:
    return Scope({"fp32": content(small)}, cores=4)


@given(LENGTHS)
def test_a_ladder_is_of_the_converted_lengths_and_holds_the_longest(lengths: list[int]) -> None:
    for ladder in LADDERS.values():
        found = ladder(lengths)
        assert set(found) <= set(lengths)
        assert list(found) == sorted(set(found))
        assert found[-1] == lengths[-1]


def test_the_coarser_ladders_of_the_usual_one() -> None:
    narrow = NARROW[: NARROW.index(128) + 1]
    assert LADDERS["halved"](narrow) == (*range(4, 32, 4), *range(32, 64, 8), 64, 96, 128)
    assert LADDERS["doubling"](narrow) == (16, 32, 64, 128)


def test_a_bundle_says_its_own_setting(scope: Scope) -> None:
    assert setting_of("fp32", scope, {}) == USUAL
    given = {"TRANSFORMER_SERVING_CALLS_IN_FLIGHT": "3", "CLEARML_SERVING_NUM_PROCESS": "2"}
    assert setting_of("fp32", scope, given) == replace(USUAL, calls=3, workers=2)
    for name in given:
        with pytest.raises(Failure):
            setting_of("fp32", scope, {name: "many"})


def test_values_are_read_and_said_again(scope: Scope) -> None:
    turned = with_values("threads=1, buckets=doubling,calls=4", USUAL, scope)
    assert turned == replace(USUAL, threads=1, buckets="doubling", calls=4)
    assert with_values(str(turned), USUAL, scope) == turned
    assert with_values("", USUAL, scope) == USUAL


@pytest.mark.parametrize(
    "text",
    ["speed=9", "threads", "threads=-1", "threads=x", "calls=0", "buckets=all", "precision=int8",
     "workers=", "workers=99999999", "workers=1001", "calls=65"],
)  # fmt: skip
def test_another_value_is_refused_with_what_it_takes(scope: Scope, text: str) -> None:
    with pytest.raises(Failure, match="must be"):
        with_values(text, USUAL, scope)


def test_the_present_value_is_the_first_rival_and_none_is_there_twice(scope: Scope) -> None:
    present = replace(USUAL, calls=7, threads=3, call_tokens=96)
    for knob in KNOBS:
        rivals = knob.rivals(scope, present)
        assert rivals[0] == present
        assert len(set(rivals)) == len(rivals)
        if knob.name not in ("workers", "instances"):
            assert all(one.turned(knob.name, present.value(knob.name)) == present for one in rivals)
    workers = BY_NAME["workers"].rivals(scope, replace(USUAL, calls=4))
    assert [(one.workers, one.calls) for one in workers] == [(1, 4), (2, 2), (4, 1)]
    (one, *_) = BY_NAME["workers"].rivals(scope, USUAL)[1:]
    assert (one.workers, one.calls) == (2, 1)
    many = replace(scope, cores=64)
    copies = BY_NAME["instances"].rivals(many, replace(USUAL, threads=32))
    assert [(one.instances, one.threads) for one in copies] == [(1, 32), (2, 16), (4, 8), (8, 4)]
    copies = BY_NAME["instances"].rivals(many, USUAL)
    assert [(one.instances, one.threads) for one in copies] == [(1, 0), (2, 0), (4, 0), (8, 0)]
    far = BY_NAME["workers"].rivals(many, replace(USUAL, workers=8, calls=64))
    assert max(one.calls for one in far) == 64
    assert [one.threads for one in BY_NAME["threads"].rivals(scope, USUAL)] == [0, 1, 2]


def test_knobs_are_named_in_any_order() -> None:
    found = [one.name for one in knobs_named(("workers", "threads"))]
    assert found == ["workers", "threads", "workers"]
    [alone] = knobs_named(("workers",))
    assert not alone.wide
    assert knobs_named(()) == KNOBS
    with pytest.raises(Failure, match="no knob 'speed'"):
        knobs_named(("threads", "speed"))


def test_a_plan_for_a_gpu_keeps_its_lengths_and_threads(scope: Scope) -> None:
    own = scope.bundles["fp32"]
    plan = Scope({"fp32": replace(own, engine=replace(own.engine, engine="tensorrt"))}, cores=4)
    for name in ("threads", "buckets"):
        assert BY_NAME[name].rivals(plan, USUAL) == (USUAL,)


@pytest.mark.parametrize("engine", ["onnxruntime", TORCH, "openvino"])
def test_where_an_engine_computes_on_a_gpu_no_threads_are_tried(scope: Scope, engine: str) -> None:
    """The ONNX Runtime of tune's own stack is one for CPUs."""
    own = scope.bundles["fp32"]
    there = {"fp32": replace(own, engine=replace(own.engine, engine=engine))}
    for gpu in (False, True):
        found = Scope(there, cores=64, gpu=gpu)
        on_cores = engine != TORCH or not gpu
        assert (len(BY_NAME["threads"].rivals(found, USUAL)) > 1) == on_cores
        assert len(BY_NAME["buckets"].rivals(found, USUAL)) > 1
        most = max(one.instances for one in BY_NAME["instances"].rivals(found, USUAL))
        assert most == (8 if on_cores else 4)


def test_a_setting_is_another_bundle_that_is_whole(small: Bundle, tmp_path: Path) -> None:
    setting = replace(USUAL, threads=2, buckets="halved", call_tokens=64, instances=2)
    with content_of(small, tmp_path) as found:
        write_bundle(content_at(found, setting), tmp_path / "tuned")
    tuned = open_bundle(tmp_path / "tuned")
    assert tuned.endpoint.tokens.buckets == (8, 32)
    assert tuned.endpoint.limits.max_call_tokens == 64
    config = from_text((tuned.model_folder / CONFIG).read_text("utf-8"))
    assert config.parameters[THREADS].string_value == "2"
    assert config.instance_group[0].count == 2
    assert [one.name for one in config.model_warmup] == ["tokens8", "tokens32"]
    proof = read_parity_set((tuned.model_folder / "parity.json").read_bytes())
    before = content(small).parity_set
    assert isinstance(before, ParitySet)
    assert (proof.buckets, proof.max_call_tokens) == ((8, 32), 64)
    assert proof.rows[0].tokens == before.rows[0].tokens
    assert tuned.manifest.golden == small.manifest.golden
    assert setting_of("fp32", Scope({"fp32": content(tuned)}, 4), {}) == replace(
        setting, buckets="converted"
    )


def test_its_own_setting_is_the_same_bundle(small: Bundle, scope: Scope, tmp_path: Path) -> None:
    with content_of(small, tmp_path) as found:
        again = write_bundle(content_at(found, setting_of("fp32", scope, {})), tmp_path / "again")
    assert again.manifest.bundle_version == small.manifest.bundle_version
