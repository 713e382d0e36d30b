"""What a TensorRT plan says of itself, read without TensorRT and without a GPU.

Documented by NVIDIA's trtexec (--getPlanVersionOnly): the tag `ftrt`, the container version at
byte 4 and the TensorRT version in bytes 24 to 27. Everything else was observed on plans of
TensorRT 7.1 to 10.15 and is reported only where the layout is the observed one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.device_record import observed_capability, observed_version
from transformer_serving.contract.gate.onnx_header import starts_as_onnx

# Of a plan of any size never more than this is read.
READ_LIMIT = 64 * 1024
_HEAD = 4 * 1024
_TAG, _OLD_TAG = b"ftrt", b"ptrt"
_KNOWN_CONTAINER = 0
_HEADER_BYTES = 32
_SECTION = struct.Struct("<4s4xQQ")
_MAX_SECTIONS = 64
_OLD_HEADER_BYTES = 24
_REBUILD = "build it again with 'transformer-serving convert'"


@dataclass(frozen=True)
class PlanHeader:
    """A plan's own words. `tensorrt` has four parts, three dots; None where it is not stated.

    `form` is 'ftrt' (TensorRT 8.6 and newer) or 'ptrt' (older). `serialization` is the archive's
    own number. `compute_capability` is observed, not documented: None when the layout is not a
    known one. `version_compatible` is False where the form rules it out, None where the header
    does not say. `sections` names the container's parts, for example ENGN and WGHT.
    """

    form: str
    file_size: int
    tensorrt: str | None
    tensorrt_observed: bool
    serialization: int | None
    compute_capability: str | None
    version_compatible: bool | None
    sections: tuple[str, ...]


def read_plan_header(path: Path, name: str | None = None) -> PlanHeader:
    """Read at most 64 KiB of a plan. Raises ContractError that says what the file is instead.

    `name` is what messages call the file, its own name unless given.
    """
    name = name or path.name
    size = path.stat().st_size
    # Without a buffer, which would read ahead of the limit.
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEAD)
        tag = head[:4]
        if tag == _TAG:
            sections = _check_container(head, size, name)
            start = sections.get("ENGN", (_HEADER_BYTES, 0))[0]
            file.seek(min(start, size))
            return _new_header(head, file.read(READ_LIMIT - len(head)), size, sections)
        if tag == _OLD_TAG:
            return _old_header(head + file.read(READ_LIMIT - len(head)), size, name)
    raise ContractError(_not_a_plan(head, name))


def _not_a_plan(head: bytes, name: str) -> str:
    if not head:
        return f"file '{name}' is empty, not a TensorRT plan; {_REBUILD}"
    if starts_as_onnx(head):
        return (
            f"file '{name}' is an ONNX model, not a TensorRT plan; name it model.onnx and serve it "
            "with engine onnxruntime, or build a plan from it with 'transformer-serving convert'"
        )
    return f"file '{name}' is no TensorRT plan: it starts with neither ftrt nor ptrt; {_REBUILD}"


def _check_container(head: bytes, size: int, name: str) -> dict[str, tuple[int, int]]:
    """The sections by name, each with offset and size, once sizes and container are right."""
    if len(head) < _HEADER_BYTES:
        raise ContractError(_truncated(name, size, f"at least {_HEADER_BYTES}"))
    container, count, stated = struct.unpack_from("<IQQ", head, 4)
    if container != _KNOWN_CONTAINER:
        raise ContractError(
            f"file '{name}' has plan container version {container}, only {_KNOWN_CONTAINER} is "
            f"known; its TensorRT is newer than this kit: upgrade the kit or {_REBUILD}"
        )
    if head[24] == 0:
        raise ContractError(f"file '{name}' states TensorRT version 0: it is damaged; {_REBUILD}")
    if stated > size:
        raise ContractError(_truncated(name, size, str(stated)))
    if stated < size:
        raise ContractError(
            f"file '{name}' has {size} bytes, its header states {stated}: something was added to "
            f"it; {_REBUILD}"
        )
    return _sections(head, count, size, name)


def _sections(head: bytes, count: int, size: int, name: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    if not 1 <= count <= _MAX_SECTIONS:
        raise ContractError(f"file '{name}' states {count} sections: it is damaged; {_REBUILD}")
    for index in range(count):
        place = _HEADER_BYTES + index * _SECTION.size
        if place + _SECTION.size > len(head):
            raise ContractError(_truncated(name, size, f"at least {place + _SECTION.size}"))
        tag, offset, length = _SECTION.unpack_from(head, place)
        if offset + length > size:
            raise ContractError(_truncated(name, size, f"at least {offset + length}"))
        found[tag[::-1].decode("ascii", "replace")] = (offset, length)
    return found


def _new_header(
    head: bytes, archive: bytes, size: int, sections: dict[str, tuple[int, int]]
) -> PlanHeader:
    return PlanHeader(
        form="ftrt",
        file_size=size,
        tensorrt=".".join(str(part) for part in head[24:28]),
        tensorrt_observed=False,
        serialization=_serialization(archive),
        compute_capability=observed_capability(archive),
        version_compatible=None,
        sections=tuple(sections),
    )


def _old_header(head: bytes, size: int, name: str) -> PlanHeader:
    if len(head) < _OLD_HEADER_BYTES:
        raise ContractError(_truncated(name, size, f"at least {_OLD_HEADER_BYTES}"))
    first, second = struct.unpack_from("<II", head, 4)
    (payload,) = struct.unpack_from("<Q", head, 16)
    # TensorRT 8.x: a zero, the number, a zero, the payload's size. TensorRT 7 has no size.
    if first == 0 and payload + _OLD_HEADER_BYTES > size:
        raise ContractError(_truncated(name, size, str(payload + _OLD_HEADER_BYTES)))
    version = observed_version(head)
    return PlanHeader(
        form="ptrt",
        file_size=size,
        tensorrt=version,
        tensorrt_observed=version is not None,
        serialization=first or second,
        compute_capability=observed_capability(head),
        # The builder's flag exists since 8.6, which writes the other form.
        version_compatible=False,
        sections=(),
    )


def _serialization(archive: bytes) -> int | None:
    """The number of the inner archive: at byte 8 in 8.6, at byte 4 in 10.x."""
    if archive[:4] != _OLD_TAG or len(archive) < 12:
        return None
    first, second = struct.unpack_from("<II", archive, 4)
    return int(first or second)


def _truncated(name: str, size: int, wanted: str) -> str:
    return f"file '{name}' is cut short: {size} bytes of {wanted}; copy it again or {_REBUILD}"
