"""The files that an ONNX model says its weights lie in, wherever in the model a tensor stands.

ONNX Runtime 1.19 joins such a name to the model's folder as it is, so "../x" and "/x" are read too.
The weights are stepped over, so the cost is that of the nodes and not that of the bytes.

Tested by tests/contract/test_gate.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.onnx_header import NotProtobuf, Span, message_fields

_PLACE = "StringStringEntryProto"
# The fields that lead to a tensor, and from it to its place: of a message, number and message.
LEADS: Mapping[str, Mapping[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto",
        22: "SparseTensorProto", 23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {13: _PLACE},
}  # fmt: skip
_KEY, _VALUE = 1, 2
# A vocabulary of strings has one field a string; of more than these no model is known.
_MOST_FIELDS = 5_000_000
_SHOWN = 120


def place_faults(path: Path, name: str, listed: Collection[str]) -> Iterator[str]:
    """Why the file must not be loaded: `listed` are the names that its weights may have.

    Raises ContractError for what is no whole ONNX model.
    """
    for place in outer_files(path, name):
        if "/" in place or place not in listed:
            yield (
                f"file '{name}' has weights in '{one_line(place, _SHOWN)}', which is no file of "
                "the bundle's model; convert again"
            )


def outer_files(path: Path, name: str | None = None) -> tuple[str, ...]:
    """What the file names as places of weights, each once; as it stands there, so it may be any
    text. Of a tensor that holds its weights itself a place counts too.

    Raises ContractError for what is no whole ONNX model.
    """
    with whole_model(path, name) as (file, whole):
        return tuple(dict.fromkeys(_places(file, whole)))


@contextmanager
def whole_model(path: Path, name: str | None = None) -> Iterator[tuple[BinaryIO, Span]]:
    """The file, and where its message lies. Raises ContractError for what is no protobuf there."""
    try:
        with path.open("rb") as file:
            yield file, Span(0, path.stat().st_size)
    except NotProtobuf as error:
        raise ContractError(
            f"file '{name or path.name}' is a damaged ONNX model, its graph cannot be read: "
            f"{error}; copy it again or convert again"
        ) from error


def _places(file: BinaryIO, whole: Span) -> Iterator[str]:
    """Without recursion: a file may nest its graphs as deep as it likes."""
    waiting = [("ModelProto", whole)]
    left = _MOST_FIELDS
    while waiting:
        message, span = waiting.pop()
        leads = LEADS[message]
        for number, value in message_fields(file, span, most=left):
            left -= 1
            below = leads.get(number)
            if below is None or not isinstance(value, Span):
                continue
            if below == _PLACE:
                yield from _place(file, value)
            else:
                waiting.append((below, value))


def _place(file: BinaryIO, span: Span) -> Iterator[str]:
    """All that the entry may be read as: of two keys or values readers take another one."""
    keys, values = list[bytes | int | Span](), list[bytes | int | Span]()
    for number, value in message_fields(file, span, kept=(_KEY, _VALUE)):
        if number in (_KEY, _VALUE):
            (keys if number == _KEY else values).append(value)
    if b"location" in keys:
        for value in values or [b""]:
            if not isinstance(value, bytes):
                raise NotProtobuf("the place of a weight is no short text")
            yield value.decode("utf-8", "replace")
