"""An exported graph becomes the files an engine loads: ONNX, OpenVINO's model.xml/.bin, a plan.

The same graph always gives the same bytes, TensorRT's plan excepted: the bundle's version is
computed from them. The graph is not fused here: no tool made either CPU engine faster, since both
fuse as they load, and fused int8 was slower (docs/decisions/convert.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.refusal import ConversionRefused

if TYPE_CHECKING:
    from transformer_serving.calibration import Feeds

# What the free axes of a tensor count; those of tensors that are not named here.
_AXES = ("batch", "tokens")
_AXES_OF = {
    "mask_positions": ("batch", "masks"),
    "candidates": ("batch", "candidates"),
    "scores": ("batch", "masks"),
    "token_ids": ("batch", "masks"),
    "candidate_scores": ("batch", "masks", "candidates"),
}
# What each engine can serve, the safest first.
PRECISIONS = {
    "openvino": ("fp32", "bf16", "int8"),
    "onnxruntime": ("fp32", "fp16", "int8"),
    "tensorrt": ("fp32", "bf16", "fp16"),
}


@dataclass(frozen=True)
class EngineFiles:
    """What an engine loads: `files` all lie in one folder, `files[0]` is the one to open.

    `facts` are a TensorRT plan's, for the manifest; None for other engines.
    """

    engine: str
    precision: str
    files: tuple[Path, ...]
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Shapes:
    """The calls an engine is built for: token lengths, the texts of a call, and sample rows.

    `lengths` rise; `batch` is the fewest, the usual and the most texts of one call.
    """

    lengths: tuple[int, ...]
    batch: tuple[int, int, int]
    feeds: Feeds = field(repr=False, default=())


def choose_precision(engine: str, asked: str | None) -> str:
    """`asked` if the engine has it, else the fastest that its hardware computes well.

    Never int8, which is asked for by name: its error depends on texts that nobody has seen here.
    Raises ConversionRefused for a precision that the engine does not have.
    """
    allowed = PRECISIONS.get(engine)
    if allowed is None:
        raise ConversionRefused(f"engine '{engine}' is unknown; use {' or '.join(PRECISIONS)}")
    if asked is not None:
        if asked not in allowed:
            raise ConversionRefused(
                f"engine '{engine}' has no precision '{asked}'; use {' or '.join(allowed)}"
            )
        return asked
    if engine == "tensorrt":
        return "fp16"
    return "bf16" if engine == "openvino" and cpu_has_bf16() else "fp32"


def cpu_has_bf16() -> bool:
    """Whether OpenVINO reports bf16 arithmetic (AVX-512 BF16 or AMX) for this machine's CPU."""
    from transformer_serving.engine.backends.openvino_quiet import openvino
    from transformer_serving.engine.backends.precision import usable

    return "BF16" in usable(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def clean_onnx(path: Path) -> None:
    """Rewrite an ONNX file in place without what the exporter leaves behind.

    Out go the exporter's metadata (it holds source lines and folders of the machine) and the
    inner value_info (shapes in it can be wrong, and quantizers stop at them); the dynamic axes
    get readable names. Weights in a file beside the graph are not touched.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""
    for function in model.functions:
        _strip_function(function)
    del graph.value_info[:]
    _name_axes(graph)
    model.producer_version = ""
    path.write_bytes(model.SerializeToString(deterministic=True))


def _strip_function(function: Any) -> None:
    for holder in (function, *function.node):
        del holder.metadata_props[:]
        holder.doc_string = ""
    del function.value_info[:]


def _name_axes(graph: Any) -> None:
    for tensor in (*graph.input, *graph.output):
        dims = tensor.type.tensor_type.shape.dim
        for name, dim in zip(_AXES_OF.get(tensor.name, _AXES), dims, strict=False):
            if not dim.HasField("dim_value"):
                dim.dim_param = name


# For engines that take any shape and for precisions that need no sample rows.
ANY_SHAPES = Shapes(lengths=(), batch=(1, 1, 1))


def build_engine(
    engine: str, precision: str, graph: Path, folder: Path, shapes: Shapes = ANY_SHAPES
) -> EngineFiles:
    """Turn the cleaned ONNX file `graph` into the files of `engine` inside `folder`.

    The graph stays where it is, so that another precision can be built from it.
    """
    return _BUILDERS[engine](precision, graph, folder, shapes)


def _build_openvino(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    """The IR keeps float32 weights also for bf16, which is a hint when the model is compiled.

    Going back to the safer precision is then a change of one parameter, not of the weights, and
    values are rounded once (float32 to bf16) and not twice (by way of float16).
    """
    from transformer_serving.engine.backends.openvino_quiet import openvino

    model = openvino.Core().read_model(str(graph))
    if precision == "int8":
        from transformer_serving.quantization import quantized_openvino

        model = quantized_openvino(model, shapes.feeds)
    _rename_operations(model)
    target = folder / "model.xml"
    openvino.save_model(model, str(target), compress_to_fp16=False)
    return EngineFiles("openvino", precision, (target, target.with_suffix(".bin")))


def _rename_operations(model: Any) -> None:
    """Number the operations: OpenVINO's own names count up over the life of the process."""
    for index, operation in enumerate(model.get_ordered_ops()):
        kind = operation.get_type_name()
        if kind not in ("Parameter", "Result"):
            operation.set_friendly_name(f"{kind}_{index}")


def _build_onnxruntime(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    target = folder / "model.onnx"
    outer = tuple(_copy_of_graph(graph, target)) if precision == "fp32" else ()
    if precision == "int8":
        from transformer_serving.quantization import write_dynamic_int8

        write_dynamic_int8(graph, target)
    elif precision == "fp16":
        from transformer_serving.half_precision import overflowing_nodes, write_half

        write_half(graph, target, overflowing_nodes(graph, shapes.feeds))
    return EngineFiles("onnxruntime", precision, (target, *outer))


def _copy_of_graph(graph: Path, target: Path) -> Iterator[Path]:
    """A second name of the same bytes, and of the weights beside them, whose names it holds."""
    target.unlink(missing_ok=True)
    os.link(graph, target)
    for path in sorted(graph.parent.glob(f"{graph.name}.*")):
        other = target.parent / path.name
        if other != path:
            other.unlink(missing_ok=True)
            os.link(path, other)
        yield other


def _build_tensorrt(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    from transformer_serving.tensorrt_build import build_plan

    return build_plan(precision, graph, folder, shapes)


_BUILDERS: dict[str, Callable[[str, Path, Path, Shapes], EngineFiles]] = {
    "openvino": _build_openvino,
    "onnxruntime": _build_onnxruntime,
    "tensorrt": _build_tensorrt,
}
