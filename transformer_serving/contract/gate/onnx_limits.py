"""How new an ONNX file each ONNX Runtime reads: what was seen, and what follows from it.

ONNX Runtime promises that a newer release reads what an older one read. So what one release is
known to read bounds its neighbours, and between two bounds the limit is unknown, not guessed.

Tested by tests/contract/test_onnx_header.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.gate.onnx_header import OnnxHeader, read_onnx_header
from transformer_serving.contract.gate.release import older, same
from transformer_serving.contract.gate.server_facts import ServerFacts


@dataclass(frozen=True)
class OnnxLimit:
    """The newest opset and IR version of one release; None where nobody has looked."""

    onnxruntime: str
    opset: int | None
    ir_version: int | None
    source: str


LIMITS = (
    OnnxLimit("1.19", 21, 10, "its own refusals of opset 22 and of IR version 12"),
    OnnxLimit("1.20", None, 10, "its refusal of IR version 11 (microsoft/onnxruntime#23602)"),
    OnnxLimit("1.22", None, 10, "its refusal of IR version 13"),
    OnnxLimit("1.31", 26, 13, "its own refusals of opset 27 and of IR version 14, tried here"),
)


def onnx_faults(path: Path, name: str, server: ServerFacts) -> Iterator[str]:
    """Why the file must not be loaded. Raises ContractError for what is no whole ONNX model."""
    header = read_onnx_header(path, name)
    fault = server.onnxruntime and too_new(header, server.onnxruntime)
    if fault:
        yield (
            f"file '{name}' has {fault} for ONNX Runtime {server.onnxruntime} of {server.name}; "
            "convert again with this kit, or move the pin to a newer release: "
            "transformer-serving versions use RELEASE"
        )


def too_new(header: OnnxHeader, onnxruntime: str) -> str | None:
    """What this ONNX Runtime certainly does not read in the file: 'opset 22, at most 21'."""
    for what, got, field in (
        ("opset", header.opset, "opset"),
        ("IR version", header.ir_version, "ir_version"),
    ):
        limit = highest(onnxruntime, field)
        if limit is not None and got > limit:
            return f"{what} {got}, at most {limit}"
    return None


def highest(onnxruntime: str, field: str) -> int | None:
    """An upper bound of `field` for a release: its own row, or that of the next known one."""
    known = [
        getattr(row, field)
        for row in LIMITS
        if same(onnxruntime, row.onnxruntime) or older(onnxruntime, row.onnxruntime)
    ]
    return min((value for value in known if value is not None), default=None)
