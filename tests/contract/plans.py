"""Synthetic TensorRT plans, laid out as documented and as observed on real ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_CODES = {"B": 0x02, "i": 0x07, "Q": 0x08}
_OPEN = b"\x12\x80\x01\x00\x10\x80\x01\x00"
_CLOSE = b"\xef\x7f\xed\x7f"


def record(kind: str, value: int, flag: int = 0x8000) -> bytes:
    return struct.pack(f"<HH{kind}", _CODES[kind] | flag, 1, value)


def version_records(version: str, flag: int = 0x8000) -> bytes:
    return b"".join(record("B", int(part), flag) for part in version.split("."))


def device_block(capability: str, *, late: bool) -> bytes:
    """The GPU's properties; `late` is the order of TensorRT 10.15, capability near the end."""
    major, minor = (int(part) for part in capability.split("."))
    sizes: tuple[int, ...] = ()
    numbers: tuple[int, ...] = (major, minor, 1_590_000, 5_001_000, 256)
    if late:
        sizes = (24 << 30, 6 << 20, 1 << 16)
        numbers = (1_695_000, 9_501_000, 384, 49_152, 102_400, 82, 0, 1024, 1024, major, minor, 512)
    records = [record("Q", value) for value in sizes] + [record("i", value) for value in numbers]
    return _OPEN + b"".join(records) + _CLOSE


@dataclass(frozen=True)
class Plan:
    """One real plan's facts: the rows of the table that the layouts were learnt from."""

    version: str
    serialization: int
    capability: str

    @property
    def new(self) -> bool:
        return tuple(int(part) for part in self.version.split(".")[:2]) >= (8, 6)


# TensorRT 7.1 (serialization 0x61) has records without the flag and no known device block.
PLANS = (
    Plan("8.2.1.8", 205, "5.3"),
    Plan("8.6.1.6", 236, "8.9"),
    Plan("10.6.0.26", 239, "7.5"),
    Plan("10.15.1.29", 240, "8.6"),
)


def build(plan: Plan, *, weights: int = 100_000) -> bytes:
    """The bytes of a plan; `weights` zeros stand for what a reader must not read."""
    late = plan.version.startswith("10.15")
    body = version_records(plan.version) + device_block(plan.capability, late=late)
    if not plan.new:
        body += bytes(weights)
        return b"ptrt" + struct.pack("<IIIQ", 0, plan.serialization, 0, len(body)) + body
    return container(plan.version, archive(plan, body), weights)


def archive(plan: Plan, body: bytes) -> bytes:
    """The inner archive: the number at byte 8 in 8.6, at byte 4 in 10.x."""
    if plan.version.startswith("10."):
        return b"ptrt" + struct.pack("<IQI", plan.serialization, len(body), 0) + body
    return b"ptrt" + struct.pack("<IIIQ", 0, plan.serialization, 0, len(body)) + body


def container(version: str, inner: bytes, weights: int) -> bytes:
    newer = version.startswith("10.")
    tags = [b"NGNE", b"THGW"] if newer else [b"NGNE"]
    engine = inner if newer else inner + bytes(weights)
    start = 32 + 24 * len(tags)
    sizes = [len(engine), weights][: len(tags)]
    total = start + sum(sizes)
    head = b"ftrt" + struct.pack("<IQQ", 0, len(tags), total)
    head += bytes(int(part) for part in version.split(".")) + (b"rtrt" if newer else bytes(4))
    place = start
    for tag, size in zip(tags, sizes, strict=True):
        head += tag + struct.pack("<4xQQ", place, size)
        place += size
    return head + engine + (bytes(weights) if newer else b"")


def oldest() -> bytes:
    """A plan of TensorRT 7.1.3.4: the number at byte 4, records without the flag."""
    return b"ptrt" + struct.pack("<I", 0x61) + bytes(16) + version_records("7.1.3.4", 0) + bytes(99)
