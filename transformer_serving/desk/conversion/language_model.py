"""From a causal language model to a bundle: open, export, build, compare, write.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.endpoint import (
    Endpoint,
    InputTensor,
    Limits,
    OutputTensor,
    Tokens,
)
from transformer_serving.contract.engine_parameters import KV_PRECISION
from transformer_serving.contract.generation import INPUT_IDS, LOGPROBS, STATE, TOKEN_IDS
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.manifest import Golden
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.language_model import (
    build_language_model,
    check_engine_parameters,
    open_language_model_engine,
    precisions_with_cache,
)
from transformer_serving.desk.builders.room import room_told
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.signing import SigningKey
from transformer_serving.desk.bundle.writer import BundleContent, write_bundle
from transformer_serving.desk.conversion.workshop import Progress
from transformer_serving.desk.export.language_model import export_language_model
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.continuations import (
    ContinuationReport,
    Continuations,
    Reference,
    compare_continuations,
    prepare_continuations,
)
from transformer_serving.desk.parity.golden_continuation import (
    GoldenContinuation,
    check_golden_fits,
    continued_alike,
    golden_continuations,
    surest,
)
from transformer_serving.desk.scratch import scratch_beside
from transformer_serving.desk.source.language_model import LanguageModelSource
from transformer_serving.engine.proof.greedy_set import GreedySet

HEAD = "generation"


@dataclass(frozen=True)
class ConvertedLanguageModel:
    """A finished bundle; `refused` is what was said of each faster precision that did not pass."""

    bundle: Bundle
    parity: ContinuationReport
    refused: tuple[str, ...]


def convert_language_model(
    source: LanguageModelSource,
    precisions: Sequence[str],
    limits: Limits,
    target: Path,
    progress: Progress,
    parameters: Mapping[str, str] | None = None,
    key: SigningKey | None = None,
) -> ConvertedLanguageModel:
    """Make the bundle folder `target`, of the first of `precisions` that passes.

    `parameters` of the engine are those that are not left to the kit; parity is asked with them.
    Raises ConversionRefused; then nothing is left behind.
    """
    asked = parameters or {}
    check_engine_parameters(asked, source.generation)
    able = precisions_with_cache(precisions, asked)
    check_golden_fits(source)
    with scratch_beside(target, ".convert.") as scratch:
        positions = source.generation.max_positions
        progress("export", f"{GENERATION}, {source.model_type}, up to {positions} positions")
        exported = _Exported(source, export_language_model(source), asked)
        reference = Reference(source)
        case = prepare_continuations(source, reference)
        texts = golden_continuations(source, reference)
        refused: list[str] = []
        for precision in able:
            files = _built(exported, precision, scratch, progress)
            report, golden = _compared(case, texts, files, progress)
            if golden is not None:
                break
            refused.append(_described(report))
            progress("parity", refused[-1])
        if golden is None:
            raise ConversionRefused(f"{refused[-1]}; {_advice(report.precision, asked)}")
        parity = {**asdict(report), "shapes": _shapes(case, report)}
        kept = case.kept(report.precision)
        content = content_of(source, limits, files, parity, golden.golden, kept)
        progress("bundle", str(target))
        bundle = write_bundle(content, target, key)
        return ConvertedLanguageModel(bundle, report, tuple(refused))


def content_of(
    source: LanguageModelSource,
    limits: Limits,
    files: EngineFiles,
    parity: Mapping[str, Any],
    golden: Golden,
    kept: GreedySet,
) -> BundleContent:
    """What the bundle is written of."""
    return BundleContent(
        endpoint=endpoint_of(source, limits),
        tokenizer=source.tokenizer,
        engine=files,
        golden=golden,
        parity=parity,
        source={
            "model": source.name,
            "revision": source.revision,
            "model_type": source.model_type,
        },
        parity_set=kept,
    )


def endpoint_of(source: LanguageModelSource, limits: Limits) -> Endpoint:
    """endpoint.json, its version and hash still empty."""
    tokenizer, positions = source.tokenizer, source.generation.max_positions
    return Endpoint(
        bundle_version=0,
        bundle_hash="",
        task=GENERATION,
        head=HEAD,
        inputs=(InputTensor(INPUT_IDS, role="input_ids", dtype="INT32"),),
        outputs=(
            OutputTensor(TOKEN_IDS, "INT32", (-1,)),
            OutputTensor(LOGPROBS, "FP32", (-1,)),
            OutputTensor(STATE, "INT32", (3,)),
        ),
        tokens=Tokens(
            max_length=positions,
            buckets=(positions,),
            pad_id=tokenizer.pad_id,
            pad_token=tokenizer.pad_token,
            pad_type_id=tokenizer.pad_type_id,
            padding_side="right",
            truncate=False,
            truncation_side="left",
            unk_id=tokenizer.unk_id,
            split_special_tokens=tokenizer.split_special_tokens,
            known_ids=tokenizer.known_ids(source.generation.vocabulary),
        ),
        # Each prompt is a sequence of its own: the engine is called with one at a time.
        limits=replace(limits, max_batch_size=1, max_call_tokens=None),
        classification=None,
        embedding=None,
        masks=None,
        generation=source.generation,
    )


@dataclass(frozen=True)
class _Exported:
    """What an engine of each precision is built from; `asked` are parameters."""

    source: LanguageModelSource
    model: Any
    asked: Mapping[str, str]


def _built(exported: _Exported, precision: str, scratch: Path, progress: Progress) -> EngineFiles:
    progress("build", f"openvino {precision}")
    folder = scratch / precision
    folder.mkdir()
    with room_told(scratch.parent):
        return build_language_model(
            precision, exported.model, exported.source, folder, exported.asked
        )


def _compared(
    case: Continuations,
    texts: Sequence[GoldenContinuation],
    files: EngineFiles,
    progress: Progress,
) -> tuple[ContinuationReport, GoldenContinuation | None]:
    """What is said of the engine, and what it is asked for ever after, None where it is refused.

    Parity lets a lesser precision take another token where two are about as likely; the golden
    answer has to be the same, whenever it is asked.
    """
    longest = max(len(row.prompt) for row in case.rows)
    progress("parity", f"{len(case.rows)} prompts of up to {longest} tokens")
    with open_language_model_engine(files) as engine:
        report = compare_continuations(case, files.precision, engine)
        if report.fault is not None:
            return report, None
        alike = continued_alike(texts, engine)
    if not alike:
        fault = f"it goes on otherwise behind each of the {len(texts)} texts for a golden request"
        return replace(report, fault=fault), None
    return report, surest(alike, case.margin_of(files.precision))


def _shapes(case: Continuations, report: ContinuationReport) -> dict[str, Any]:
    """As other bundles' manifests have it: what the engine was asked."""
    return {
        "calls": 2 * len(case.rows),
        "lengths": len({len(row.prompt) for row in case.rows}),
        "largest_difference": report.largest_difference,
        "fault": report.fault,
    }


def _described(report: ContinuationReport) -> str:
    return (
        f"{report.precision} does not continue as {report.reference} does: {report.fault}; "
        f"{report.equal_tokens} of {report.tokens} tokens are the same"
    )


def _advice(precision: str, asked: Mapping[str, str]) -> str:
    if KV_PRECISION.name in asked:
        return f"leave {KV_PRECISION.flag} {asked[KV_PRECISION.name]} out, or name a more exact one"
    if precision == "fp32":
        return (
            "the exported graph does not compute what the model does; convert one of the families "
            "of language models in docs/models.md"
        )
    return "convert with --precision fp32, or auto for the fastest that passes"
