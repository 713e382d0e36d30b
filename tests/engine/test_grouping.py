"""Grouping, isolation and probing of the backends, with a runtime in plain numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from transformer_serving.contract.heads import EXTRA_ROLES
from transformer_serving.engine.backends.executor import Executor, Graph, RequestFailure
from transformer_serving.engine.backends.grouping import (
    EXTRA_INPUTS,
    FREE_TOKENS,
    WASTE,
    Arrays,
    Item,
    Layout,
    Shape,
    plan_groups,
)
from transformer_serving.engine.backends.model_settings import (
    ModelError,
    TensorSpec,
    check_tensors,
    read_settings,
)
from transformer_serving.engine.backends.precision import openvino_properties
from transformer_serving.engine.backends.probe import probe

AXES = {
    "sum": {},
    "tokens": {1: "tokens"},
    "pairs": {1: "tokens", 2: "tokens"},
    "at_masks": {1: "mask_positions", 2: "candidates"},
}
PADDED = Layout(joinable=True, mask="attention_mask", own_axes=AXES)
POISON = 41
PLACES = 14


class NumpyRuntime:
    """Sums and per-token answers; an id of POISON fails its whole batch. `unmasked` is what
    ids add to the sums, heeding no mask."""

    def __init__(
        self, *, unmasked: Callable[[Any], Any] | None = None, dims: tuple[int, ...] = (-1, -1),
        places: int | None = None,
    ) -> None:  # fmt: skip
        self.graph = Graph(
            inputs=(
                TensorSpec("input_ids", "int32", dims),
                TensorSpec("attention_mask", "int32", dims),
                *(TensorSpec(name, "int32", dims) for name in EXTRA_INPUTS),
            ),
            outputs=(),
            id_limits={"input_ids": 50},
            places=places,
        )
        self.unmasked = unmasked
        self.batches: list[tuple[int, ...]] = []

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        return [self.tried(batch) for batch in batches]

    def tried(self, batch: Arrays) -> Arrays | RequestFailure:
        """Arrays that do not fit each other, where no layout says so, fail as in a real engine."""
        try:
            return self.one(batch)
        except (ValueError, IndexError) as error:
            return RequestFailure(str(error), invalid=True)

    def one(self, batch: Arrays) -> Arrays | RequestFailure:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        self.batches.append(ids.shape)
        if (ids == POISON).any():
            return RequestFailure("poison", invalid=False)
        masked = (ids * mask).astype(np.float32)
        return {
            "sum": masked.sum(1, keepdims=True) + (self.unmasked(ids) if self.unmasked else 0),
            "tokens": masked[..., None],
            "pairs": masked[:, :, None] * masked[:, None, :],
            "at_masks": np.take_along_axis(masked, batch["mask_positions"], 1)[:, :, None]
            * batch["candidates"][:, None, :],
        }


def request(ids: Any, masks: int = 1, candidates: int = 1) -> Arrays:
    array = np.array(ids, np.int32)
    rows, length = array.shape
    return {
        "input_ids": array,
        "attention_mask": np.ones_like(array),
        "mask_positions": np.tile(np.arange(masks, dtype=np.int32) % max(1, length), (rows, 1)),
        "candidates": np.tile(np.arange(2, 2 + candidates, dtype=np.int32), (rows, 1)),
    }


shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=12)


@given(shapes=shapes, poisoned=st.sets(st.integers(0, 11)), pad=st.booleans())
def test_every_request_gets_exactly_its_own_answer(
    shapes: list[tuple[int, int]], poisoned: set[int], pad: bool
) -> None:
    layout = PADDED if pad else Layout(joinable=True)
    random = np.random.default_rng(len(shapes))
    requests = [
        request(random.integers(1, 40, shape), *random.integers(1, 5, 2)) for shape in shapes
    ]
    for index in poisoned & set(range(len(shapes))):
        requests[index]["input_ids"][0, -1] = POISON
    answers = Executor(NumpyRuntime(), layout).answers(requests)
    for index, (arrays, answer) in enumerate(zip(requests, answers, strict=True)):
        alone = NumpyRuntime().one(arrays)
        assert isinstance(answer, RequestFailure) == (index in poisoned)
        if not isinstance(answer, RequestFailure):
            assert not isinstance(alone, RequestFailure)
            for name, expected in alone.items():
                np.testing.assert_array_equal(answer[name], expected)


@given(shapes=shapes)
def test_padding_stays_within_its_bounds(shapes: list[tuple[int, int]]) -> None:
    items = [
        Item(index, arrays := request(np.ones(shape)), Shape(*shape, tuple(_own_sizes(arrays))))
        for index, shape in enumerate(shapes)
    ]
    groups = plan_groups(items, PADDED)
    assert sorted(item.index for group in groups for item in group.items) == list(range(len(items)))
    for group in groups:
        rows, lengths = zip(
            *((item.shape.rows, item.shape.tokens) for item in group.items), strict=True
        )
        padded = sum(rows) * group.length
        assert group.length == max(lengths)
        assert padded - np.dot(rows, lengths) <= max(FREE_TOKENS, WASTE * padded)


def _own_sizes(arrays: Arrays) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, array in sorted(arrays.items()):
        yield name, array.shape[1:]


# Each makes a request one that is at fault.
FAULTS: dict[str, Callable[[Arrays], Any]] = {
    "poison": lambda one: np.put(one["input_ids"], -1, POISON),
    "id below 0": lambda one: np.put(one["input_ids"], 0, -1),
    "id above the last": lambda one: np.put(one["input_ids"], -1, 50),
    "position outside": lambda one: np.put(one["mask_positions"], -1, one["input_ids"].shape[1]),
    "position below 0": lambda one: np.put(one["mask_positions"], 0, -1),
    "missing": lambda one: one.pop("attention_mask"),
    "another type": lambda one: one.update(candidates=one["candidates"].astype(np.int64)),
    "empty": lambda one: one.update(candidates=one["candidates"][:, :0]),
    "one dimension": lambda one: one.update(input_ids=one["input_ids"][0]),
    "rows": lambda one: one.update(mask_positions=np.zeros((9, 1), np.int32)),
    "tokens": lambda one: one.update(attention_mask=one["attention_mask"].repeat(2, axis=1)),
    "too long": lambda one: one.update(request(np.ones((len(one["input_ids"]), PLACES + 1)))),
}
kinds = st.lists(st.sampled_from(["good"] * 4 + sorted(FAULTS)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    kinds=kinds, layout=st.sampled_from([PADDED, Layout(joinable=True), Layout()]), data=st.data()
)
def test_requests_together_get_what_each_gets_alone(
    kinds: list[str], layout: Layout, data: st.DataObject
) -> None:
    """Also those at fault, to the word; of near lengths, so that most share a batch."""
    sizes = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 3), st.integers(1, 3))
    requests = []
    for kind in kinds:
        rows, length, masks, candidates = data.draw(sizes)
        ids = np.arange(1, 1 + rows * length).reshape(rows, length)
        requests.append(request(ids, masks, candidates))
        if kind in FAULTS:
            FAULTS[kind](requests[-1])
    executor = Executor(NumpyRuntime(places=PLACES), layout)
    for arrays, answer in zip(requests, executor.answers(requests), strict=True):
        [alone] = executor.answers([arrays])
        if isinstance(alone, RequestFailure):
            assert answer == alone
            continue
        assert not isinstance(answer, RequestFailure)
        assert answer.keys() == alone.keys()
        for name, expected in alone.items():
            np.testing.assert_array_equal(answer[name], expected, strict=True)


def test_who_is_refused_changes_nothing_for_the_others() -> None:
    """Not even the length to which they are padded."""
    runtime = NumpyRuntime()
    good = [request([[1, 2, 3]]), request([[4, 5]])]
    Executor(runtime, PADDED).answers([request([[1, -1, 1, 1, 1]]), *good])
    assert runtime.batches == [(2, 3)]


def test_without_a_known_layout_every_request_runs_alone() -> None:
    runtime = NumpyRuntime()
    Executor(runtime, Layout()).answers([request([[1, 2]]), request([[3, 4]])])
    assert runtime.batches == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"input_ids": np.ones((1, 2), np.int32)}, "'attention_mask' is missing"),
        (
            {**request([[1]]), "input_ids": np.ones((1, 1), np.int64)},
            "'input_ids' must be int32, got int64",
        ),
        ({**request([[1]]), "input_ids": np.ones(1, np.int32)}, "must have 2 dimensions, got 1"),
        ({"input_ids": np.full((1, 2), -1, np.int32)}, "'input_ids' has an id below 0"),
        (request(np.ones((0, 4))), "'input_ids' is empty"),
        (request([[1, -1]]), "'input_ids' has an id below 0"),
        (request([[1, 50]]), "'input_ids' has an id above 49"),
        (
            {**request([[1, 2]]), "attention_mask": np.ones((2, 2), np.int32)},
            "differ in their batch size",
        ),
        (
            {**request([[1, 2]]), "attention_mask": np.ones((1, 3), np.int32)},
            "differ in their number of tokens",
        ),
        (
            {**request([[1, 2]]), "mask_positions": np.full((1, 1), 2, np.int32)},
            "'mask_positions' has a position outside the text",
        ),
        (
            {**request([[1, 2]]), "candidates": np.full((2, 1), 2, np.int32)},
            "differ in their batch size",
        ),
    ],
)
def test_a_bad_request_is_told_why_and_fails_alone(arrays: Arrays, reason: str) -> None:
    bad, good = Executor(NumpyRuntime(), PADDED).answers([arrays, request([[5, 6]])])
    assert isinstance(bad, RequestFailure)
    assert bad.invalid
    assert reason in bad.reason
    assert not isinstance(good, RequestFailure)


def test_the_probe_learns_axes_and_whether_padding_is_harmless() -> None:
    assert probe(NumpyRuntime()) == PADDED
    reads_padding = NumpyRuntime(unmasked=lambda ids: ids[:, -1:])
    assert probe(reads_padding).mask is None
    assert probe(reads_padding).joinable
    assert probe(NumpyRuntime(dims=(-1, 128))) == Layout()


def last_unlike(pad_id: int) -> Callable[[Any], Any]:
    """As a decoder's classifier reads a text, at its last id that is no padding, and with answers
    that are near to each other."""

    def read(ids: Any) -> Any:
        last = (np.arange(ids.shape[1]) * (ids != pad_id)).argmax(1)
        return 1e-3 * ids[np.arange(len(ids)), last][:, None]

    return read


def test_who_finds_its_text_by_an_id_of_padding_is_not_padded() -> None:
    for pad_id in (0, 3, 7, 40):
        layout = probe(NumpyRuntime(unmasked=last_unlike(pad_id)))
        assert (layout.joinable, layout.mask) == (True, None)


def test_who_is_quantized_with_the_whole_batch_is_padded() -> None:
    assert probe(NumpyRuntime(unmasked=lambda ids: 1e-3 * ids.max())) == PADDED


def test_the_extra_inputs_are_those_of_the_contract() -> None:
    assert EXTRA_INPUTS == EXTRA_ROLES


def test_settings_are_read_from_the_model_configuration() -> None:
    settings = read_settings(
        {
            "max_batch_size": 8,
            "instance_group": [{"count": 2}, {"count": 1, "gpus": [0, 1]}],
            "input": [{"name": "x", "data_type": "TYPE_INT64", "dims": ["-1"]}],
            "parameters": {"intra_op_thread_count": {"string_value": "3"}},
            "optimization": {"graph": {"level": 1}},
        }
    )
    assert settings.instances == 4
    assert settings.inputs == (TensorSpec("x", "int64", (-1, -1)),)
    assert settings.threads == 3
    assert settings.graph_level == 1
    with pytest.raises(ModelError, match="'x' is not in the model; it has: y"):
        check_tensors("input", settings.inputs, (TensorSpec("y", "int64", (-1, -1)),))


@pytest.mark.parametrize(
    ("precision", "capabilities", "hint"),
    [
        ("fp32", ["FP32", "BF16"], "f32"),
        ("bf16", ["FP32", "BF16"], "bf16"),
        ("bf16", ["FP32"], "f32"),
        ("fp16", ["FP32", "BF16"], "f32"),
        ("int8", ["FP32", "BF16", "INT8"], "f32"),
    ],
)
def test_a_precision_is_asked_for_where_the_cpu_has_it(
    precision: str, capabilities: list[str], hint: str
) -> None:
    properties = openvino_properties(precision, capabilities=capabilities, threads=2)
    assert properties["INFERENCE_PRECISION_HINT"] == hint
    assert properties["INFERENCE_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("limit", "hint"),
    [("AVX2", "f32"), ("avx512_core_vnni", "f32"), ("AVX512_CORE_BF16", "bf16"), ("ALL", "bf16")],
)
def test_bf16_is_not_asked_for_where_onednn_may_not_use_it(
    limit: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    properties = openvino_properties("bf16", capabilities=["FP32", "BF16"], threads=2)
    assert properties["INFERENCE_PRECISION_HINT"] == hint


# In a process of its own: other tests' engines may have pinned their threads in this one.
AFFINITIES = """
import os, numpy, openvino
from transformer_serving.engine.backends.precision import openvino_properties

operations = openvino.opset13
given = operations.parameter([-1, 4], numpy.float32)
model = openvino.Model([operations.relu(given)], [given])
properties = openvino_properties("fp32", capabilities=["FP32"], threads=2)
compiled = openvino.Core().compile_model(model, "CPU", properties)
compiled([numpy.ones((2, 4), numpy.float32)])
threads = map(int, os.listdir("/proc/self/task"))
print({frozenset(os.sched_getaffinity(one)) for one in threads} == {
    frozenset(os.sched_getaffinity(0))
})
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing to pin to")
def test_engine_threads_may_run_on_every_core() -> None:
    """Each process pins from the first core on: two instances would then share that core."""
    done = subprocess.run(
        [sys.executable, "-c", AFFINITIES], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "True"
