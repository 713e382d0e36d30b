"""Whether the built engine answers as the reference does, on fixed texts of many lengths.

Compared are final answers, as a caller gets them: through preprocess, the engine's own file and
back, against transformers' pipelines and sentence-transformers. Each request goes alone and in
padded batches of mixed lengths; a lost mask or a wrong weight shows in one or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from preprocess.tokens import library_of
from transformer_serving.contract.endpoint import Endpoint, Tokens
from transformer_serving.contract.error_line import named_line
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.sample_rows import (
    asked_lengths,
    encoded_bodies,
    kept_lengths,
    rows_of,
)
from transformer_serving.desk.builders.table import open_engine
from transformer_serving.desk.failure import ConversionRefused, PrecisionRefused
from transformer_serving.desk.parity.bodies import parity_bodies
from transformer_serving.desk.parity.calls import answers
from transformer_serving.desk.parity.distance import Distance, distance
from transformer_serving.desk.parity.engine_call import opened_or_refused
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint, short_enough
from transformer_serving.desk.parity.padding import change_by_padding
from transformer_serving.desk.parity.reference import (
    reference_answers,
    reference_call,
    reference_name,
    reference_rows,
)
from transformer_serving.desk.parity.shapes import ShapeCase, ShapeReport, shape_case
from transformer_serving.desk.parity.texts import parity_texts, with_special
from transformer_serving.desk.source.model import ModelSource
from transformer_serving.engine.proof import parity_set as proof

# So many requests tell whether a model heeds its mask.
_PADDED = 8


@dataclass(frozen=True)
class Tolerance:
    """What a precision may cost: of a score or vector element, of a vector's direction, of the
    decisions (labels, spans, entities, first ranks) that are the reference's, and of a logit as a
    part of the largest one."""

    difference: float
    cosine: float
    agreement: float
    raw: float

    @property
    def of_shapes(self) -> proof.Tolerance:
        """What a proof needs of it: it compares tensors, so it knows no decisions."""
        return proof.Tolerance(self.difference, self.cosine, self.raw)


# From the safest to the one that costs most; a decision is only another one where its score is
# further from the best than the difference allowed.
TOLERANCES = {
    "fp32": Tolerance(difference=1e-4, cosine=0.999999, agreement=1.0, raw=1e-3),
    "fp16": Tolerance(difference=1e-2, cosine=0.9999, agreement=1.0, raw=2e-2),
    "bf16": Tolerance(difference=3e-2, cosine=0.9995, agreement=0.98, raw=6e-2),
    "int8": Tolerance(difference=1.5e-1, cosine=0.98, agreement=0.95, raw=2e-1),
}


@dataclass(frozen=True)
class WorstCase:
    """Where the difference was largest; texts are named by index and length, never shown."""

    text: int
    tokens: int
    batch: int


@dataclass(frozen=True)
class ParityReport:
    """`largest_difference` of a score or vector element, relative where they are larger than 1.

    `label_agreement` is the part of the reference's decisions that are the engine's too, None for
    vectors; `lowest_cosine` is None for scores. `texts` counts requests. `shapes` is what single
    shapes came to, None where they were not asked.
    """

    reference: str
    precision: str
    texts: int
    longest_tokens: int
    largest_difference: float
    tolerance: float
    label_agreement: float | None
    lowest_cosine: float | None
    worst: WorstCase
    shapes: ShapeReport | None = None


@dataclass(frozen=True)
class Case:
    """What is asked of every engine of the model `source`, and what the reference answers."""

    source: ModelSource
    endpoint: Endpoint
    tokenizer_json: bytes
    bodies: Sequence[Mapping[str, Any]]
    expected: Sequence[Any]
    shapes: ShapeCase


def prepare_case(source: ModelSource, endpoint: Endpoint) -> Case:
    """The fixed requests of the endpoint's task, and the reference's answers to them.

    Raises ConversionRefused where the reference has none.
    """
    texts = texts_of(source.tokenizer.content, endpoint.tokens)
    every = parity_bodies(endpoint, texts)
    bodies = short_enough(endpoint, source.tokenizer.content, every)
    try:
        expected = reference_answers(source, endpoint, bodies)
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ConversionRefused(
            f"{reference_name(endpoint)} itself cannot answer with this model "
            f"({named_line(error)}); the files may not belong together, such as a "
            f"tokenizer with more pieces than the model's {source.vocabulary}, or a text may not "
            f"be of {endpoint.tokens.max_length} tokens: name --max-length"
        ) from error
    # Of those that are too long the rows are cut.
    shapes = _shapes(source, endpoint, every)
    return Case(source, endpoint, source.tokenizer.content, bodies, expected, shapes)


def _shapes(
    source: ModelSource, endpoint: Endpoint, bodies: Sequence[Mapping[str, Any]]
) -> ShapeCase:
    """Rows of the lengths at which engines are asked, and the model's own outputs to each."""
    encoded = encoded_bodies(endpoint, source.tokenizer.content, bodies)
    buckets = endpoint.tokens.buckets
    lengths = {*kept_lengths(buckets), *asked_lengths(buckets, source.head_size)}
    rows = rows_of(endpoint.masks, encoded, sorted(lengths))
    answers = reference_rows(source, endpoint, rows)
    name = f"the model itself in float32, by {reference_name(endpoint)}"
    return shape_case(endpoint, rows, answers, name, source.head_size)


def texts_of(tokenizer_json: bytes, tokens: Tokens) -> tuple[str, ...]:
    """The fixed texts, their lengths counted by the model's own tokenizer, and one with its special
    tokens."""
    library = library_of(tokenizer_json, tokens)
    plain = parity_texts(lambda text: len(library.encode(text).ids), tokens.max_length)
    return (*plain, with_special(library, tokens))


def compare(case: Case, files: EngineFiles) -> ParityReport:
    """The engine's answers against the reference's, however far they are.

    Raises ConversionRefused for an engine that does not load or run here.
    """
    call = opened_or_refused(files, open_engine)
    local = LocalEndpoint(case.endpoint, case.tokenizer_json, call)
    works = [local.work(body) for body in case.bodies]
    allowed = TOLERANCES[files.precision].difference
    found = []
    for at, answer, batch in answers(local, works):
        far = distance(case.endpoint.task, case.expected[at], answer, allowed)
        tokens = max(len(text.ids) for text in works[at].encoded)
        found.append((far, WorstCase(at, tokens, batch)))
    shapes = case.shapes.prove(call, files.precision, TOLERANCES[files.precision].of_shapes)
    return replace(_report(case, files.precision, found), shapes=shapes)


def _report(
    case: Case, precision: str, found: Sequence[tuple[Distance, WorstCase]]
) -> ParityReport:
    far, worst = max(found, key=lambda pair: pair[0].difference)
    agreements = [one.agreement for one, _ in found if one.agreement is not None]
    cosines = [one.cosine for one, _ in found if one.cosine is not None]
    return ParityReport(
        reference=reference_name(case.endpoint),
        precision=precision,
        texts=len(case.bodies),
        longest_tokens=max(where.tokens for _, where in found),
        largest_difference=far.difference,
        tolerance=TOLERANCES[precision].difference,
        label_agreement=sum(agreements) / len(agreements) if agreements else None,
        lowest_cosine=min(cosines, default=None),
        worst=worst,
    )


def within(report: ParityReport) -> bool:
    """Whether the report is inside its precision's tolerance."""
    tolerance = TOLERANCES[report.precision]
    cosine = report.lowest_cosine if report.lowest_cosine is not None else 1.0
    agreement = report.label_agreement if report.label_agreement is not None else 1.0
    return (
        report.largest_difference <= tolerance.difference
        and cosine >= tolerance.cosine
        and agreement >= tolerance.agreement
        and (report.shapes is None or report.shapes.fault is None)
    )


def refuse_when_over(report: ParityReport, case: Case | None = None) -> None:
    """Raise ConversionRefused, with the worst case, for a report over its precision's tolerance; it
    says where no engine is to blame, for which it asks the model of the `case` itself."""
    if not within(report):
        raise ConversionRefused(f"{described(report)}; {_advice(report, case)}")


def described(report: ParityReport) -> str:
    """What is over the tolerance, in one sentence without its full stop."""
    tolerance = TOLERANCES[report.precision]
    parts = [
        f"largest difference {report.largest_difference:.2g} (allowed {tolerance.difference:g})"
    ]
    if report.lowest_cosine is not None:
        parts.append(f"lowest cosine {report.lowest_cosine:.7f} (allowed {tolerance.cosine:g})")
    if report.label_agreement is not None:
        parts.append(
            f"labels agree on {report.label_agreement:.1%} (allowed {tolerance.agreement:.0%})"
        )
    worst, shapes = report.worst, report.shapes
    return (
        f"{report.precision} does not answer as {report.reference} does: {', '.join(parts)}; worst "
        f"is text {worst.text} with {worst.tokens} tokens in a batch of {worst.batch}"
        + (f"; {shapes.fault}" if shapes is not None and shapes.fault else "")
    )


def _advice(report: ParityReport, case: Case | None) -> str:
    if report.precision != "fp32":
        return "convert with --precision fp32, or auto for the fastest that passes"
    if report.shapes is not None and report.shapes.fault is None:
        return (
            f"the engine computes what the model does, and {report.reference} reads some requests "
            "otherwise: compare the prompts, lengths, tokenizer settings and labels that the "
            "model's files say, and correct them"
        )
    change = 0.0 if case is None else _change_of_the_model(case)
    if change > TOLERANCES["fp32"].raw:
        return (
            f"the model itself, as transformers computes it, changes by {change:.2g} of its "
            "largest number when a text is padded: it does not heed its attention mask, so that "
            "texts of different lengths cannot share a call, whatever the --engine; convert "
            "another model"
        )
    return "the exported graph does not compute what the model does; try the other --engine"


def _change_of_the_model(case: Case) -> float:
    """By padding, of the model's own module: no engine is to blame for it."""
    endpoint, content = case.endpoint, case.tokenizer_json
    encoded = encoded_bodies(endpoint, content, case.bodies[:_PADDED])
    call = reference_call(case.source, endpoint)
    return change_by_padding(endpoint, endpoint.tokens.padding_side, content, call, encoded)


def choose(
    precisions: Sequence[str],
    build: Callable[[str], EngineFiles],
    case: Case,
    say: Callable[[str], None],
) -> tuple[EngineFiles, ParityReport]:
    """The first of `precisions` whose engine is made, runs and passes.

    Raises ConversionRefused when none does, and what no other precision would change.
    """
    for precision in precisions[:-1]:
        try:
            files = build(precision)
            report = compare(case, files)
        except PrecisionRefused as error:
            said = str(error)
        else:
            if within(report):
                return files, report
            said = described(report)
        say(f"{said}; trying the next safer precision")
    files = build(precisions[-1])
    report = compare(case, files)
    refuse_when_over(report, case)
    return files, report
