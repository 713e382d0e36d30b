"""Known lines of Triton's and TensorRT's logs: what they mean and what to do."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from transformer_serving.contract.gate.release import parts
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.gpu import RELOAD
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.versions.matrix import releases_with

# Of a larger log only the end is read.
_MOST = 64 << 20
_PIECE = 1 << 20
_SHARED = (
    "give more: TRITON_SHARED_MEMORY, on Kubernetes triton.sharedMemory; without containers free "
    "some space in /dev/shm"
)
# Compose says on stderr alone that there is no project here, or no such container.
_WRITE = (
    "see what the command that wrote it says on stderr, and take more than its last minutes; in "
    "the checkout: docker compose -f compose/compose.yaml logs --no-log-prefix triton"
)
_CONVERT = f"convert again with the pinned image: {command_line('convert')}"


@dataclass(frozen=True)
class KnownLine:
    """`meaning` and `fix` may name the pattern's groups in braces."""

    name: str
    pattern: re.Pattern[str]
    meaning: str
    fix: str


@dataclass(frozen=True)
class Explained:
    """A known line that was found, explained with the numbers it has."""

    name: str
    meaning: str
    fix: str


def _row(name: str, pattern: str, meaning: str, fix: str) -> KnownLine:
    return KnownLine(name, re.compile(pattern, re.IGNORECASE), meaning, fix)


def _ended(number: int, name: str) -> str:
    """Triton's end by a signal, as its container's parent logs it, or supervisord."""
    return rf"tritonserver ended with -{number}\b|\bexited: triton \(terminated by {name}\b"


# Any of these; Triton may have told of the same before.
_ENDED = re.compile(r"tritonserver ended with -|\bexited: triton \(", re.IGNORECASE)


KNOWN = (
    _row(
        "tensorrt-version",
        r"not compatible with this version of TensorRT, expecting library version "
        r"(?P<wanted>[\d.]*\d) got (?P<got>[\d.]*\d)",
        "the plan was built by TensorRT {got}, this server has {wanted}",
        _CONVERT,
    ),
    _row(
        "serialization-version",
        r"(?:stdVersionRead == (?:kSERIALIZATION_VERSION|serializationVersion) failed|"
        r"verifyHeader).*?Version tag does not match.*?Current Version: (?P<wanted>\d+), "
        r"Serialized Engine Version: (?P<got>\d+)",
        "the plan's archive is number {got}, this server's TensorRT reads {wanted}: it was built "
        "by another TensorRT",
        _CONVERT,
    ),
    _row(
        "magic-tag",
        r"Magic tag does not match|magicTagRead == kMAGIC_TAG failed|"
        r"magicTag == rt::kPLAN_MAGIC_TAG failed",
        "the file is no plan (an ONNX model named .plan?), or was built on the other side of "
        "TensorRT 8.6",
        f"look at the file: {command_line('doctor --bundle BUNDLE')}; then " + _CONVERT,
    ),
    _row(
        "compute-capability",
        r"generated on an incompatible device, expecting compute (?P<wanted>[\d.]*\d) got compute "
        r"(?P<got>[\d.]*\d)",
        "the plan was built for another GPU: compute capabilities {wanted} and {got} differ",
        "convert again on this kind of GPU",
    ),
    _row(
        "auto-complete",
        r"unable to load plan file to auto complete config: (?P<file>\S+)",
        "Triton could not read the plan {file}; the cause is the TensorRT line before it",
        "read the TensorRT line before it; mostly: " + _CONVERT,
    ),
    _row(
        "create-engine",
        r"unable to create TensorRT (?P<what>engine|runtime)",
        "Triton could not make a TensorRT {what} of the plan; the cause is the TensorRT line "
        "before it",
        "read the TensorRT line before it; mostly: " + _CONVERT,
    ),
    _row(
        "lean-runtime",
        r"Cannot deserialize engine with lean runtime",
        "the plan is a version-compatible one, and Triton runs without the flag for them",
        "start Triton with --backend-config=tensorrt,version-compatible=true (release 23.09 or "
        "newer), and sign what is served: such plans bring code of their own",
    ),
    _row(
        "onnx-opset",
        r"Current official support for domain ai\.onnx is till opset (?P<wanted>\d+)",
        "the ONNX file has a newer opset than {wanted}, the newest of this ONNX Runtime",
        f"convert again with this kit, or move the pin: {command_line('versions use RELEASE')}",
    ),
    _row(
        "onnx-ir",
        r"Unsupported model IR version: (?P<got>\d+), max supported IR version: (?P<wanted>\d+)",
        "the ONNX file has IR version {got}, this ONNX Runtime reads up to {wanted}",
        f"convert again with this kit, or move the pin: {command_line('versions use RELEASE')}",
    ),
    _row(
        "no-backend",
        r"unable to find backend library for backend '(?P<got>[\w-]+)'",
        "this Triton has no backend {got}",
        "serve it where its image has it, a GPU's with compose/gpu.yaml; or convert again for this "
        f"one: {command_line('convert MODEL --engine openvino')}",
    ),
    _row(
        "platform-backend",
        r"unexpected 'platform' and 'backend' pair, got:\s?(?P<got>\S+)",
        "the endpoint's --aux-config names a platform and a backend that do not belong together: "
        "{got}",
        "name only one: platform or backend",
    ),
    _row(
        "max-batch",
        r"configuration specified max-batch (?P<got>\d+) but TensorRT engine only supports "
        r"max-batch (?P<wanted>\d+)",
        "max_batch_size {got} is larger than the engine's {wanted}",
        "set max_batch_size={wanted} in the endpoint's --aux-config, or convert again",
    ),
    _row(
        "profile",
        r"failed to find any Optimization Profile among",
        "a request's length fits none of the engine's optimization profiles",
        "convert again with buckets that cover the texts; list every profile in the config",
    ),
    _row(
        "shared-memory",
        r"(?:shared memory|/dev/shm).*No space left on device|No space left on device.*/dev/shm",
        "/dev/shm is full: each model of a Python backend has its tensors there",
        _SHARED,
    ),
    _row(
        "bus-error",
        r"\bBus error\b|" + _ended(7, "SIGBUS"),
        "a process was ended by a bus error, mostly as /dev/shm is full",
        _SHARED,
    ),
    _row(
        "killed",
        _ended(9, "SIGKILL"),
        "Triton was killed: mostly by the kernel, for memory; by its container or the controller "
        "where the line before says so, as it hung or a load did, or by the embedded stack's "
        "watchdog or controller where their logs do",
        "give more: TRITON_MEMORY, on Kubernetes triton.resources.limits.memory, else the machine; "
        "or serve fewer models",
    ),
    _row(
        "crashed",
        r"\bSignal \((?:6|11)\) received|"
        + "|".join((_ended(6, "SIGABRT"), _ended(11, "SIGSEGV"))),
        "Triton was ended by a fault of its own code or of a library in it",
        "the lines before it have the stack, in .stack/logs/triton.log of the embedded stack; if "
        f"it began with a bundle: {command_line('rollback NAME')}",
    ),
    _row(
        "driver-mismatch",
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated under what runs: its library and the kernel's module differ",
        RELOAD,
    ),
    _row(
        "driver-old",
        # Every Triton without a GPU warns so of pinned memory, which it then goes without.
        r"(?<!pinned memory pool will not be available: )"
        r"CUDA driver version is insufficient for CUDA runtime version",
        "the NVIDIA driver is older than this image needs, or the container has none",
        f"see on that machine which it needs: {command_line('doctor')}; in compose the GPU comes "
        "with compose/gpu.yaml",
    ),
    _row(
        "gpu-memory",
        r"\bCUDA\b.{0,40}?\bout of memory|CUDA_ERROR_OUT_OF_MEMORY",
        "the GPU's memory is full",
        "see who has it: nvidia-smi; serve fewer models (an update loads two or three of one), or "
        "convert again with a smaller --batch (vLLM: --gpu-memory-utilization)",
    ),
    _row(
        "gpu-lost",
        r"GPU is lost|GPU has fallen off the bus|Unable to determine the device handle for GPU|"
        r"Failed to initialize NVML: Unknown Error",
        "a GPU no longer answers, or its container has lost it",
        "nvidia-smi on the machine itself: where that fails too restart the machine, else restart "
        "Triton",
    ),
)


def explain(text: str) -> Iterator[Explained]:
    """What is known of the error lines in a text."""
    for line in KNOWN:
        found = line.pattern.search(text)
        if found:
            yield _explained(line, found.groupdict())


def _explained(line: KnownLine, groups: dict[str, str]) -> Explained:
    fix = line.fix.format_map(groups)
    if line.name == "tensorrt-version":
        fix += "".join(_where(groups[name]) for name in ("got", "wanted"))
    return Explained(line.name, line.meaning.format_map(groups), fix)


def _where(version: str) -> str:
    """Which releases have a TensorRT version, as far as the matrix knows."""
    known = releases_with(version) if len(parts(version)) >= 3 else ()
    return f"; TensorRT {version} is in release {', '.join(known)}" if known else ""


def check_log(subject: Subject) -> Findings:
    """Every known line of --log once, with how often it came."""
    if subject.log is None:
        yield skipped("no --log")
        return
    try:
        lines = _lines(subject.log)
    except OSError as error:
        yield failure(f"--log {subject.log}: {error.strerror}", "name a file that can be read")
        return
    found = _counted(lines)
    for known, count in found.items():
        times = "" if count == 1 else f" ({count} times)"
        yield failure(f"{known.meaning}{times}", known.fix)
    if not lines:
        yield warning(f"{subject.log} is empty, so nothing was looked for", _WRITE)
    elif not found:
        yield ok(f"no known error in {len(lines)} lines of {subject.log}")


def _lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        return _end(file).decode("utf-8", "replace").splitlines()


def _end(file: BinaryIO) -> bytes:
    if file.seekable():
        file.seek(max(0, file.seek(0, 2) - _MOST))
        return file.read()
    # A pipe, as of a shell's <(...): only who reads it to its end knows what that is.
    pieces, size = deque[bytes](), 0
    while piece := file.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        while size - len(pieces[0]) >= _MOST:
            size -= len(pieces.popleft())
    return b"".join(pieces)[-_MOST:]


def _counted(lines: Iterable[str]) -> dict[Explained, int]:
    counts: dict[Explained, int] = {}
    # In Triton's own words, since its parent's line before.
    told = set[Explained]()
    for line in lines:
        is_end = _ENDED.search(line) is not None
        for known in explain(line):
            if is_end and known in told:
                told.remove(known)
                continue
            if not is_end:
                told.add(known)
            counts[known] = counts.get(known, 0) + 1
    return counts
