"""fp16 graphs: which nodes must stay in fp32, and the graph with all others in fp16.

Tested by tests/builders/test_precisions.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.export.onnx import INLINE_LIMIT

if TYPE_CHECKING:
    from transformer_serving.desk.builders.calibration import Feeds

# fp16 ends at 65504. A text of tomorrow may reach further than those that were tried.
LIMIT = 65504 / 4
# What masks add to a score to hide a token; as fp16 it is minus infinity, which is what is meant.
_MEANT_INFINITE = 1e30
# Sums, squares and small constants: fp16 loses their digits long before it overflows. ONNX Runtime
# 1.19.2 answers MiniLM's pooling and normalizing in fp16 with infinities.
_SUMS = (
    *("ReduceSum", "ReduceMean", "ReduceL2", "ReduceSumSquare"),
    *("Clip", "Pow", "Sqrt", "Reciprocal", "Exp", "Log"),
)
# TensorRT sums inside these in fp32 by itself, and fuses attention only where they are free.
_NORMS = ("LayerNormalization", "Softmax")
# Intermediate tensors are asked for in parts: all at once would hold the whole run in memory.
_OUTPUTS_A_RUN = 64


def overflowing_nodes(graph: Path, feeds: Feeds) -> tuple[str, ...]:
    """Names of the nodes of an fp32 graph that give or read a value beyond LIMIT for `feeds`.

    A reader in fp16 would have it converted, and lost, before it reads. They are found by running
    the graph in fp32 with every inner tensor as an output.
    """
    import numpy as np
    import onnx

    floats = _float_tensors(graph)
    model = onnx.load(str(graph), load_external_data=False)
    inner = [name for node in model.graph.node for name in node.output if name in floats]
    beyond: set[str] = set()
    for start in range(0, len(inner), _OUTPUTS_A_RUN):
        part = inner[start : start + _OUTPUTS_A_RUN]
        for values in _runs(graph, part, feeds):
            for name, value in zip(part, values, strict=True):
                meant = value[np.abs(value) < _MEANT_INFINITE]
                if meant.size and float(np.abs(meant).max()) > LIMIT:
                    beyond.add(name)
    return tuple(
        sorted(
            node.name
            for node in model.graph.node
            if not beyond.isdisjoint((*node.input, *node.output))
        )
    )


def _typed(graph: Path, *, weights: bool) -> Any:
    """The model with the types of its inner tensors, and with its weights if asked."""
    import onnx

    path = graph.with_name(f".typed.{graph.name}")
    try:
        onnx.shape_inference.infer_shapes_path(str(graph), str(path))
        return onnx.load(str(path), load_external_data=weights)
    finally:
        path.unlink(missing_ok=True)


def _float_tensors(graph: Path) -> set[str]:
    import onnx

    typed = _typed(graph, weights=False).graph
    return {
        tensor.name
        for tensor in (*typed.value_info, *typed.output)
        if tensor.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }


def _runs(graph: Path, outputs: list[str], feeds: Feeds) -> Iterator[list[Any]]:
    import onnx
    import onnxruntime

    watched = onnx.load(str(graph), load_external_data=False)
    del watched.graph.output[:]
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs
    )
    options = onnxruntime.SessionOptions()
    # Fused nodes would not give the tensors between them.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    # In the same folder, where the weights lie that it names.
    path = graph.with_name(f".watched.{graph.name}")
    try:
        onnx.save(watched, str(path))
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    finally:
        path.unlink(missing_ok=True)
    taken = {node.name for node in session.get_inputs()}
    for feed in feeds:
        yield session.run(outputs, {name: row for name, row in feed.items() if name in taken})


def summing_nodes(graph: Path) -> tuple[str, ...]:
    """Names of the nodes that must be fp32 for their digits, whatever values were seen."""
    import onnx

    model = onnx.load(str(graph), load_external_data=False)
    constants = {tensor.name for tensor in model.graph.initializer}
    return tuple(
        node.name
        for node in model.graph.node
        # A computed divisor may be too small for fp16; a constant one was checked by the converter.
        if node.op_type in _SUMS or (node.op_type == "Div" and node.input[1] not in constants)
    )


def write_half(graph: Path, target: Path, keep: Collection[str]) -> tuple[Path, ...]:
    """Write the fp32 graph as fp16 to `target`; inputs and outputs keep their types. Given back are
    the files beside it that hold its weights, where they are many.

    In fp32 stay the nodes named in `keep`, the norms, and those of `summing_nodes`.
    """
    from onnxruntime.transformers import float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = _typed(graph, weights=True)
    known = {name for node in model.graph.node for name in (*node.input, *node.output)}
    half = float16.convert_float_to_float16(
        model,
        keep_io_types=True,
        # It would do so with all in one message.
        disable_shape_infer=True,
        op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, *_NORMS],
        node_block_list=[*keep, *summing_nodes(graph)],
    )
    _drop_doubles(half.graph)
    _drop_detours(half.graph, known)
    # Its casts stand at the end; ONNX wants each node behind those that it reads.
    OnnxModel(half).topological_sort(is_deterministic=True)
    del half.graph.value_info[:]
    return _saved(half, target)


def _saved(model: Any, target: Path) -> tuple[Path, ...]:
    import onnx

    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if size <= INLINE_LIMIT:
        target.write_bytes(model.SerializeToString(deterministic=True))
        return ()
    beside = target.with_name(f"{target.name}.data")
    # What is there would be written behind.
    beside.unlink(missing_ok=True)
    onnx.save_model(model, str(target), save_as_external_data=True, location=beside.name)
    return (beside,)


def _drop_doubles(graph: Any) -> None:
    """The converter casts a tensor once for each reader, under one name, which is refused."""
    made: set[str] = set()
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if made.isdisjoint(node.output):
            made.update(node.output)
            graph.node.append(node)


def _drop_detours(graph: Any, known: Collection[str]) -> None:
    """Between two fp32 nodes the converter goes by way of fp16, where the value would be lost.

    `known` are the names of the graph before it; what it makes itself in front of fp16 is fp32.
    """
    from onnx import TensorProto

    makers = {name: node for node in graph.node for name in node.output}
    outputs = {tensor.name for tensor in graph.output}
    renamed: dict[str, str] = {}
    dropped = []
    for node in graph.node:
        source = makers.get(node.input[0]) if _casts(node, TensorProto.FLOAT) else None
        if source is None or not _casts(source, TensorProto.FLOAT16) or source.input[0] in known:
            continue
        exact, name = source.input[0], node.output[0]
        # The graph's own output keeps its name: then what makes it takes that name.
        old, new = (exact, name) if name in outputs else (name, exact)
        renamed[old] = new
        dropped.append(node)
    for node in dropped:
        graph.node.remove(node)
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                while name in renamed:
                    name = renamed[name]
                names[index] = name
    _drop_unread(graph, outputs)


def _casts(node: Any, dtype: int) -> bool:
    return bool(node.op_type == "Cast" and node.attribute[0].i == dtype)


def _drop_unread(graph: Any, outputs: set[str]) -> None:
    """Casts whose readers went with the detours."""
    read = {name for node in graph.node for name in node.input} | outputs
    for node in [node for node in graph.node if node.op_type == "Cast"]:
        if read.isdisjoint(node.output):
            graph.node.remove(node)
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{index}"
