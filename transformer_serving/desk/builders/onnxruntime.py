"""ONNX Runtime: model.onnx, and that opened on this machine's CPU.

Tested by tests/builders/test_precisions.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_serving.desk.builders.files import EngineFiles, Shapes, link_or_copy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from preprocess.tensors import Tensor
    from transformer_serving.desk.builders.files import Call


def build_onnxruntime(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    target = folder / "model.onnx"
    outer = tuple(_copy_of_graph(graph, target)) if precision == "fp32" else ()
    if precision == "int8":
        from transformer_serving.desk.builders.quantization import write_dynamic_int8

        write_dynamic_int8(graph, target)
    elif precision == "fp16":
        from transformer_serving.desk.builders.half_precision import overflowing_nodes, write_half

        outer = write_half(graph, target, overflowing_nodes(graph, shapes.feeds))
    return EngineFiles("onnxruntime", precision, (target, *outer))


def _copy_of_graph(graph: Path, target: Path) -> Iterator[Path]:
    """A second name of the same bytes, and copies of the weights beside them, whose names it holds:
    onnx reads no weights of a file with several names, and other precisions are made of these."""
    target.unlink(missing_ok=True)
    link_or_copy(graph, target)
    for path in sorted(graph.parent.glob(f"{graph.name}.*")):
        other = target.parent / path.name
        if other != path:
            shutil.copyfile(path, other)
        yield other


def open_onnxruntime(files: EngineFiles) -> Call:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(files.files[0]), providers=["CPUExecutionProvider"])
    names = list(files.outputs) or None

    def call(tensors: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        outputs: list[NDArray[np.generic]] = session.run(
            names, {tensor.name: tensor.array for tensor in tensors}
        )
        return outputs

    return call
