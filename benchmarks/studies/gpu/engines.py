"""The bundles that are checked, made by convert's own parity, and their engines alone."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report.gpu_page import REMARKS
from benchmarks.runs.engine_process import RawEngine
from benchmarks.runs.raw_engine import PADDED
from benchmarks.servers import machine
from benchmarks.servers.encoders import MINILM, Encoder
from benchmarks.servers.site import BUILD
from benchmarks.servers.texts import CLASS_BOUNDS, CLASS_WEIGHTS
from benchmarks.studies.gpu import needs
from transformer_serving.desk.bench.bounds import spread
from transformer_serving.desk.builders.table import ENGINES
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.demo import converted_hash
from transformer_serving.desk.demo.kept import Recipe, bring_up_to_date
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.check import ParityReport
from transformer_serving.desk.step_report import StepReport

BUNDLES = BUILD / "gpu" / "bundles"
# The calls that an engine is asked alone: texts and tokens. And texts of the mixed load at once.
SHAPES = ((1, 16), (1, 128), (32, 128))
MIXED = 64
PADS = (16, 32, 64, 128, 256)
_ROUNDS = 3
_SECONDS = 1.0
# Of the folder of one engine and precision.
_BUNDLE = "bundle"
# Other versions of these make other bundles: an exported program is of one torch alone.
_CONVERTERS = ("torch", "transformers", "onnxruntime", "tensorrt")
# Texts of a call that answers are proven for. A CPU takes minutes for as many as a GPU is given.
_ON_GPU, _ON_CPU = (1, 32, 64), (1, 4, 8)


def precisions(engine: str) -> tuple[str, ...]:
    """Those that a GPU computes; int8 is a CPU's."""
    return tuple(one for one in ENGINES[engine].precisions if one != "int8")


def parity(
    engine: str, precision: str, report: StepReport, encoder: Encoder = MINILM
) -> dict[str, Any]:
    """Convert it, and what its answers came to; a refusal is a finding, not a failure."""
    shutil.rmtree(_target(engine, precision, encoder), ignore_errors=True)
    begun = time.monotonic()
    row: dict[str, Any] = {"model": encoder.name, "engine": engine, "precision": precision}
    try:
        found = _bring_up_to_date(engine, precision, encoder, report)
    except ConversionRefused as error:
        return {**row, "refused": str(error)}
    assert found is not None
    return {
        **row,
        "texts": found.texts,
        "longest": found.longest_tokens,
        "difference": found.largest_difference,
        "tolerance": found.tolerance,
        "cosine": found.lowest_cosine,
        "seconds": round(time.monotonic() - begun, 1),
    }


def bundle_of(engine: str, precision: str, report: StepReport, encoder: Encoder = MINILM) -> Bundle:
    """The bundle of an earlier step if it would be the same today, or made now. Raises
    ConversionRefused."""
    _bring_up_to_date(engine, precision, encoder, report)
    return open_bundle(_target(engine, precision, encoder) / _BUNDLE)


def _target(engine: str, precision: str, encoder: Encoder) -> Path:
    return BUNDLES / encoder.name / f"{engine}-{precision}"


def _bring_up_to_date(
    engine: str, precision: str, encoder: Encoder, report: StepReport
) -> ParityReport | None:
    """What its answers came to where it was converted, None where it was there. Raises
    ConversionRefused."""
    source = encoder.folder(report)
    found: list[ParityReport] = []
    request = ConvertRequest(
        str(source), engine=engine, precision=precision, name=encoder.name,
        buckets=PADS, max_length=PADS[-1], batch=_ON_CPU if needs.gpu() else _ON_GPU,
    )  # fmt: skip

    def build(folder: Path) -> None:
        shutil.rmtree(folder / _BUNDLE, ignore_errors=True)
        done = convert(
            request, folder / _BUNDLE, lambda step, _: report(f"{engine} {precision}: {step}")
        )
        assert isinstance(done.parity, ParityReport)
        found.append(done.parity)

    seed = f"{request.batch} {needs.ask_gpus().gpus} {machine.packages(_CONVERTERS)}"
    recipe = Recipe((_BUNDLE,), converted_hash(source, seed), build)
    bring_up_to_date(_target(engine, precision, encoder), recipe, report)
    return found[0] if found else None


def fastest(engine: str) -> str:
    return ENGINES[engine].fastest()


def mixed_lengths() -> list[int]:
    """Tokens of the mixed load's texts, the same at every run."""
    source = random.Random(7)
    classes = source.choices(CLASS_BOUNDS, CLASS_WEIGHTS, k=MIXED)
    return [source.randint(low, high) for low, high in classes]


def alone(
    engine: str, precision: str, backend: str, report: StepReport, encoder: Encoder = MINILM
) -> dict[str, Any]:
    """Milliseconds of a call and texts a second, by call; medians over rounds in turns. And what
    the engine says is slower than it might be."""
    folder = bundle_of(engine, precision, report, encoder).model_folder
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_raw(folder, backend))]
        if opened[0].packed:
            opened.append(stack.enter_context(_raw(folder, PADDED)))
        calls = {
            name if raw.packed else f"{name}, padded": one
            for raw in opened
            for name, one in _calls(raw)
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
        # The first round warms up.
        for number in range(_ROUNDS + 1):
            report(f"{engine} {precision} alone: round {number} of {_ROUNDS}")
            for name, measure in calls.items():
                row = measure(_SECONDS)
                if number:
                    found[name].append(row)
        remarks = list(dict.fromkeys(line for raw in opened for line in raw.remarks))
    figures: dict[str, Any] = {
        name: {key: spread([row[key] for row in rows]).median for key in rows[0]}
        for name, rows in found.items()
    }
    return figures | {REMARKS: remarks}


def _calls(raw: RawEngine) -> Iterator[tuple[str, Callable[[float], dict[str, float]]]]:
    """By a call's name, what measures it for some seconds."""
    lengths = mixed_lengths()
    for texts, tokens in SHAPES:
        yield f"{texts}x{tokens}", partial(raw.measure, texts, tokens)
    yield f"{MIXED} mixed, one call", partial(raw.measure_mixed, lengths, PADS[-1:])
    yield f"{MIXED} mixed, by length", partial(raw.measure_mixed, lengths, PADS)


@contextlib.contextmanager
def _raw(folder: Path, backend: str) -> Iterator[RawEngine]:
    with tempfile.TemporaryDirectory(prefix="check-gpu-") as scratch:
        raw = RawEngine(folder, Path(scratch), backend)
        try:
            yield raw
        finally:
            raw.close()
