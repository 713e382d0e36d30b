"""The versions that an ONNX file states, read without the onnx package.

An ONNX file is one protobuf message. Only its top-level fields are walked: the graph with its
weights is stepped over, so the cost does not depend on the model's size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from transformer_serving.contract.errors import ContractError

# Field numbers of ModelProto and OperatorSetIdProto (onnx.proto).
_IR_VERSION, _GRAPH, _OPSET_IMPORT = 1, 7, 8
_DOMAIN, _VERSION = 1, 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Fields 2 to 8 of ModelProto, and what a writer without a producer's name starts with.
_AFTER_IR_VERSION = {*(number << 3 | _LENGTH for number in (2, 3, 4, 6, 7, 8)), 5 << 3}
_MAX_FIELDS = 100_000
_MAX_NUMBER = (1 << 29) - 1
_MAX_KEPT_BYTES = 4096
_MAX_VARINT_BYTES = 10
# ai.onnx is the full name of the domain that files write as nothing.
_STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class OnnxHeader:
    """`ir_version` of the file format; `opset` of the standard operators; `domains` of others."""

    ir_version: int
    opset: int
    domains: dict[str, int]


@dataclass(frozen=True)
class Span:
    """Where a field lies that was stepped over, in bytes of the file."""

    start: int
    end: int


class NotProtobuf(ValueError):
    """The bytes are no protobuf message, or end in the middle of one."""


def read_onnx_header(path: Path, name: str | None = None) -> OnnxHeader:
    """Raises ContractError for a file that is no ONNX model or is cut short."""
    name = name or path.name
    ir_version, opsets, has_graph = 0, dict[str, int](), False
    try:
        with path.open("rb") as file:
            whole = Span(0, path.stat().st_size)
            for number, value in message_fields(file, whole, kept=(_OPSET_IMPORT,)):
                if number == _IR_VERSION and isinstance(value, int):
                    ir_version = value
                elif number == _OPSET_IMPORT and isinstance(value, bytes):
                    domain, version = _opset(value)
                    opsets[domain] = max(version, opsets.get(domain, 0))
                has_graph = has_graph or number == _GRAPH
    except NotProtobuf as error:
        raise ContractError(
            f"file '{name}' is no whole ONNX model: {error}; copy it again or convert again"
        ) from error
    standard = max((opsets.pop(domain, 0) for domain in _STANDARD_DOMAINS), default=0)
    if not (has_graph and ir_version and standard):
        raise ContractError(
            f"file '{name}' is no ONNX model: it states no graph, IR version or opset; convert "
            "again"
        )
    return OnnxHeader(ir_version, standard, opsets)


def starts_as_onnx(head: bytes) -> bool:
    """Whether the first bytes of a file are those of an ONNX model: an IR version, then text."""
    return (
        len(head) > 2
        and head[0] == _IR_VERSION << 3 | _VARINT
        and 0 < head[1] < 0x80
        and head[2] in _AFTER_IR_VERSION
    )


def _opset(message: bytes) -> tuple[str, int]:
    domain, version = "", 0
    whole = Span(0, len(message))
    for number, value in message_fields(BytesIO(message), whole, kept=(_DOMAIN,)):
        if number == _DOMAIN and isinstance(value, bytes):
            domain = value.decode("utf-8", "replace")
        elif number == _VERSION and isinstance(value, int):
            version = value
    return domain, version


def message_fields(
    file: BinaryIO, span: Span, kept: Collection[int] = (), most: int = _MAX_FIELDS
) -> Iterator[tuple[int, int | bytes | Span]]:
    """Each field of the message in `span` by its number: an integer, the bytes of a short field
    that is `kept`, or where it lies. The reader may move in the file meanwhile.

    Raises NotProtobuf, and stops after `most` fields with it.
    """
    place = span.start
    for _ in range(most):
        if place >= span.end:
            return
        file.seek(place)
        tag = _varint(file)
        number, wire = tag >> 3, tag & 7
        # Other readers drop what is above: a field could be one number here and another there.
        if not 0 < number <= _MAX_NUMBER:
            raise NotProtobuf(f"field number {number}")
        value = _value(file, span.end, wire, number in kept)
        place = file.tell() if not isinstance(value, Span) else value.end
        yield number, value
    raise NotProtobuf(f"more than {most} fields")


def _value(file: BinaryIO, limit: int, wire: int, kept: bool) -> int | bytes | Span:
    if wire == _VARINT:
        return _varint(file)
    length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
    if wire == _LENGTH:
        length = _varint(file)
    if length is None:
        raise NotProtobuf(f"wire type {wire}")
    start = file.tell()
    if start + length > limit:
        raise NotProtobuf(f"it has {limit} bytes of at least {start + length}")
    if wire == _LENGTH and kept and length <= _MAX_KEPT_BYTES:
        return file.read(length)
    return Span(start, start + length)


def _varint(file: BinaryIO) -> int:
    result = 0
    for shift in range(_MAX_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            raise NotProtobuf("it ends inside a number")
        result |= (byte[0] & 0x7F) << (7 * shift)
        if not byte[0] & 0x80:
            return result
    raise NotProtobuf("a number of more than 10 bytes")
