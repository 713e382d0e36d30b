"""From a model to a bundle: open, export, build the engine, compare with the reference, write.

Tested by tests/bundle/test_writer.py and tests/cli/test_convert.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.endpoint import Endpoint, Limits, Tokens
from transformer_serving.contract.engine_parameters import VLLM
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.manifest import Golden
from transformer_serving.desk.builders.calibration import feeds_of, read_bodies
from transformer_serving.desk.builders.call_sizes import Range
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.builders.table import (
    ENGINES,
    GENERATION_BACKENDS,
    NOT_VLLM,
    choose_precision,
    ladder_of,
    open_engine,
)
from transformer_serving.desk.builders.tensorrt import require_machine
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.signing import SigningKey
from transformer_serving.desk.bundle.writer import BundleContent, check_target, write_bundle
from transformer_serving.desk.conversion.language_model import convert_language_model
from transformer_serving.desk.conversion.vllm_model import NotRun, convert_for_vllm
from transformer_serving.desk.conversion.workshop import (
    Progress,
    Workshop,
    chosen_engine,
    faster_engine,
    lengths_of_others,
    onnx_graph,
)
from transformer_serving.desk.convert_packages import INSTALL
from transformer_serving.desk.export.endpoint_json import (
    LIMITS,
    endpoint_of,
    limits_of,
    remarks_of,
    tokens_of,
)
from transformer_serving.desk.export.onnx import tensors_of
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.folder_replacement import place_of
from transformer_serving.desk.parity.bodies import golden_body
from transformer_serving.desk.parity.check import TOLERANCES, ParityReport, prepare_case
from transformer_serving.desk.parity.comparison import Compared, Comparison, compare_engines
from transformer_serving.desk.parity.continuations import ContinuationReport
from transformer_serving.desk.parity.gain import Gain
from transformer_serving.desk.parity.latency import Latency, RoundReport, shapes_of
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.desk.scratch import scratch_beside
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.desk.source.model import ModelSource, no_vector, open_source

AUTO = "auto"
# Installed with the extra "convert" and imported only inside the steps that use them.
_NEEDED = ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript")
STEPS = ("open", "export", "build", "parity", "bundle")

Bodies = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ConvertRequest:
    """What to convert and how; None leaves the choice to the model, or to the CPU.

    `precision` None or 'auto' takes the fastest that passes parity; `allow` names one that it takes
    only where that is the faster one too, measured. `name` is what the manifest
    calls the source, a folder's own name unless given. `batch` is the fewest, usual and most texts
    of a call; `calibration` a file of texts for int8 and fp16; `compare` the engines of the table,
    which is measured at the lengths of `seq_len`. `pooling` makes one vector of a text's where the
    model does not say how. `engine_parameters`, of a language model, are those of
    contract.engine_parameters by name. `key` signs the bundle.
    """

    model: str
    task: str | None = None
    revision: str | None = None
    engine: str = "openvino"
    precision: str | None = None
    allow: str | None = None
    max_length: int | None = None
    buckets: tuple[int, ...] = ()
    seq_len: Range | None = None
    batch: Range | None = None
    calibration: Path | None = None
    compare: tuple[str, ...] = ()
    pooling: str | None = None
    limits: Limits = LIMITS
    name: str | None = None
    allow_pickle: bool = False
    engine_parameters: Mapping[str, str] = field(default_factory=dict)
    key: SigningKey | None = None


@dataclass(frozen=True)
class Converted:
    """A finished bundle and how far its answers are from the reference's.

    `compared` is the table of latencies; `refused` what was said of each faster precision that did
    not pass; `gain` how much faster the allowed one is, None where none was allowed or it did not
    pass; `remarks` what else its owner is to know.
    """

    bundle: Bundle
    parity: ParityReport | ContinuationReport | NotRun
    compared: Compared = field(default_factory=Compared)
    refused: tuple[str, ...] = ()
    gain: Gain | None = None
    remarks: tuple[str, ...] = ()


def convert(
    request: ConvertRequest,
    target: Path,
    progress: Progress,
    measuring: RoundReport = lambda shape, done, total: None,
) -> Converted:
    """Make the bundle folder `target`. Raises ConversionRefused; then nothing is left behind.

    `measuring` hears of the rounds of what is measured: `request.compare`, `request.allow`. The
    bundle is also made where the former fails or is ended by KeyboardInterrupt, which is not raised
    then: `compared` says so.
    """
    target = place_of(target)
    precisions, samples = _checked(request, target)
    progress("open", request.name or request.model)
    if request.task == GENERATION:
        return _language_model(request, precisions, target, progress)
    source = open_source(
        request.model,
        task=request.task,
        revision=request.revision,
        name=request.name,
        allow_pickle=request.allow_pickle,
        pooling=request.pooling,
    )
    buckets = request.buckets or ladder_of(request.engine)
    tokens = tokens_of(source, request.max_length, buckets)
    with scratch_beside(target, ".convert.") as scratch:
        workshop = _workshop(request, source, tokens, scratch, samples, progress)
        refused: list[str] = []

        def say(line: str) -> None:
            refused.append(line)
            progress("parity", line)

        chosen = chosen_engine(workshop, request.engine, precisions, say)
        if request.allow:
            chosen = faster_engine(workshop, chosen, request.allow, say, measuring)
        files, parity = chosen.files, chosen.parity
        compared = _compared(request, workshop, measuring)
        content = BundleContent(
            endpoint=workshop.case.endpoint,
            tokenizer=source.tokenizer,
            engine=files,
            golden=_golden(source, workshop.case.endpoint, files),
            parity={**asdict(parity), **_measured(compared.rows, chosen.gain)},
            source=_origin(source),
            parity_set=workshop.case.shapes.kept(
                files.precision, TOLERANCES[files.precision].of_shapes
            ),
        )
        progress("bundle", str(target))
        bundle = write_bundle(content, target, request.key)
        remarks = remarks_of(source, tokens, request.max_length)
        return Converted(bundle, parity, compared, tuple(refused), chosen.gain, remarks)


def _language_model(
    request: ConvertRequest, precisions: tuple[str, ...], target: Path, progress: Progress
) -> Converted:
    if request.engine not in GENERATION_BACKENDS or request.compare:
        raise ConversionRefused(
            f"task {GENERATION} is served by --engine {' or '.join(GENERATION_BACKENDS)}, and "
            "--compare is not for it"
        )
    source = open_language_model(
        request.model,
        revision=request.revision,
        name=request.name,
        max_length=request.max_length,
        allow_pickle=request.allow_pickle,
        engine=request.engine,
    )
    if request.engine == VLLM:
        bundle, report = convert_for_vllm(
            source, precisions[0], request.limits, target, progress, request.engine_parameters,
            request.key,
        )  # fmt: skip
        return Converted(bundle, report, remarks=source.remarks)
    done = convert_language_model(
        source, precisions, request.limits, target, progress, request.engine_parameters,
        request.key,
    )  # fmt: skip
    return Converted(done.bundle, done.parity, refused=done.refused, remarks=source.remarks)


def _checked(request: ConvertRequest, target: Path) -> tuple[tuple[str, ...], Bodies | None]:
    """The precisions to try and the calibration texts; what is wrong is refused before any work."""
    _check_installed()
    _check_allowed(request)
    if request.engine_parameters and request.task != GENERATION:
        raise ConversionRefused(
            f"{', '.join(request.engine_parameters)}: engine parameters are for --task "
            f"{GENERATION}, got --task {request.task or AUTO}"
        )
    if request.pooling is not None and request.task == GENERATION:
        raise ConversionRefused(no_vector(request.pooling))
    if VLLM in (request.engine, *request.compare) and request.task != GENERATION:
        raise ConversionRefused(NOT_VLLM)
    if "tensorrt" in (request.engine, *request.compare):
        require_machine()
    check_target(target)
    precisions = _precisions(request)
    return precisions, read_bodies(request.calibration) if request.calibration else None


def _workshop(
    request: ConvertRequest,
    source: ModelSource,
    tokens: Tokens,
    folder: Path,
    samples: Bodies | None,
    progress: Progress,
) -> Workshop:
    progress("export", f"{source.task}, {source.model_type}")
    graph = None if ENGINES[request.engine].program else onnx_graph(source, folder)
    batch = request.batch or (
        1,
        min(8, request.limits.max_batch_size),
        request.limits.max_batch_size,
    )
    limits = replace(
        limits_of(source.task, request.limits), max_batch_size=batch[2],
        max_call_tokens=ENGINES[request.engine].call_tokens,
    )  # fmt: skip
    endpoint = endpoint_of(source, graph or tensors_of(source), tokens, limits)
    endpoint = replace(endpoint, golden=golden_body(endpoint))
    case = prepare_case(source, endpoint)
    feeds = feeds_of(endpoint, source.tokenizer.content, samples or case.bodies)
    shapes = Shapes(tokens.buckets, batch, feeds)
    others = lengths_of_others(request.engine, request.compare, request.seq_len, tokens.max_length)
    return Workshop(source, folder, case, shapes, progress, graph, others)


def _compared(request: ConvertRequest, workshop: Workshop, measuring: RoundReport) -> Compared:
    if not request.compare:
        return Compared()

    def prepare() -> Comparison:
        shapes = shapes_of(workshop.case.endpoint, request.seq_len, request.batch)
        return Comparison(
            workshop.source, workshop.graph, workshop.case, workshop.shapes.feeds, shapes
        )

    asked = None if request.precision == AUTO else request.precision
    return compare_engines(prepare, request.compare, asked, workshop.build, measuring)


def _origin(source: ModelSource) -> dict[str, Any]:
    return {"model": source.name, "revision": source.revision, "model_type": source.model_type}


def _measured(latencies: Sequence[Latency], gain: Gain | None) -> dict[str, Any]:
    """What the manifest keeps of it, and nothing where none was asked for."""
    return {
        **({"latencies_ms": [asdict(row) for row in latencies]} if latencies else {}),
        **({"gain": asdict(gain)} if gain else {}),
    }


def _check_allowed(request: ConvertRequest) -> None:
    """Raises ConversionRefused where there is no choice, or none of what is allowed."""
    if request.allow is None:
        return
    choose_precision(request.engine, request.allow)
    if request.precision not in (None, AUTO) or request.task == GENERATION:
        raise ConversionRefused(
            f"--allow {request.allow} is for --precision auto of the encoder tasks; leave it out, "
            f"or name --precision {request.allow}"
        )


def _precisions(request: ConvertRequest) -> tuple[str, ...]:
    """What to try in turn: only the one asked for, or from the fastest here to the safest."""
    asked = None if request.precision == AUTO else request.precision
    first = choose_precision(request.engine, asked)
    if asked is not None:
        return (first,)
    safer = tuple(TOLERANCES)[: tuple(TOLERANCES).index(first)]
    able = ENGINES[request.engine].precisions
    return (first, *(name for name in reversed(safer) if name in able))


def _golden(source: ModelSource, endpoint: Endpoint, files: EngineFiles) -> Golden:
    """The golden body and this engine's own answer, which parity has found to be right."""
    local = LocalEndpoint(endpoint, source.tokenizer.content, open_engine(files))
    assert endpoint.golden is not None
    answer = local.answer(endpoint.golden)
    return Golden(endpoint.golden, answer, TOLERANCES[files.precision].difference)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConversionRefused(f"converting needs {', '.join(missing)}; install them {INSTALL}")
