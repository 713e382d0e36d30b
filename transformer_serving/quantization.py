"""int8: dynamic for ONNX Runtime, post-training with calibration rows for OpenVINO."""

from __future__ import annotations

import importlib.util
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.refusal import ConversionRefused

if TYPE_CHECKING:
    from transformer_serving.calibration import Feeds


def write_dynamic_int8(graph: Path, target: Path) -> None:
    """Matrix products by constant weights in int8, activations quantized as they come.

    A scale for each column, and fp32 where a matrix has more rows than columns: its input is what
    an activation function made, with outliers that leave the other values few steps. On MiniLM
    that lifts the lowest cosine from 0.974 to 0.985 (docs/decisions.md).
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            str(graph),
            str(target),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=_narrowing(graph),
            extra_options={"MatMulConstBOnly": True},
        )


def _narrowing(graph: Path) -> list[str]:
    import onnx

    model = onnx.load(str(graph), load_external_data=False)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    return [
        node.name
        for node in model.graph.node
        if node.op_type == "MatMul"
        and len(shape := shapes.get(node.input[1], ())) == 2
        and shape[0] > shape[1]
    ]


def quantized_openvino(model: Any, feeds: Feeds) -> Any:
    """The OpenVINO model with int8 layers, their ranges taken from `feeds`.

    Raises ConversionRefused where NNCF is not installed.
    """
    if importlib.util.find_spec("nncf") is None:
        raise ConversionRefused(
            "int8 for OpenVINO needs nncf; install it: pip install 'transformer-serving[convert]'"
        )
    with _quiet():
        import nncf

        nncf.set_log_level(logging.ERROR)
        return nncf.quantize(
            model,
            nncf.Dataset([dict(feed) for feed in feeds]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(feeds),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tools' advice and progress bars, which go to stdout, where JSON may stand."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        root.setLevel(level)
