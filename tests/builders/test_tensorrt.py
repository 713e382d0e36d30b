"""TensorRT up to the builder's call: what it is told, and what is refused before any work."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from preprocess.tensors import Tensor
from tests.builders.test_precisions import big_graph
from tests.contract.plans import Plan, build
from tests.stand_in import names, nvidia_smi
from tests.tensorrt_recorder import Recorder
from transformer_serving.contract.gate.server_facts import Gpu
from transformer_serving.desk.builders.files import Shapes
from transformer_serving.desk.builders.table import build_engine
from transformer_serving.desk.builders.tensorrt import (
    layers_of,
    profiles,
    require_machine,
    timing_cache_file,
)
from transformer_serving.desk.builders.tensorrt_run import fitting_profile, open_plan
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.export.endpoint_json import LIMITS
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.versions.lock import read_lock
from transformer_serving.engine.model_config import from_text

PLAN = build(Plan(read_lock().image.tensorrt, 239, "8.6"))
A10 = Gpu("NVIDIA A10", "560.35.03", "8.6")
SHAPES = Shapes((16, 64), (1, 4, 32))


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose nvidia-smi names a GPU, with an empty timing cache."""
    program = nvidia_smi(tmp_path / "bin", names(A10))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def installed(
    monkeypatch: pytest.MonkeyPatch, plan: bytes | None = PLAN, **choices: str
) -> Recorder:
    recorder = Recorder(plan, **choices)
    monkeypatch.setitem(sys.modules, "tensorrt", recorder)
    return recorder


def test_one_profile_a_bucket_from_one_text_to_the_most() -> None:
    first, second = profiles(["input_ids", "mask_positions", "candidates"], SHAPES)
    ids = first["input_ids"]
    assert (ids.least, ids.best, ids.greatest) == ((1, 1), (4, 16), (32, 16))
    ids = second["input_ids"]
    assert (ids.least, ids.best, ids.greatest) == ((1, 17), (4, 64), (32, 64))
    assert second["mask_positions"].greatest == (32, 512)
    # What preprocess takes, which refuses more targets than texts.
    assert second["candidates"].greatest == (32, LIMITS.max_texts)


@pytest.mark.usefixtures("gpu")
def test_the_builder_is_told_profiles_precision_and_what_stays_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = installed(monkeypatch)
    graph = big_graph(tmp_path / "graph.onnx")
    shapes = Shapes(SHAPES.lengths, SHAPES.batch, [{"input_ids": np.array([[1, 2]], np.int32)}])
    files = build_engine("tensorrt", "fp16", graph, tmp_path, shapes)
    said = recorder.record
    assert said.flags == ["FP16", "OBEY_PRECISION_CONSTRAINTS"]
    assert [list(profile) for profile in said.profiles] == [["input_ids"], ["input_ids"]]
    layers = {name.rstrip("0123456789").rstrip("_") for name in said.fp32}
    assert layers == {"back", "twice", "sum"}
    # Also the layers that the parser makes of a node beside the first.
    assert len([name for name in said.fp32 if name.startswith("sum")]) == 2
    assert set(map(tuple, said.fp32.values())) == {(0,)}
    assert said.built == 1
    assert files.files[0].read_bytes() == PLAN
    assert files.facts is not None
    assert files.facts["version"] == read_lock().image.tensorrt
    assert files.facts["compute_capability"] == "8.6"
    assert files.facts["profiles"] == 2
    assert files.facts["fp32_layers"] == ["back", "sum", "twice"]


@pytest.mark.usefixtures("gpu")
def test_tactics_that_were_timed_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = big_graph(tmp_path / "graph.onnx")
    first = installed(monkeypatch)
    build_engine("tensorrt", "fp32", graph, tmp_path, SHAPES)
    assert first.record.caches_read == [b""]
    assert (first.record.flags, first.record.cleared) == ([], ["TF32"])
    again = installed(monkeypatch)
    build_engine("tensorrt", "bf16", graph, tmp_path, SHAPES)
    assert again.record.caches_read == [b"timed tactics"]
    # bf16 has fp32's range: only what loses digits stays.
    assert {name.partition("_")[0] for name in again.record.fp32} == {"sum"}


@pytest.mark.usefixtures("gpu")
def test_tactics_of_another_gpu_are_timed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = installed(monkeypatch)
    file = timing_cache_file(require_machine())
    file.parent.mkdir(parents=True)
    file.write_bytes(b"of another GPU")
    build_engine("tensorrt", "fp32", big_graph(tmp_path / "graph.onnx"), tmp_path, SHAPES)
    assert recorder.record.caches_read == [b"of another GPU", b""]
    assert file.read_bytes() == b"timed tactics"


@pytest.mark.usefixtures("gpu")
def test_a_plan_is_of_the_gpu_that_cuda_counts_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi counts by the bus, CUDA from the fastest one on."""
    installed(monkeypatch)
    a10, t4 = names(A10), names(Gpu("NVIDIA T4", "560.35.03", "7.5"))
    nvidia_smi(tmp_path / "bin", f'case "$*" in\n*--id=GPU-1) {a10};;\n*) {t4}; {a10};;\nesac')
    with pytest.raises(ConversionRefused, match=r"several kinds \(NVIDIA T4.*UUID"):
        require_machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    first = SimpleNamespace(name="NVIDIA A10", major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: first)
    assert require_machine().gpu == A10
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    assert require_machine().gpu == A10


def test_a_layer_belongs_to_the_node_whose_name_it_has() -> None:
    kept = layers_of({"norm", "sum_1"}, {"norm", "sum", "sum_1", "norm_2"})
    assert [kept(name) for name in ("norm", "norm_7", "sum_1", "sum_1_3")] == [True] * 4
    # A node of its own, one that is not kept, and none of the graph.
    assert [kept(name) for name in ("norm_2", "sum", "sum_9", "other")] == [False] * 4


@pytest.mark.usefixtures("gpu")
def test_a_graph_or_a_plan_that_fails_says_what_would_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, plan=None)
    graph = big_graph(tmp_path / "graph.onnx")
    with pytest.raises(ConversionRefused, match="built no fp32 plan.*--engine onnxruntime"):
        build_engine("tensorrt", "fp32", graph, tmp_path, SHAPES)
    (tmp_path / "broken.onnx").write_bytes(b"\x08")
    with pytest.raises(ConversionRefused, match="cannot read the graph.*In node 3"):
        build_engine("tensorrt", "fp32", tmp_path / "broken.onnx", tmp_path, SHAPES)
    assert not (tmp_path / "model.plan").exists()


def test_without_a_gpu_tensorrt_or_the_pinned_version_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = read_lock().image.tensorrt
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(ConversionRefused, match=rf"needs TensorRT {pin}.*pip install tensorrt"):
        require_machine()
    installed(monkeypatch, version="10.15.1")
    with pytest.raises(ConversionRefused, match=r"10\.15\.1 is installed.*loads only plans of"):
        require_machine()
    installed(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConversionRefused, match="needs an NVIDIA GPU"):
        require_machine()
    # Also before the model is looked for.
    request = ConvertRequest(str(tmp_path / "no-such-model"), engine="tensorrt")
    with pytest.raises(ConversionRefused, match="needs an NVIDIA GPU"):
        convert(request, tmp_path / "bundle", lambda step, detail: None)


def test_a_call_takes_the_first_profile_that_holds_it() -> None:
    class Engine:
        num_optimization_profiles = 2

        def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
            sizes = list(profiles([name], SHAPES))[index][name]
            return [sizes.least, sizes.best, sizes.greatest]

    assert fitting_profile(Engine(), {"input_ids": (32, 16)}) == 0
    assert fitting_profile(Engine(), {"input_ids": (1, 17)}) == 1
    with pytest.raises(ConversionRefused, match="no optimization profile"):
        fitting_profile(Engine(), {"input_ids": (1, 65)})


@pytest.mark.usefixtures("gpu")
def test_a_bundle_of_a_plan_lists_every_profile_for_triton(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.bundle.writer import BundleContent, write_bundle
    from transformer_serving.desk.source.tokenizer import TokenizerFile

    installed(monkeypatch)
    other = open_bundle(tiny_bundle)
    folder = tmp_path / "build"
    folder.mkdir()
    files = build_engine("tensorrt", "fp32", tiny_bundle / "model/model.onnx", folder, SHAPES)
    tokens = other.endpoint.tokens
    bundle = write_bundle(
        BundleContent(
            endpoint=other.endpoint,
            tokenizer=TokenizerFile(
                (tiny_bundle / "tokenizer.json").read_bytes(),
                tokens.pad_id,
                tokens.pad_token,
                tokens.pad_type_id,
                tokens.padding_side,
            ),
            engine=files,
            golden=other.manifest.golden,
            parity={},
            source={},
        ),
        tmp_path / "bundle",
    )
    config = from_text((bundle.model_folder / "config.pbtxt").read_text())
    assert config.platform == "tensorrt_plan"
    assert list(config.instance_group[0].profile) == ["0", "1"]
    assert config.instance_group[0].kind == 1  # KIND_GPU
    assert {sample.name for sample in config.model_warmup} == {
        "tokens8",
        "tokens16",
        "tokens32",
    } | {f"tokens{tokens.max_length}"}
    assert open_bundle(tmp_path / "bundle").manifest.tensorrt == files.facts


def test_outputs_have_their_places_on_the_gpu_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made on the CPU and copied there, they would be a part of the engine's time."""
    devices: list[str | None] = []
    empty = torch.empty

    def on_cpu(*shape: Any, device: str | None = None, **kind: Any) -> torch.Tensor:
        devices.append(device)
        return empty(*shape, **kind).fill_(2)

    done = SimpleNamespace(cuda_stream=0, synchronize=int)
    monkeypatch.setattr(torch, "empty", on_cpu)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    for name, value in (("Stream", lambda: done), ("current_stream", lambda: done),
                        ("is_available", lambda: True)):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    context = SimpleNamespace(
        get_tensor_shape=lambda name: (1, 3),
        **dict.fromkeys(
            ("set_optimization_profile_async", "set_input_shape", "set_tensor_address",
             "execute_async_v3"), lambda *_: True,
        ),
    )  # fmt: skip
    engine = SimpleNamespace(
        create_execution_context=lambda: context, num_io_tensors=2, num_optimization_profiles=1,
        get_tensor_name=("input_ids", "logits").__getitem__,
        get_tensor_mode={"input_ids": "in", "logits": "out"}.__getitem__,
        get_tensor_profile_shape=lambda name, index: ((1, 1), (1, 4), (1, 16)),
        get_tensor_dtype=lambda name: "float32",
    )  # fmt: skip
    recorder: Any = installed(monkeypatch)
    recorder.TensorIOMode = SimpleNamespace(OUTPUT="out")
    recorder.Runtime = lambda logger: SimpleNamespace(deserialize_cuda_engine=lambda plan: engine)
    plan = tmp_path / "model.plan"
    plan.write_bytes(PLAN)
    [answer] = open_plan(plan)([Tensor("input_ids", "INT32", np.ones((1, 4), np.int32))])
    assert (devices, answer.tolist()) == (["cuda"], [[2.0, 2.0, 2.0]])
