"""Small text models for the tests: embedding table, masked mean, one linear layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from transformer_serving.engine.backends.openvino_quiet import openvino

VOCABULARY = 50
LABELS = 3
WIDTH = 4
BEST = 5


def onnx_model(
    *,
    scale: float = 1.0,
    per_token: bool = False,
    pooling: str = "mean",
    wrong_at: int | None = None,
    across: bool = False,
) -> bytes:
    """input_ids and attention_mask (int32) -> output; `scale` tells versions apart.

    `pooling` is 'mean', or 'last' for a graph that wrongly reads the last position, padded or not.
    At exactly `wrong_at` tokens the first column is wrong, as a kernel's fault would have it.
    The output of `across` has the tokens before the texts.
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
        *_last_layer(wrong_at),
    ]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", LABELS])]
    if per_token:
        nodes.append(helper.make_node("MatMul", ["masked", "weight"], ["token_output"]))
        outputs.append(
            helper.make_tensor_value_info(
                "token_output", TensorProto.FLOAT, ["batch", "tokens", LABELS]
            )
        )
    if across:
        nodes.append(helper.make_node("Transpose", ["masked"], ["across"], perm=[1, 0, 2]))
        outputs.append(
            helper.make_tensor_value_info("across", TensorProto.FLOAT, ["tokens", "batch", WIDTH])
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
            numpy_helper.from_array(np.array([wrong_at or 0], np.int64), "wrong_at"),
            numpy_helper.from_array(np.array([3, 0, 0], np.float32), "wrong_by"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def masks_model() -> bytes:
    """A fill-mask graph: token vectors plus the text's mean, at the masks, against the table."""
    random = np.random.default_rng(7)
    table = random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["tokens"]),
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask", "two"], ["mask3"]),
        node("Mul", ["tokens", "mask3"], ["masked"]),
        node("ReduceSum", ["masked", "one"], ["sum"], keepdims=1),
        node("ReduceSum", ["mask3", "one"], ["count"], keepdims=1),
        node("Div", ["sum", "count"], ["mean"]),
        node("Add", ["tokens", "mean"], ["hidden"]),
        node("Cast", ["mask_positions"], ["positions"], to=TensorProto.INT64),
        node("Unsqueeze", ["positions", "two"], ["positions3"]),
        node("Expand", ["positions3", "wide"], ["places"]),
        node("GatherElements", ["hidden", "places"], ["at_masks"], axis=1),
        node("MatMul", ["at_masks", "table_t"], ["logits"]),
        node("Softmax", ["logits"], ["all_scores"], axis=-1),
        node("TopK", ["all_scores", "best"], ["scores", "ids64"], axis=-1),
        node("Cast", ["ids64"], ["token_ids"], to=TensorProto.INT32),
        node("Cast", ["candidates"], ["candidates64"], to=TensorProto.INT64),
        node("Unsqueeze", ["candidates64", "one"], ["candidates3"]),
        node("Shape", ["mask_positions"], ["masks"], start=1, end=2),
        node("Concat", ["one", "masks", "one"], ["rows"], axis=0),
        node("Expand", ["candidates3", "rows"], ["asked"]),
        node("GatherElements", ["all_scores", "asked"], ["candidate_scores"], axis=2),
    ]
    inputs = {"input_ids": "t", "attention_mask": "t", "mask_positions": "m", "candidates": "c"}
    outputs: dict[str, tuple[int, str | int]] = {
        "scores": (TensorProto.FLOAT, BEST),
        "token_ids": (TensorProto.INT32, BEST),
        "candidate_scores": (TensorProto.FLOAT, "c"),
    }
    graph = helper.make_graph(
        nodes,
        "masks",
        [
            helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", axis])
            for name, axis in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, kind, ["batch", "m", axis])
            for name, (kind, axis) in outputs.items()
        ],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.ascontiguousarray(table.T), "table_t"),
            numpy_helper.from_array(np.array([1], np.int64), "one"),
            numpy_helper.from_array(np.array([2], np.int64), "two"),
            numpy_helper.from_array(np.array([1, 1, WIDTH], np.int64), "wide"),
            numpy_helper.from_array(np.array([BEST], np.int64), "best"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def expected_masks(
    ids: np.ndarray, mask_positions: np.ndarray, candidates: np.ndarray
) -> dict[str, np.ndarray]:
    """What the graph of `masks_model` answers, in numpy."""
    table = np.random.default_rng(7).normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    hidden = table[ids] + table[ids].mean(1, keepdims=True)
    logits = np.take_along_axis(hidden, mask_positions[..., None], 1) @ table.T
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    best = np.argsort(-scores, axis=-1)[..., :BEST]
    shape = (*mask_positions.shape, candidates.shape[1])
    asked = np.broadcast_to(candidates[:, None, :], shape)
    return {
        "scores": np.take_along_axis(scores, best, -1),
        "token_ids": best,
        "candidate_scores": np.take_along_axis(scores, asked, -1),
    }


def _last_layer(wrong_at: int | None) -> list[onnx.NodeProto]:
    if wrong_at is None:
        return [helper.make_node("MatMul", ["pooled", "weight"], ["output"])]
    return [
        helper.make_node("MatMul", ["pooled", "weight"], ["right"]),
        helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
        helper.make_node("Equal", ["length", "wrong_at"], ["is_wrong"]),
        helper.make_node("Cast", ["is_wrong"], ["share"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["share", "wrong_by"], ["error"]),
        helper.make_node("Add", ["right", "error"], ["output"]),
    ]


def _pooled(pooling: str) -> list[onnx.NodeProto]:
    if pooling == "last":
        return [helper.make_node("Gather", ["tokens", "last"], ["pooled"], axis=1)]
    return [
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask3", "one"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["pooled"]),
    ]


def write_onnx(
    folder: Path, *, file_name: str = "model.onnx", head: str = "sequence", **options: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name
    content = masks_model() if head == "masks" else onnx_model(**options)
    path.write_bytes(content)
    return path


def write_identity(folder: Path, kind: int) -> Path:
    """model.onnx that answers its matrix x, of a type of ONNX, as y."""
    x, y = (helper.make_tensor_value_info(name, kind, ["batch", "size"]) for name in "xy")
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "identity", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def write_openvino(folder: Path, **options: Any) -> Path:
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
    return np.asarray((masked.sum(1) / mask.sum(1)[:, None]) @ weight)


def write_torch(folder: Path, *, head: str = "sequence", **options: Any) -> Path:
    """program.json and program.safetensors of the same graphs."""
    from tests.engine.torch_models import export_small

    folder.mkdir(parents=True, exist_ok=True)
    return export_small(folder, head, **options)
