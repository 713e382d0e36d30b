"""From a model to a bundle: open, export, build the engine, compare with the reference, write."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from contract.endpoint import Endpoint, Limits
from contract.manifest import Golden
from transformer_serving.bundle import BundleContent, write_bundle
from transformer_serving.bundle_endpoint import BUCKETS, LIMITS, endpoint_of, tokens_of
from transformer_serving.bundle_folder import Bundle
from transformer_serving.local_engine import LocalEndpoint, open_engine
from transformer_serving.model_source import ModelSource, open_source
from transformer_serving.onnx_export import ExportedGraph, export_onnx
from transformer_serving.optimize import (
    PRECISIONS,
    EngineFiles,
    build_engine,
    choose_precision,
    clean_onnx,
)
from transformer_serving.parity import TOLERANCES, ParityReport, choose, prepare_case
from transformer_serving.parity_bodies import golden_body
from transformer_serving.refusal import ConversionRefused

AUTO = "auto"
# Installed with the extra "convert" and imported only inside the steps that use them.
_NEEDED = ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript")
STEPS = ("open", "export", "build", "parity", "bundle")

# Called with a step's name and one line about it, as the step starts.
Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class ConvertRequest:
    """What to convert and how; None leaves the choice to the model, or to the CPU.

    `precision` None or 'auto' takes the fastest that passes parity. `name` is what the manifest
    calls the source, a folder's own name unless given.
    """

    model: str
    task: str | None = None
    revision: str | None = None
    engine: str = "openvino"
    precision: str | None = None
    max_length: int | None = None
    buckets: tuple[int, ...] = BUCKETS
    limits: Limits = LIMITS
    name: str | None = None


@dataclass(frozen=True)
class Converted:
    """A finished bundle and how far its answers are from the reference's."""

    bundle: Bundle
    parity: ParityReport


def convert(request: ConvertRequest, target: Path, progress: Progress) -> Converted:
    """Make the bundle folder `target`. Raises ConversionRefused; then nothing is left behind."""
    _check_installed()
    precisions = _precisions(request)
    progress("open", request.name or request.model)
    source = open_source(
        request.model, task=request.task, revision=request.revision, name=request.name
    )
    tokens = tokens_of(source, request.max_length, request.buckets)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that moving the engine's files there costs nothing.
    with tempfile.TemporaryDirectory(prefix=".convert.", dir=target.parent) as scratch:
        folder = Path(scratch)
        progress("export", f"{source.task}, {source.model_type}")
        graph = export_onnx(source, folder / "export.onnx")
        clean_onnx(graph.path)
        endpoint = endpoint_of(source, graph, tokens, request.limits)
        endpoint = replace(endpoint, golden=golden_body(endpoint))
        case = prepare_case(source, endpoint)

        def build(precision: str) -> EngineFiles:
            progress("build", f"{request.engine} {precision}")
            files = _build(request.engine, precision, graph, folder)
            progress("parity", f"{len(case.bodies)} requests of up to {tokens.max_length} tokens")
            return files

        files, parity = choose(precisions, build, case, lambda line: progress("parity", line))
        content = BundleContent(
            endpoint=endpoint,
            tokenizer=source.tokenizer,
            engine=files,
            golden=_golden(source, endpoint, files),
            parity=asdict(parity),
            source={
                "model": source.name,
                "revision": source.revision,
                "model_type": source.model_type,
            },
        )
        progress("bundle", str(target))
        bundle = write_bundle(content, target)
    return Converted(bundle, parity)


def _precisions(request: ConvertRequest) -> tuple[str, ...]:
    """What to try in turn: only the one asked for, or from the fastest here to the safest."""
    asked = None if request.precision == AUTO else request.precision
    first = choose_precision(request.engine, asked)
    if asked is not None:
        return (first,)
    safer = tuple(TOLERANCES)[: tuple(TOLERANCES).index(first)]
    return (first, *(name for name in reversed(safer) if name in PRECISIONS[request.engine]))


def _build(engine: str, precision: str, graph: ExportedGraph, folder: Path) -> EngineFiles:
    """The engine in a folder of its own, from a second name of the graph: builders may move it."""
    place = folder / precision
    place.mkdir()
    for path in graph.path.parent.glob(f"{graph.path.name}*"):
        os.link(path, place / path.name)
    return build_engine(engine, precision, place / graph.path.name, place)


def _golden(source: ModelSource, endpoint: Endpoint, files: EngineFiles) -> Golden:
    """The golden body and this engine's own answer, which parity has found to be right."""
    local = LocalEndpoint(endpoint, source.tokenizer.content, open_engine(files))
    assert endpoint.golden is not None
    answer = local.answer(endpoint.golden)
    return Golden(endpoint.golden, answer, TOLERANCES[files.precision].difference)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConversionRefused(
            f"converting needs {', '.join(missing)}; install them: "
            "pip install 'transformer-serving[convert]'"
        )
