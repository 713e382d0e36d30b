"""What an engine's file is: a TensorRT plan, an ONNX model or an OpenVINO model; or what it is not.

A file is judged by its first bytes, not by its name. Each reader is bounded, and none of them runs
anything of what the file says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.onnx_header import read_onnx_header, starts_as_onnx
from transformer_serving.contract.gate.onnx_limits import highest, too_new
from transformer_serving.contract.gate.plan import plan_faults
from transformer_serving.contract.gate.plan_header import PlanHeader, read_plan_header
from transformer_serving.contract.gate.server_facts import ServerFacts, installed
from transformer_serving.contract.manifest import FILE_NAME
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import FAILURE, OK, WARNING, Finding, Findings
from transformer_serving.desk.doctor.foreign_files import what_else
from transformer_serving.desk.doctor.onnx_graph import read_onnx_graph
from transformer_serving.desk.doctor.openvino_ir import read_openvino_model
from transformer_serving.desk.versions.lock import read_lock
from transformer_serving.desk.versions.matrix import UNKNOWN, read_matrix, releases_with

SUFFIXES = (".plan", ".onnx", ".xml")
_HEAD = 4096
_SHOWN = 8
_AGAIN = f"take the whole file, or convert again: {command_line('convert MODEL --output BUNDLE')}"
_MOVE = (
    f"build it again with the pinned image, or move the pin: {command_line('versions use RELEASE')}"
)


@dataclass(frozen=True)
class Kind:
    """One kind of engine: the suffix that Triton's backend wants, and who describes it."""

    name: str
    suffix: str
    starts: Callable[[bytes], bool]
    describe: Callable[[Path, ServerFacts], Finding]


def engine_files(path: Path) -> tuple[Path, ...]:
    """What to describe: a file itself, or the engines of a folder that is no bundle."""
    if path.is_file():
        return (path,)
    if (path / "model" / FILE_NAME).is_file():
        return ()
    places = (path, path / "model")
    return tuple(
        file
        for place in places
        if place.is_dir()
        for file in sorted(place.iterdir())
        if file.suffix in SUFFIXES and file.is_file()
    )


def check_engine_file(path: Path, server: ServerFacts) -> Findings:
    """One finding that says what the file is; `server` is what it is measured against."""
    try:
        yield _described(path, server)
    except ContractError as error:
        yield Finding(FAILURE, f"{path}: {error}", _AGAIN)
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror or type(error).__name__}"
        yield Finding(FAILURE, why, "let this user read it")


def _described(path: Path, server: ServerFacts) -> Finding:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        raise ContractError(f"file '{path.name}' is empty")
    kind = next((kind for kind in KINDS if kind.starts(head)), None)
    if kind is None:
        raise ContractError(
            f"file '{path.name}' is {what_else(head, path)}: neither a TensorRT plan nor an ONNX "
            "or OpenVINO model"
        )
    if path.suffix in SUFFIXES and path.suffix != kind.suffix:
        raise ContractError(
            f"file '{path.name}' is {kind.name} by its first bytes; name it {path.stem}"
            f"{kind.suffix}, or Triton takes it for another engine's"
        )
    return kind.describe(path, server)


def _plan(path: Path, server: ServerFacts) -> Finding:
    header = read_plan_header(path)
    faults = list(plan_faults(path, path.name, {}, server))
    return _finding(path, _plan_words(header), _plan_facts(header), faults, _MOVE)


def _plan_words(header: PlanHeader) -> Iterator[str]:
    if header.tensorrt is None:
        yield "a TensorRT plan that does not state its version, so older than TensorRT 8.6"
    else:
        seen = ", as its records say" if header.tensorrt_observed else ""
        yield f"a plan of TensorRT {header.tensorrt}{seen}"
        yield _releases(header.tensorrt)
    if header.compute_capability:
        yield f"built on a GPU of compute capability {header.compute_capability} (observed)"
    else:
        yield "its header does not say for which GPU"
    yield f"{header.file_size} bytes"


def _releases(tensorrt: str) -> str:
    found = releases_with(tensorrt)
    if found:
        return f"Triton {', '.join(found)} has that version and loads it"
    rows = read_matrix()
    unknown = [row.release for row in rows if row.tensorrt == UNKNOWN]
    more = f"; nobody has looked at {', '.join(unknown)}" if unknown else ""
    return f"no Triton release of {rows[0].release} to {rows[-1].release} has that version{more}"


def _plan_facts(header: PlanHeader) -> dict[str, Any]:
    releases = releases_with(header.tensorrt) if header.tensorrt else ()
    return {"kind": "tensorrt", **asdict(header), "triton_releases": list(releases)}


def _onnx(path: Path, server: ServerFacts) -> Finding:
    header, graph = read_onnx_header(path), read_onnx_graph(path)
    beside = {one.name for one in path.parent.iterdir() if one.is_file()}
    missing = [name for name in graph.files if name not in beside]
    if missing:
        raise ContractError(
            f"file '{path.name}' keeps weights in {_some(missing)}, and no such file lies beside "
            "it; copy both"
        )
    runtimes = _runtimes(header, server)
    words = [
        f"an ONNX model, opset {header.opset}, IR version {header.ir_version}",
        f"written by {graph.producer or 'a tool that does not say its name'}",
        f"inputs {_some(graph.inputs)}",
        f"outputs {_some(graph.outputs)}",
        *runtimes.values(),
    ]
    if header.domains:
        words.insert(1, f"operators of {_some(sorted(header.domains))} too")
    facts = {"kind": "onnx", **asdict(header), **asdict(graph), "onnxruntime": runtimes}
    pinned = read_lock().image.onnxruntime
    faults = [runtimes[pinned]] if too_new(header, pinned) else []
    return _finding(path, words, facts, faults, _MOVE)


def _runtimes(header: Any, server: ServerFacts) -> dict[str, str]:
    """What each ONNX Runtime of ours does with it: the image pin's and the embedded stack's."""
    pin = read_lock().image
    named = {pin.onnxruntime: f"ONNX Runtime {pin.onnxruntime} of the image pin {pin.release}"}
    own = installed("onnxruntime")
    if own and own != pin.onnxruntime:
        named[own] = f"ONNX Runtime {own} of the embedded stack"
    return {version: f"{name} {_reads(header, version)}" for version, name in named.items()}


def _reads(header: Any, version: str) -> str:
    fault = too_new(header, version)
    if fault:
        return f"does not load it: {fault}"
    known = all(highest(version, field) is not None for field in ("opset", "ir_version"))
    return "reads such files" if known else "is not known to refuse it"


def _openvino(path: Path, server: ServerFacts) -> Finding:
    model = read_openvino_model(path)
    weights = path.with_suffix(".bin").name
    words = [
        f"an OpenVINO model, IR version {model.version}, which OpenVINO 2022 and newer read",
        f"written by OpenVINO {model.written_by}" if model.written_by else "its writer is not said",
        f"inputs {_some(model.inputs)}",
        f"outputs {_some(model.outputs)}",
        f"{weights} has its {model.weights} bytes of weights" if model.weights else "no weights",
    ]
    return _finding(path, words, {"kind": "openvino", **asdict(model)}, [], "")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN]) or "none"
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _finding(
    path: Path, words: Any, facts: Mapping[str, Any], faults: Sequence[str], fix: str
) -> Finding:
    why = f"{path} is {'; '.join(words)}"
    told = {"path": str(path), **facts}
    if not faults:
        return Finding(OK, why, facts=told)
    return Finding(WARNING, f"{why}; but {'; '.join(faults)}", fix, told)


def _starts_as_xml(head: bytes) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith((b"<?xml", b"<net"))


KINDS = (
    Kind("a TensorRT plan", ".plan", lambda head: head[:4] in (b"ftrt", b"ptrt"), _plan),
    Kind("an ONNX model", ".onnx", starts_as_onnx, _onnx),
    Kind("an OpenVINO model", ".xml", _starts_as_xml, _openvino),
)
