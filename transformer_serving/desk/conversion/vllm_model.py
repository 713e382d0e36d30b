"""From a causal language model to a bundle for Triton's vLLM backend.

vLLM takes a GPU, so no engine is run here: the bundle has what transformers' own `generate` writes,
and the controller asks the engine for it on the machine that serves.

Tested by tests/test_vllm_bundle.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_serving.contract.endpoint import Limits
from transformer_serving.desk.builders.language_model import check_engine_parameters
from transformer_serving.desk.builders.vllm import build_vllm
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.signing import SigningKey
from transformer_serving.desk.bundle.writer import write_bundle
from transformer_serving.desk.conversion.language_model import content_of
from transformer_serving.desk.parity.continuations import (
    REFERENCE,
    TOLERANCES,
    Reference,
    prepare_continuations,
)
from transformer_serving.desk.parity.golden_continuation import (
    GoldenContinuation,
    check_golden_fits,
    golden_continuations,
    surest,
)
from transformer_serving.desk.scratch import scratch_beside
from transformer_serving.desk.source.language_model import LanguageModelSource
from transformer_serving.engine.proof.greedy_set import GreedySet

_NOT_RUN = (
    "not run at convert: vLLM takes a GPU; the controller asks it for the reference's tokens where "
    "it is served, before it serves"
)


@dataclass(frozen=True)
class NotRun:
    """What a manifest has in the place of parity figures: what the engine is still to be asked."""

    reference: str
    precision: str
    prompts: int
    longest_tokens: int
    tokens: int
    tolerance: float
    unverified: str


def convert_for_vllm(
    source: LanguageModelSource,
    precision: str,
    limits: Limits,
    target: Path,
    progress: Callable[[str, str], None],
    given: Mapping[str, str],
    key: SigningKey | None = None,
) -> tuple[Bundle, NotRun]:
    """Make the bundle folder `target`. Raises ConversionRefused; then nothing is left behind."""
    check_engine_parameters(given, source.generation)
    check_golden_fits(source)
    with scratch_beside(target, ".convert.") as scratch:
        progress("build", f"vllm {precision}")
        files = build_vllm(precision, source, scratch, given)
        reference = Reference(source)
        case = prepare_continuations(source, reference, as_texts=True)
        kept = case.kept(precision)
        progress("parity", f"{len(kept.rows)} prompts for where it is served; vLLM is not run here")
        golden = surest(golden_continuations(source, reference), case.margin_of(precision))
        report = _report(kept, golden)
        content = content_of(source, limits, files, asdict(report), golden.golden, kept)
        progress("bundle", str(target))
        return write_bundle(content, target, key), report


def _report(kept: GreedySet, golden: GoldenContinuation) -> NotRun:
    return NotRun(
        reference=REFERENCE,
        precision=kept.precision,
        prompts=len(kept.rows),
        longest_tokens=max(len(row.prompt) for row in kept.rows),
        tokens=sum(len(row.continuation) for row in kept.rows),
        tolerance=TOLERANCES[kept.precision].difference,
        unverified="; ".join([_NOT_RUN, *_close(kept, golden)]),
    )


def _close(kept: GreedySet, golden: GoldenContinuation) -> Iterator[str]:
    """What is to be said where the engine may well answer the golden request otherwise."""
    far = golden.margin / kept.spread
    if far <= kept.tolerance.margin:
        yield (
            f"the golden answer's closest choice was {far:.2g} of the spread above the next, and "
            f"an engine of {kept.precision} may take the next up to {kept.tolerance.margin:g}: if "
            "deploy says that it answers otherwise, convert with another --precision"
        )
