"""ONNX files: written byte by byte, and by the onnx package with weights that lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import onnx


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def onnx_bytes(
    *, ir_version: int = 10, opset: int = 18, graph: int = 100_000, domain: str = ""
) -> bytes:
    """ModelProto: IR version, producer, a graph that says `graph` zeros of itself, opsets."""
    standard = (field(1, domain.encode()) if domain else b"") + field(2, opset)
    return (
        field(1, ir_version)
        + field(2, b"a writer")
        + field(7, field(10, bytes(graph)))
        + field(8, standard)
        + field(8, field(1, b"com.microsoft") + field(2, 1))
    )


def outer_tensor(place: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    return tensor


def initializer(tensor: onnx.TensorProto, graph: onnx.GraphProto) -> None:
    graph.initializer.append(tensor)


def sparse_initializer(tensor: onnx.TensorProto, graph: onnx.GraphProto) -> None:
    graph.sparse_initializer.add().values.CopyFrom(tensor)


def constant(tensor: onnx.TensorProto, graph: onnx.GraphProto) -> None:
    graph.node.append(onnx.helper.make_node("Constant", [], ["w"], value=tensor))


def constant_in_a_branch(tensor: onnx.TensorProto, graph: onnx.GraphProto) -> None:
    branch = onnx.GraphProto(name="branch")
    constant(tensor, branch)
    graph.node.append(onnx.helper.make_node("If", ["x"], ["y"], then_branch=branch))


def initializer_behind_much(tensor: onnx.TensorProto, graph: onnx.GraphProto) -> None:
    """Longer than what is kept of a message in memory."""
    tensor.doc_string = "d" * 10_000
    graph.initializer.append(tensor)


Put = Callable[[onnx.TensorProto, onnx.GraphProto], None]
PUTS = (initializer, sparse_initializer, constant, constant_in_a_branch, initializer_behind_much)


def outer_model(place: str, put: Put = initializer) -> bytes:
    model = onnx.ModelProto(ir_version=10)
    model.opset_import.add(version=18)
    put(outer_tensor(place), model.graph)
    return bytes(model.SerializeToString())
