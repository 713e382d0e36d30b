"""The engines, one row each: an exported graph becomes the files that one of them loads.

The same graph always gives the same bytes, TensorRT's plan excepted: the bundle's version is
computed from them. The graph is not fused here: no tool made either CPU engine faster, since both
fuse as they load, and fused int8 was slower (docs/decisions/convert.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_serving.contract.manifest import TORCH
from transformer_serving.desk.builders.call_sizes import DOUBLING, NARROW
from transformer_serving.desk.builders.files import ANY_SHAPES, EngineFiles, Shapes
from transformer_serving.desk.builders.onnxruntime import build_onnxruntime, open_onnxruntime
from transformer_serving.desk.builders.openvino import (
    build_openvino,
    fastest_precision,
    open_openvino,
)
from transformer_serving.desk.builders.torch import (
    build_torch,
    fastest_precision as fastest_torch,
    open_torch,
    program_of,
)
from transformer_serving.desk.failure import ConversionRefused

if TYPE_CHECKING:
    from transformer_serving.desk.builders.files import Call
    from transformer_serving.desk.source.model import ModelSource


@dataclass(frozen=True)
class EngineRow:
    """How an engine's files are made, and how Triton and its callers are told of them.

    `precisions` are those that it can serve, the safest first; `fastest` names the one that its
    hardware computes well, never int8. `lengths` are those that its calls are padded to, at most
    `call_tokens` of them in one call. `backend` is Triton's, `aux_config` says it to ClearML.
    `program` is for an engine that takes no ONNX graph: it makes of a model, at a precision and in
    a folder, what `build` is given.
    """

    precisions: tuple[str, ...]
    fastest: Callable[[], str]
    lengths: tuple[int, ...]
    call_tokens: int | None
    backend: str
    aux_config: str
    build: Callable[[str, Path, Path, Shapes], EngineFiles]
    open: Callable[[EngineFiles], Call]
    program: Callable[[ModelSource, str, Path], Path] | None = None


def _build_tensorrt(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    from transformer_serving.desk.builders.tensorrt import build_plan

    return build_plan(precision, graph, folder, shapes)


def _open_tensorrt(files: EngineFiles) -> Call:
    from transformer_serving.desk.builders.tensorrt_run import open_plan

    return open_plan(files.files[0], files.outputs)


def _build_vllm(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    raise ConversionRefused(NOT_VLLM)


def _open_vllm(files: EngineFiles) -> Call:
    raise ConversionRefused(NOT_VLLM)


NOT_VLLM = "engine vllm serves --task text-generation alone; leave --engine out, or name another"

# A language model's, whatever its precision, by its engine.
GENERATION_BACKENDS = {"openvino": "openvino_generate", "vllm": "vllm"}

# Triton's own OpenVINO backend is native and would win over ours if the name were the same.
# A CPU engine gains little from more tokens in a call, and a text that comes meanwhile waits for
# the whole call; a GPU wants all it can get.
ENGINES = {
    "openvino": EngineRow(
        precisions=("fp32", "bf16", "int8"),
        fastest=fastest_precision,
        lengths=NARROW,
        call_tokens=1024,
        backend="openvino_text",
        aux_config='backend="openvino_text"',
        build=build_openvino,
        open=open_openvino,
    ),
    "onnxruntime": EngineRow(
        precisions=("fp32", "fp16", "int8"),
        fastest=lambda: "fp32",
        lengths=NARROW,
        call_tokens=1024,
        backend="onnxruntime",
        aux_config='platform="onnxruntime_onnx"',
        build=build_onnxruntime,
        open=open_onnxruntime,
    ),
    "tensorrt": EngineRow(
        precisions=("fp32", "bf16", "fp16"),
        fastest=lambda: "fp16",
        lengths=DOUBLING,
        call_tokens=None,
        backend="tensorrt",
        aux_config='platform="tensorrt_plan"',
        build=_build_tensorrt,
        open=_open_tensorrt,
    ),
    # Fewer lengths are more calls of one shape, which a GPU replays.
    TORCH: EngineRow(
        precisions=("fp32", "bf16", "fp16"),
        fastest=fastest_torch,
        lengths=DOUBLING,
        call_tokens=None,
        backend="torch_text",
        aux_config='backend="torch_text"',
        build=build_torch,
        open=open_torch,
        program=program_of,
    ),
    # Of language models alone, whose prompts have no buckets; convert cannot ask what is fastest.
    "vllm": EngineRow(
        precisions=("fp32", "bf16", "fp16"),
        fastest=lambda: "bf16",
        lengths=NARROW,
        call_tokens=None,
        backend="vllm",
        aux_config='backend="vllm"',
        build=_build_vllm,
        open=_open_vllm,
    ),
}


def choose_precision(engine: str, asked: str | None) -> str:
    """`asked` if the engine has it, else the fastest that its hardware computes well.

    Never int8, which is asked for by name: its error depends on texts that nobody has seen here.
    Raises ConversionRefused for a precision that the engine does not have.
    """
    row = ENGINES.get(engine)
    if row is None:
        raise ConversionRefused(f"engine '{engine}' is unknown; use {' or '.join(ENGINES)}")
    if asked is None:
        return row.fastest()
    if asked not in row.precisions:
        raise ConversionRefused(
            f"engine '{engine}' has no precision '{asked}'; use {' or '.join(row.precisions)}"
        )
    return asked


def ladder_of(engine: str) -> tuple[int, ...]:
    """The lengths that suit the engine that serves; one that is only compared changes none."""
    return ENGINES[engine].lengths


def build_engine(
    engine: str, precision: str, graph: Path, folder: Path, shapes: Shapes = ANY_SHAPES
) -> EngineFiles:
    """Turn the cleaned ONNX file `graph` into the files of `engine` inside `folder`.

    The graph stays where it is, so that another precision can be built from it.
    """
    return ENGINES[engine].build(precision, graph, folder, shapes)


def open_engine(files: EngineFiles) -> Call:
    """A function from the tensors of one call to the files' outputs in order."""
    return ENGINES[files.engine].open(files)
