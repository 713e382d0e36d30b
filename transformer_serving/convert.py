"""From a model to a bundle: open, export, build the engine, compare with the reference, write."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contract.endpoint import (
    Classification,
    Embedding,
    Endpoint,
    InputTensor,
    Limits,
    OutputTensor,
    Tokens,
)
from contract.heads import TASK_HEADS
from contract.manifest import Golden
from transformer_serving.bundle import BundleContent, write_bundle
from transformer_serving.bundle_folder import Bundle
from transformer_serving.model_source import ModelSource, open_source
from transformer_serving.onnx_export import OUTPUT_NAME, ExportedGraph, export_onnx
from transformer_serving.optimize import build_engine, choose_precision, clean_onnx
from transformer_serving.parity import TOLERANCES, ParityReport, check_parity
from transformer_serving.reference import reference_answers
from transformer_serving.refusal import ConversionRefused

BUCKETS = (16, 32, 64, 128, 256, 512)
LIMITS = Limits(max_texts=1024, max_characters=200_000, max_tokens=262_144, max_batch_size=64)
GOLDEN_TEXT = "The room was clean, the staff were kind and breakfast was excellent."
# Installed with the extra "convert" and imported only inside the steps that use them.
_NEEDED = ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript")
STEPS = ("open", "export", "build", "parity", "bundle")

# Called with a step's name and one line about it, as the step starts.
Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class ConvertRequest:
    """What to convert and how; `precision` None chooses by the CPU, `max_length` None the model's.

    `name` is what the manifest calls the source, a folder's own name unless given.
    """

    model: str
    task: str | None = None
    revision: str | None = None
    engine: str = "openvino"
    precision: str | None = None
    max_length: int | None = None
    buckets: tuple[int, ...] = BUCKETS
    limits: Limits = LIMITS
    golden_text: str = GOLDEN_TEXT
    name: str | None = None


@dataclass(frozen=True)
class Converted:
    """A finished bundle and how far its answers are from the reference's."""

    bundle: Bundle
    parity: ParityReport


def convert(request: ConvertRequest, target: Path, progress: Progress) -> Converted:
    """Make the bundle folder `target`. Raises ConversionRefused; then nothing is left behind."""
    _check_installed()
    precision = choose_precision(request.engine, request.precision)
    progress("open", request.name or request.model)
    source = open_source(
        request.model, task=request.task, revision=request.revision, name=request.name
    )
    tokens = tokens_of(source, request)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that moving the engine's files there costs nothing.
    with tempfile.TemporaryDirectory(prefix=".convert.", dir=target.parent) as scratch:
        folder = Path(scratch)
        progress("export", f"{source.task}, {source.model_type}")
        graph = export_onnx(source, folder / "export.onnx")
        clean_onnx(graph.path)
        progress("build", f"{request.engine} {precision}")
        files = build_engine(request.engine, precision, graph.path, folder)
        progress("parity", f"up to {tokens.max_length} tokens")
        parity = check_parity(source, files, tokens, graph.inputs)
        content = BundleContent(
            endpoint=endpoint_of(source, graph, tokens, request.limits),
            tokenizer=source.tokenizer,
            engine=files,
            golden=golden_of(source, request.golden_text, tokens.max_length, precision),
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


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConversionRefused(
            f"converting needs {', '.join(missing)}; install them: "
            "pip install 'transformer-serving[convert]'"
        )


def tokens_of(source: ModelSource, request: ConvertRequest) -> Tokens:
    """Lengths and padding of the endpoint. Raises ConversionRefused for a max_length too long."""
    max_length = request.max_length or source.max_length
    if not 1 <= max_length <= source.max_length:
        raise ConversionRefused(
            f"--max-length must be from 1 to {source.max_length} for this model, got {max_length}"
        )
    smaller = sorted({size for size in request.buckets if 0 < size < max_length})
    return Tokens(
        max_length=max_length,
        buckets=(*smaller, max_length),
        pad_id=source.tokenizer.pad_id,
        pad_token=source.tokenizer.pad_token,
        pad_type_id=source.tokenizer.pad_type_id,
        padding_side=source.tokenizer.padding_side,
        # Each reference's own habit: sentence-transformers cuts, the pipeline refuses.
        truncate=source.task == "sentence-embedding",
    )


def endpoint_of(
    source: ModelSource, graph: ExportedGraph, tokens: Tokens, limits: Limits
) -> Endpoint:
    """endpoint.json of the graph, its version and hash still empty."""
    classification = embedding = None
    if source.task == "text-classification":
        if graph.width != len(source.labels):
            raise ConversionRefused(
                f"the model has {graph.width} columns and id2label {len(source.labels)} names; "
                "correct config.json"
            )
        activation = "softmax" if source.problem_type == "single_label" else "sigmoid"
        classification = Classification(source.labels, source.problem_type, activation)
    else:
        # The graph has normalized already where the model does; preprocess need not do it again.
        embedding = Embedding("engine", False, graph.width, "cosine", {}, None)
    return Endpoint(
        bundle_version=0,
        bundle_hash="",
        task=source.task,
        head=TASK_HEADS[source.task][0],
        inputs=tuple(InputTensor(name, role=name, dtype="INT32") for name in graph.inputs),
        outputs=(OutputTensor(OUTPUT_NAME, "FP32", (graph.width,)),),
        tokens=tokens,
        limits=limits,
        classification=classification,
        embedding=embedding,
        masks=None,
    )


def golden_of(source: ModelSource, text: str, max_length: int, precision: str) -> Golden:
    """A request body and the reference's answer to it, in the shape that a caller gets."""
    row = reference_answers(source, [text], max_length)[0]
    answer: dict[str, Any]
    if source.task == "text-classification":
        best = int(row.argmax())
        answer = {"label": source.labels[best], "score": float(row[best])}
    else:
        answer = {"embedding": [float(value) for value in row]}
    return Golden({"text": text}, answer, TOLERANCES[precision].difference)
