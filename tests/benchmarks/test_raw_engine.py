"""The engine alone in its process: what it computes, on what, and what it said when it ended."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest
import torch

from benchmarks.runs import raw_engine
from benchmarks.runs.engine_process import RawEngine
from benchmarks.runs.gpu_runtimes import CUDA
from benchmarks.servers.process import Unusable
from benchmarks.studies.gpu import engines, stacks
from tests.engine.serving import write_bundle
from tests.engine.text_models import write_torch
from transformer_serving.engine.backends import (
    exported_program,
    torch_cuda,
    torch_runtime,
    usual_shapes,
)
from transformer_serving.engine.backends.executor import RequestFailure
from transformer_serving.engine.backends.model_settings import ModelSettings, read_settings
from transformer_serving.engine.backends.packed import calls
from transformer_serving.engine.backends.torch_runtime import CpuCalls, TorchRuntime


def quiet(line: str) -> None:
    """Nothing is said in a test."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("program"), 1, engine="torch")


def test_it_says_that_texts_of_a_call_are_padded_and_why_it_ended(
    folder: Path, tmp_path: Path
) -> None:
    with closing(RawEngine(folder, tmp_path)) as raw:
        assert (raw.packed, raw.remarks) == (False, [])
        for _ in range(2):
            # It is asked a word that the small model has no row for.
            with pytest.raises(Unusable, match="ended with 1: .*index out of range"):
                raw.measure(2, 8, 0.01)


def test_one_that_ends_is_named_with_what_it_said_last(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path, 1, engine="torch")
    [program] = folder.rglob("program.json")
    program.write_text("{}")
    with pytest.raises(Unusable, match="ended with 1: .*field 'schema' is missing"):
        RawEngine(folder, tmp_path)


def test_onnx_runtime_without_cuda_is_not_measured_as_with_it(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path, 1)
    with (
        pytest.warns(UserWarning, match=CUDA),
        pytest.raises(Unusable, match=f"compute by CPUExecutionProvider: {CUDA} cannot be loaded"),
    ):
        raw_engine.load(folder, "onnxruntime-cuda")


def test_cudas_libraries_are_loaded_first_and_figures_stay_alone_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "Failed to load libcudart.so.13"
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print(said))  # noqa: T201
    with pytest.warns(UserWarning, match=CUDA), pytest.raises(Unusable):
        raw_engine.load(write_bundle(tmp_path, 1), "onnxruntime-cuda")
    assert capsys.readouterr() == ("", f"{said}\n")


class PlayedGpu(torch_cuda.Gpu):
    """It computes on the processor, and cannot record."""

    def __init__(self, number: int) -> None:
        self._device = torch.device("cpu")
        self._shapes = usual_shapes.UsualShapes()
        self._recorded = {}
        self._stream, self._pool = None, cast(Any, None)
        self.remarks = []

    @contextmanager
    def work(self) -> Iterator[None]:
        with torch.inference_mode():
            yield


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> ModelSettings:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch_cuda, "Gpu", PlayedGpu)
    monkeypatch.setattr(torch_cuda, "pinned", torch.tensor)
    monkeypatch.setattr(torch_cuda, "fetched", torch.clone)
    monkeypatch.setattr(
        torch_runtime, "load_program", lambda path, device: exported_program.load_program(path)
    )
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", refused)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda device, pool: None)
    return replace(read_settings({"max_batch_size": 8}), gpu=0)


def test_engine_torch_says_what_is_slower_on_a_gpu_than_it_might_be(
    tmp_path: Path, on_gpu: ModelSettings
) -> None:
    path = write_torch(tmp_path)
    runtime = TorchRuntime(path, on_gpu)
    padded = (
        "texts of a call are padded to one length: torch's attention without padding takes bf16 "
        "and fp16 alone"
    )
    assert (runtime.packed, list(runtime.remarks)) == (False, [padded])
    ones = np.ones((1, 4), np.int32)
    for _ in range(usual_shapes.TIMES):
        [answer] = runtime.run([{"input_ids": ones, "attention_mask": ones}])
        assert not isinstance(answer, RequestFailure)
    recorded = "nothing more is recorded as a CUDA graph: operation not permitted when stream is"
    assert runtime.remarks[1].startswith(recorded)
    assert raw_engine._remarks(runtime) == {"remarks": list(runtime.remarks)}
    asked = TorchRuntime(path, on_gpu, packed=False)
    assert (asked.packed, list(asked.remarks)) == (False, [])


def test_torch_is_told_of_a_recording_that_cuda_has_ended(
    on_gpu: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch has ended it, it says that there is none."""
    told: list[Any] = []

    def end(device: int, pool: Any) -> None:
        told.append((device, pool))
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    gpu = PlayedGpu(0)
    gpu._device, gpu._pool = torch.device("cpu", 0), cast(Any, (0, 7))
    for _ in range(usual_shapes.TIMES):
        gpu.outputs(((1, 4),), lambda tensors: tuple(tensors), [torch.ones(1)])
    assert told == [(0, (0, 7))]
    assert len(gpu.remarks) == 1


def test_padded_calls_have_all_recordings_where_packed_ones_are_refused(
    tmp_path: Path, on_gpu: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = np.ones((1, 4), np.int32)
    before: list[weakref.ref[torch_cuda.Gpu]] = []

    def refused(path: Path, loaded: Any, gpu: torch_cuda.Gpu, padded: Any) -> tuple[None, str]:
        before.append(weakref.ref(gpu))
        for _ in range(usual_shapes.TIMES):
            padded.run([[ones, ones]])
        assert len(gpu.remarks) == 1
        return None, "too far"

    monkeypatch.setattr(calls, "open_packed", refused)
    runtime = TorchRuntime(write_torch(tmp_path), on_gpu)
    assert [one() for one in before] == [None]
    assert list(runtime.remarks) == ["texts of a call are padded to one length: too far"]
    for _ in range(usual_shapes.TIMES):
        runtime.run([{"input_ids": ones, "attention_mask": ones}])
    assert runtime.remarks[1].startswith("nothing more is recorded as a CUDA graph")


@pytest.mark.parametrize("where", ["GPU", "CPU"])
def test_what_a_call_took_that_failed_is_free_before_the_next(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    left: list[bool] = []

    def forward(given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        left.append(any(one() is not None for one in held))
        taken = torch.ones(3)
        held.append(weakref.ref(taken))
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch_cuda, "pinned", torch.tensor)
    program = cast(Any, SimpleNamespace(forward=forward))
    call = [np.ones((1, 4), np.int32)]
    padded = torch_cuda.PaddedCalls(program, PlayedGpu(0))
    found = (padded if where == "GPU" else CpuCalls(program)).run([call, call])
    assert [str(one) for one in found] == ["out of memory"] * 2
    assert left == [False] * 2


def test_a_shape_that_there_is_no_memory_to_record_is_computed_and_costs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(tensor: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **options: nullcontext())
    gpu = PlayedGpu(0)

    def asked(texts: int) -> list[list[float]]:
        """The answers of as many calls as make a shape usual."""
        return [
            gpu.outputs(((texts, 4),), lambda tensors: tuple(tensors), [torch.ones(texts)])[0]
            .tolist()
            for _ in range(usual_shapes.TIMES)
        ]  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", no_memory)
        assert asked(2) == [[1.0, 1.0]] * usual_shapes.TIMES
    said = "calls of shape (2, 4) are not recorded as a CUDA graph: CUDA out of memory"
    assert asked(2) == [[1.0, 1.0]] * usual_shapes.TIMES
    assert asked(1) == [[1.0]] * usual_shapes.TIMES
    assert (gpu.remarks, set(gpu._recorded)) == ([said], {((1, 4),)})


def test_its_percentiles_are_those_of_the_figures_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two calls the shorter one is the median."""
    clock = iter([0.0, 0.0, 1.0, 1.0, 4.0, 4.0, 4.0])
    played: Any = SimpleNamespace(perf_counter=lambda: next(clock), process_time=lambda: 0.0)
    monkeypatch.setattr(raw_engine, "time", played)
    runtime: Any = SimpleNamespace(run=lambda calls: [])
    found = raw_engine.measure(runtime, [{"input_ids": np.ones((1, 4))}], 2.0)
    assert (found["p50"], found["p90"], found["p99"]) == (1000.0, 3000.0, 3000.0)


def test_a_pause_before_a_call_is_no_time_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes a second, and each pause ten."""
    now = 0.0

    def passes(seconds: float) -> list[Any]:
        nonlocal now
        now += seconds
        return []

    played: Any = SimpleNamespace(perf_counter=lambda: now, process_time=lambda: 0.0, sleep=passes)
    monkeypatch.setattr(raw_engine, "time", played)
    runtime: Any = SimpleNamespace(run=lambda calls: passes(1.0))
    found = raw_engine.measure(runtime, [{"input_ids": np.ones((1, 4))}], 30.0, 10.0)
    assert now == 33.0
    assert (found["p50"], found["p99"], found["mean"], found["rate"]) == (1e3, 1e3, 1e3, 1.0)


def test_one_text_at_a_time_is_measured_after_pauses_too() -> None:
    paused = stacks.peers("torch_text")[-1]
    taken = {load.name for load in (*stacks.LOADS["minilm"], *stacks.LOADS["large"])
             if load.takes(paused)}  # fmt: skip
    assert taken == {"single", "passage-single"}


class Played:
    """A raw engine that took no time."""

    def __init__(self, packed: bool) -> None:
        self.packed, self.remarks = packed, ["a remark"]

    def measure(self, batch: int, tokens: int, seconds: float) -> dict[str, float]:
        return {"mean": 1.0, "rate": 2.0}

    def measure_mixed(
        self, lengths: Sequence[int], pads: Sequence[int], seconds: float
    ) -> dict[str, float]:
        return {"mean": 1.0, "rate": 2.0}


@pytest.mark.parametrize("packs", [True, False])
def test_figures_are_called_padded_where_they_are(
    packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def raw(folder: Path, backend: str) -> Any:
        started.append(backend)
        return nullcontext(Played(packs and not backend))

    monkeypatch.setattr(engines, "_raw", raw)
    monkeypatch.setattr(engines, "bundle_of", lambda *_: SimpleNamespace(model_folder=Path()))
    found = engines.alone("torch", "bf16", "", quiet)
    assert found.pop("remarks") == ["a remark"]
    padded = [name for name in found if name.endswith(", padded")]
    assert len(padded) == len(engines.SHAPES) + 2
    assert len(found) == len(padded) * (2 if packs else 1)
    assert started == ["", raw_engine.PADDED][: 2 if packs else 1]
