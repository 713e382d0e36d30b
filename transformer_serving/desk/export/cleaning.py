"""An exported graph without what its exporter leaves behind.

Tested by tests/export/test_onnx.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

# What the free axes of a tensor count; those of tensors that are not named here.
_AXES = ("batch", "tokens")
_AXES_OF = {
    "mask_positions": ("batch", "masks"),
    "candidates": ("batch", "candidates"),
    "scores": ("batch", "masks"),
    "token_ids": ("batch", "masks"),
    "candidate_scores": ("batch", "masks", "candidates"),
}


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
