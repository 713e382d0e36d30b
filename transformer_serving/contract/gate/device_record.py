"""The typed records inside a plan: the builder's version and the GPU it was built on.

Undocumented, seen in real plans: each value is a little-endian u16 code, a u16 1 and the payload.
Code and 0x8000 are or-ed since TensorRT 8; a struct closes with the inverted tag it opened with.

Tested by tests/contract/test_plan_header.py.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_FLAG = 0x8000
_CODES = {0x02: "B", 0x0A: "?", 0x07: "<i", 0x08: "<Q", 0x09: "<Q"}
_OPEN = b"\x12\x80\x01\x00\x10\x80\x01\x00"
_CLOSE = b"\xef\x7f\xed\x7f"
_MAX_RECORDS = 64
# Four u8 records in a row are the version.
_VERSION = re.compile(rb"(?:\x02[\x00\x80]\x01\x00(.))" * 4, re.DOTALL)
_VERSION_WITHIN = 512
_CAPABILITIES = {
    *("5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2", "7.5"),
    *("8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"),
}
_CLOCK_KHZ = range(100_000, 10_000_000)


@dataclass(frozen=True)
class _Layout:
    """Where a release keeps things: the kinds of the first records, and places among the i32."""

    kinds: str
    major: int
    minor: int
    clock: int


_LAYOUTS = (
    # TensorRT 8.2, 8.6 and 10.6: capability, then the clocks.
    _Layout(kinds="iii", major=0, minor=1, clock=2),
    # TensorRT 10.15: three sizes, clocks and counts, then the capability.
    _Layout(kinds="QQQi", major=9, minor=10, clock=0),
)


def observed_capability(archive: bytes) -> str | None:
    """The GPU's compute capability such as '8.6'; None when no known layout matches."""
    start = archive.find(_OPEN)
    if start < 0:
        return None
    records = list(_records(archive, start + len(_OPEN)))
    kinds = "".join(kind for kind, _ in records)
    numbers = [value for kind, value in records if kind == "i"]
    for layout in _LAYOUTS:
        if kinds.startswith(layout.kinds) and len(numbers) > max(layout.minor, layout.clock):
            found = f"{numbers[layout.major]}.{numbers[layout.minor]}"
            if found in _CAPABILITIES and numbers[layout.clock] in _CLOCK_KHZ:
                return found
    return None


def observed_version(archive: bytes) -> str | None:
    """The TensorRT version that the archive's first four u8 records state."""
    found = _VERSION.search(archive[:_VERSION_WITHIN])
    return ".".join(str(part[0]) for part in found.groups()) if found else None


def _records(archive: bytes, place: int) -> Iterator[tuple[str, int]]:
    for _ in range(_MAX_RECORDS):
        if archive[place : place + len(_CLOSE)] == _CLOSE or place + 4 > len(archive):
            return
        code, one = struct.unpack_from("<HH", archive, place)
        form = _CODES.get(code & ~_FLAG)
        if form is None or one != 1 or place + 4 + struct.calcsize(form) > len(archive):
            return
        yield form[-1], int(struct.unpack_from(form, archive, place + 4)[0])
        place += 4 + struct.calcsize(form)
