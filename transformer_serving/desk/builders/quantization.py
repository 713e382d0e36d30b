"""int8: dynamic for ONNX Runtime, post-training with calibration rows for OpenVINO, and of language
models the weights alone.

Tested by tests/builders/test_precisions.py.
"""

from __future__ import annotations

import importlib.util
import io
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.convert_packages import INSTALL
from transformer_serving.desk.failure import ConversionRefused

if TYPE_CHECKING:
    from transformer_serving.desk.builders.calibration import Feeds

# Operations between a projection and its use; all but the bias's Add have one input with data.
_MOVING = (
    *("Add", "Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"),
    *("Transpose", "Unsqueeze"),
)


def write_dynamic_int8(graph: Path, target: Path) -> None:
    """Matrix products by constant weights in int8, activations quantized as they come.

    A scale for each column, and two kinds stay fp32. Where a matrix has more rows than columns its
    input is what an activation function made, with outliers that leave the other values few steps.
    And an error in attention's values reaches the answer whole, while softmax dampens one in its
    queries and keys. On MiniLM that lifts the lowest cosine from 0.96 to 0.985 (docs/convert.md).
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(graph), load_external_data=False)
    with _quiet():
        quantize_dynamic(
            str(graph),
            str(target),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=sorted({*narrowing(model.graph), *value_projections(model.graph)}),
            extra_options={"MatMulConstBOnly": True},
        )


def narrowing(graph: Any) -> Iterator[str]:
    """Names of the constant products of an ONNX graph with more rows than columns."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        shape = shapes.get(node.input[1], ()) if node.op_type == "MatMul" else ()
        if len(shape) == 2 and shape[0] > shape[1]:
            yield node.name


def value_projections(graph: Any) -> Iterator[str]:
    """Names of the constant products behind what softmax's weights are multiplied with."""
    constants = {tensor.name for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type == "MatMul" and _is_softmax(node.input[0], makers):
            maker = _maker(node.input[1], makers, constants)
            if maker is not None and maker.op_type == "MatMul" and maker.input[1] in constants:
                yield maker.name


def _is_softmax(name: str, makers: Mapping[str, Any]) -> bool:
    node = _maker(name, makers, ())
    return node is not None and node.op_type == "Softmax"


def _maker(name: str, makers: Mapping[str, Any], constants: Collection[str]) -> Any:
    """The node that computes `name`, behind biases and what only moves numbers about."""
    node = makers.get(name)
    while node is not None and node.op_type in _MOVING:
        inner = [one for one in node.input if one not in constants]
        node = makers.get(inner[0]) if inner else None
    return node


def quantized_openvino(model: Any, feeds: Feeds) -> Any:
    """The OpenVINO model with int8 layers, their ranges taken from `feeds`.

    Raises ConversionRefused where NNCF is not installed.
    """
    with _quiet():
        nncf = _nncf()
        return nncf.quantize(
            model,
            nncf.Dataset([dict(feed) for feed in feeds]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(feeds),
        )


def compressed_openvino(model: Any) -> Any:
    """The OpenVINO model with int8 weights, symmetric, a scale for each row: no data is needed.

    Raises ConversionRefused where NNCF is not installed.
    """
    with _quiet():
        nncf = _nncf()
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


def _nncf() -> Any:
    if importlib.util.find_spec("nncf") is None:
        raise ConversionRefused(f"int8 for OpenVINO needs nncf; install it {INSTALL}")
    import nncf

    nncf.set_log_level(logging.ERROR)
    return nncf


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
