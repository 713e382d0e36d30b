"""An exported graph becomes the files an engine loads: cleaned ONNX, or OpenVINO's model.xml/.bin.

The same graph always gives the same bytes: the bundle's version is computed from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.refusal import ConversionRefused

# What the free axes of a tensor count; those of tensors that are not named here.
_AXES = ("batch", "tokens")
_AXES_OF = {
    "mask_positions": ("batch", "masks"),
    "candidates": ("batch", "candidates"),
    "scores": ("batch", "masks"),
    "token_ids": ("batch", "masks"),
    "candidate_scores": ("batch", "masks", "candidates"),
}
# What each engine can serve; the first is the safest.
PRECISIONS = {"openvino": ("fp32", "bf16"), "onnxruntime": ("fp32",)}


@dataclass(frozen=True)
class EngineFiles:
    """What an engine loads: `files` all lie in one folder, `files[0]` is the one to open."""

    engine: str
    precision: str
    files: tuple[Path, ...]


def choose_precision(engine: str, asked: str | None) -> str:
    """`asked` if the engine has it, else the fastest that this CPU computes in hardware.

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
    return "bf16" if "bf16" in allowed and cpu_has_bf16() else "fp32"


def cpu_has_bf16() -> bool:
    """Whether OpenVINO reports bf16 arithmetic (AVX-512 BF16 or AMX) for this machine's CPU."""
    from engine.backends.openvino_quiet import openvino

    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "BF16" in capabilities


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


def build_engine(engine: str, precision: str, graph: Path, folder: Path) -> EngineFiles:
    """Turn the cleaned ONNX file `graph` into the files of `engine` inside `folder`."""
    return _BUILDERS[engine](precision, graph, folder)


def _build_openvino(precision: str, graph: Path, folder: Path) -> EngineFiles:
    """The IR keeps float32 weights also for bf16, which is a hint when the model is compiled.

    Going back to the safer precision is then a change of one parameter, not of the weights, and
    values are rounded once (float32 to bf16) and not twice (by way of float16).
    """
    from engine.backends.openvino_quiet import openvino

    model = openvino.Core().read_model(str(graph))
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


def _build_onnxruntime(precision: str, graph: Path, folder: Path) -> EngineFiles:
    target = folder / "model.onnx"
    # The graph names the file of its outer weights, so that file keeps its name.
    weights = [path for path in graph.parent.glob(f"{graph.name}.*") if path.is_file()]
    moved = [path.replace(folder / path.name) for path in weights]
    graph.replace(target)
    return EngineFiles("onnxruntime", precision, (target, *moved))


_BUILDERS: dict[str, Callable[[str, Path, Path], EngineFiles]] = {
    "openvino": _build_openvino,
    "onnxruntime": _build_onnxruntime,
}
