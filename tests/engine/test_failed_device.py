"""A GPU that fails: while a model is loaded it is refused with what the GPU said, behind a real
Triton; while it serves its process ends, and the controller finds that.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.text_models import write_torch
from tests.engine.triton_server import TritonServer, wait_until
from transformer_serving.engine.backends import exported_program, torch_cuda, torch_runtime
from transformer_serving.engine.backends.grouping import Layout
from transformer_serving.engine.backends.model_settings import (
    DeviceFailed,
    ModelError,
    ModelSettings,
    read_settings,
)
from transformer_serving.engine.backends.probe import probe
from transformer_serving.engine.backends.usual_shapes import UsualShapes
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.dead_models import DeadModels
from transformer_serving.engine.controller.triton.streams import Streams
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text

BACKEND = "failing_device"
# Names the file with how many calls go well: see failing_device.py, which runs in Triton alone.
FILE = "calls.txt"
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
# What learning a graph's axes asks of it.
PROBED = 4


@pytest.fixture
def failing(triton_server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    """A client of a Triton that has the backend beside ours, of the same modules."""
    backend = triton_server.backends / BACKEND
    if not backend.exists():
        shutil.copytree(triton_server.backends / "torch_text", backend)
        shutil.copyfile(Path(__file__).with_name(f"{BACKEND}.py"), backend / "model.py")
    with closing(triton_server.client()) as client:
        yield client


def write(server: TritonServer, name: str, calls: int) -> None:
    config = build_config(
        name=name, backend=BACKEND, max_batch_size=8, file_name=FILE,
        inputs=[TensorConfig(one, "INT32", (-1,)) for one in ("input_ids", "attention_mask")],
        outputs=[TensorConfig("output", "FP32", (1,))],
    )  # fmt: skip
    folder = server.repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / FILE).write_text(str(calls))
    (folder / "config.pbtxt").write_text(to_text(config))


def ask(client: triton.InferenceServerClient, name: str) -> None:
    inputs = []
    for one in ("input_ids", "attention_mask"):
        value = triton.InferInput(one, [1, 4], "INT32")
        value.set_data_from_numpy(np.ones((1, 4), np.int32))
        inputs.append(value)
    client.infer(name, inputs)


def test_a_load_says_what_the_gpu_said(
    triton_server: TritonServer, failing: triton.InferenceServerClient
) -> None:
    write(triton_server, "refused", PROBED - 1)
    with pytest.raises(InferenceServerException, match="no kernel image is available"):
        failing.load_model("refused")


def test_a_process_whose_gpu_fails_while_it_serves_ends_and_is_found(
    triton_server: TritonServer, failing: triton.InferenceServerClient
) -> None:
    write(triton_server, "ends", PROBED + 1)
    failing.load_model("ends")
    ask(failing, "ends")
    with pytest.raises(InferenceServerException, match="is not healthy"):
        ask(failing, "ends")
    assert "this process ends: the GPU failed (CUDA error" in triton_server.log.read_text()
    processes = BackendProcesses(triton_server.repository)
    dead = DeadModels(failing, Streams(triton_server.grpc), processes)
    # Triton counts the failure after it has told it.
    wait_until(lambda: "ends" in dead.unload(lambda *_: False), 30)


class UnfitGpu(torch_cuda.Gpu):
    """Its streams and memory are the processor's, and there is no kernel for it."""

    def __init__(self, number: int) -> None:
        self._device = torch.device("cpu")
        self._shapes, self._recorded = UsualShapes(), {}
        self._stream, self._pool = cast(Any, SimpleNamespace(synchronize=int)), cast(Any, None)
        self.remarks = []


@pytest.mark.parametrize("precision", ["fp32", "bf16"], ids=["padded", "packed"])
def test_engine_torch_gives_the_words_of_cuda_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    def refused(*_: Any) -> Any:
        raise torch.AcceleratorError(NO_KERNEL)

    def on_gpu(path: Path, device: str = "cpu") -> exported_program.LoadedProgram:
        loaded = exported_program.load_program(path)
        cast(Any, loaded.module).forward = refused
        return loaded

    monkeypatch.setattr(torch_runtime, "load_program", on_gpu)
    monkeypatch.setattr(torch_cuda, "Gpu", UnfitGpu)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch_cuda, "pinned", torch.tensor)
    path = write_torch(tmp_path)
    program = json.loads(path.read_text())
    path.write_text(json.dumps({**program, "precision": precision}))
    settings = replace(read_settings({"max_batch_size": 8}), gpu=0)
    wanted = rf"the GPU failed \({NO_KERNEL}\); .*install a build of PyTorch"
    with pytest.raises(DeviceFailed, match=wanted):
        initialized(path, settings)


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
    ],
    ids=["built for CPUs", "driver"],
)
def test_a_torch_that_cannot_use_the_gpu_is_named_and_not_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused() -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "init", refused)
    settings = replace(read_settings({"max_batch_size": 8}), gpu=0)
    said = f"cannot use this machine's GPU ({type(error).__name__}: {error}); where Triton runs,"
    with pytest.raises(DeviceFailed) as failed:
        initialized(write_torch(tmp_path), settings)
    assert f"PyTorch {torch.__version__} {said}" in str(failed.value)
    assert "convert again" not in str(failed.value)


def test_a_gpu_that_is_full_refuses_a_model_that_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, device: str) -> exported_program.LoadedProgram:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 MiB.")

    monkeypatch.setattr(torch_runtime, "load_program", full)
    monkeypatch.setattr(torch_cuda, "Gpu", UnfitGpu)
    settings = replace(read_settings({"max_batch_size": 8}), gpu=0)
    with pytest.raises(
        ModelError, match=r"no room for this model \(CUDA out of memory.*nvidia-smi"
    ):
        initialized(write_torch(tmp_path), settings)


def initialized(path: Path, settings: ModelSettings) -> Layout:
    """As far as the GPU takes part in a backend's start."""
    return probe(torch_runtime.TorchRuntime(path, settings))
