"""What an ONNX file says beyond its versions: who wrote it, its tensors, the files it needs.

The weights are stepped over, and of every message only short fields are read.

Tested by tests/doctor/test_engine_file.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from transformer_serving.contract.gate.onnx_header import Span, message_fields
from transformer_serving.contract.gate.onnx_weights import outer_files, whole_model

# Field numbers of onnx.proto.
_PRODUCER, _PRODUCER_VERSION, _GRAPH = 2, 3, 7
_INPUT, _OUTPUT = 11, 12
_NAME, _TYPE, _TENSOR, _ELEMENT, _SHAPE, _DIM = 1, 2, 1, 1, 2, 1
_SIZE, _AXIS = 1, 2
_TYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "STRING",
    9: "BOOL", 10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
_MAX_TEXT = 120


@dataclass(frozen=True)
class OnnxGraph:
    """Tensors as 'input_ids INT32[batch,tokens]'; `files` hold weights beside the model."""

    producer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    files: tuple[str, ...]


def read_onnx_graph(path: Path) -> OnnxGraph:
    """Raises ContractError where the graph is no whole message."""
    files = tuple(_text(name.encode()) for name in outer_files(path))
    with whole_model(path) as (file, whole):
        return _model(file, whole, files)


def _model(file: BinaryIO, whole: Span, files: tuple[str, ...]) -> OnnxGraph:
    producer = {_PRODUCER: "", _PRODUCER_VERSION: ""}
    inputs, outputs = list[str](), list[str]()
    for number, value in message_fields(file, whole, kept=tuple(producer)):
        if number in producer and isinstance(value, bytes):
            producer[number] = _text(value)
        if number == _GRAPH and isinstance(value, Span):
            for part, content in _graph(file, value):
                (inputs if part == _INPUT else outputs).append(_tensor(content))
    return OnnxGraph(
        " ".join(filter(None, producer.values())), tuple(inputs), tuple(outputs), files
    )


def _graph(file: BinaryIO, span: Span) -> Iterator[tuple[int, bytes]]:
    """The inputs and the outputs."""
    kept = (_INPUT, _OUTPUT)
    for number, value in message_fields(file, span, kept):
        if number in kept and isinstance(value, bytes):
            yield number, value


def _tensor(message: bytes) -> str:
    name, shape = "", "?"
    for number, value in _short(message):
        if number == _NAME and isinstance(value, bytes):
            name = _text(value)
        elif number == _TYPE and isinstance(value, bytes):
            shape = _type(value)
    return f"{name} {shape}"


def _type(message: bytes) -> str:
    element, axes = "?", list[str]()
    for value in _messages(message, _TENSOR):
        for number, part in _short(value):
            if number == _ELEMENT and isinstance(part, int):
                element = _TYPES.get(part, f"type {part}")
            elif number == _SHAPE and isinstance(part, bytes):
                axes = [_axis(axis) for axis in _messages(part, _DIM)]
    return f"{element}[{','.join(axes)}]"


def _axis(message: bytes) -> str:
    for number, value in _short(message):
        if number == _SIZE and isinstance(value, int):
            return str(value)
        if number == _AXIS and isinstance(value, bytes):
            return _text(value)
    return "?"


def _messages(message: bytes, wanted: int) -> Iterator[bytes]:
    for number, value in _short(message):
        if number == wanted and isinstance(value, bytes):
            yield value


def _short(message: bytes) -> Iterator[tuple[int, int | bytes | Span]]:
    every = range(1, 64)
    return message_fields(BytesIO(message), Span(0, len(message)), kept=every)


def _text(value: bytes) -> str:
    """Of a name of any length as much as a line can hold, without what moves a cursor."""
    text = value.decode("utf-8", "replace")[:_MAX_TEXT]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
