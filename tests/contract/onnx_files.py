"""ONNX files written byte by byte, so that these tests need no onnx package."""

from __future__ import annotations


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
    """ModelProto: IR version, producer, a graph of `graph` zeros, opsets after it."""
    standard = (field(1, domain.encode()) if domain else b"") + field(2, opset)
    return (
        field(1, ir_version)
        + field(2, b"a writer")
        + field(7, bytes(graph))
        + field(8, standard)
        + field(8, field(1, b"com.microsoft") + field(2, 1))
    )
