"""Small text models for the tests: embedding table, masked mean, one linear layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.backends.openvino_quiet import openvino

VOCABULARY = 50
LABELS = 3
WIDTH = 4


def onnx_model(*, scale: float = 1.0, per_token: bool = False, pooling: str = "mean") -> bytes:
    """input_ids and attention_mask (int32) -> output; `scale` tells versions apart.

    `pooling` is 'mean', or 'last' for a graph that wrongly reads the last position, padded or not.
    """
    random = np.random.default_rng(7)
    table = random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    weight = (random.normal(size=(WIDTH, LABELS)) * scale).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "two"], ["mask3"]),
        helper.make_node("Mul", ["tokens", "mask3"], ["masked"]),
        *_pooled(pooling),
        helper.make_node("MatMul", ["pooled", "weight"], ["output"]),
    ]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", LABELS])]
    if per_token:
        nodes.append(helper.make_node("MatMul", ["masked", "weight"], ["token_output"]))
        outputs.append(
            helper.make_tensor_value_info(
                "token_output", TensorProto.FLOAT, ["batch", "tokens", LABELS]
            )
        )
    graph = helper.make_graph(
        nodes,
        "text",
        [
            helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "tokens"])
            for name in ("input_ids", "attention_mask")
        ],
        outputs,
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.array([1], np.int64), "one"),
            numpy_helper.from_array(np.array([2], np.int64), "two"),
            numpy_helper.from_array(np.array(-1, np.int64), "last"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _pooled(pooling: str) -> list[onnx.NodeProto]:
    if pooling == "last":
        return [helper.make_node("Gather", ["tokens", "last"], ["pooled"], axis=1)]
    return [
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask3", "one"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["pooled"]),
    ]


def write_onnx(folder: Path, *, file_name: str = "model.onnx", **options: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name
    path.write_bytes(onnx_model(**options))  # type: ignore[arg-type]
    return path


def write_openvino(folder: Path, **options: object) -> Path:
    """model.xml and model.bin, weights in float32."""
    source = write_onnx(folder, file_name="source.onnx", **options)
    openvino.save_model(
        openvino.convert_model(source), folder / "model.xml", compress_to_fp16=False
    )
    source.unlink()
    return folder / "model.xml"


def expected(ids: np.ndarray, mask: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
    """What the graph answers, in numpy."""
    random = np.random.default_rng(7)
    table = random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    weight = (random.normal(size=(WIDTH, LABELS)) * scale).astype(np.float32)
    masked = table[ids] * mask[..., None]
    return (masked.sum(1) / mask.sum(1)[:, None]) @ weight
