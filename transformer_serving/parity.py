"""Whether the built engine answers as the reference does, on fixed texts of many lengths.

Compared are final answers, as a caller gets them: scores and labels against transformers'
pipeline, vectors against sentence-transformers. Each text goes alone and in padded batches of
mixed lengths; a mask that is lost or a weight that is wrong shows in one or the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.endpoint import Tokens
from transformer_serving.local_engine import TokenRow, open_engine, run_rows, tokenize
from transformer_serving.model_source import ModelSource
from transformer_serving.optimize import EngineFiles
from transformer_serving.parity_texts import parity_texts
from transformer_serving.reference import REFERENCES, reference_answers
from transformer_serving.refusal import ConversionRefused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.float64]

_BATCH = 8
# A prime step through the texts mixes short and long ones in each batch, the same way every time.
_STRIDE = 13


@dataclass(frozen=True)
class Tolerance:
    """What a precision may cost: of one score or vector element, and of a vector's direction."""

    difference: float
    cosine: float
    safer: str | None


TOLERANCES = {
    "fp32": Tolerance(difference=1e-4, cosine=0.999999, safer=None),
    "bf16": Tolerance(difference=3e-2, cosine=0.9995, safer="fp32"),
}


@dataclass(frozen=True)
class WorstCase:
    """Where the difference was largest; texts are named by index and length, never shown."""

    text: int
    tokens: int
    batch: int


@dataclass(frozen=True)
class ParityReport:
    """`largest_difference` of a score or vector element; agreement and cosine are of all texts.

    `label_agreement` is None for embeddings, `lowest_cosine` None for classification.
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


def check_parity(
    source: ModelSource, files: EngineFiles, tokens: Tokens, inputs: Sequence[str]
) -> ParityReport:
    """Compare the engine with the reference. Raises ConversionRefused when over the tolerance."""
    texts = texts_for(source, tokens.max_length)
    expected = reference_answers(source, texts, tokens.max_length)
    report = compare(source, files, tokens, inputs, texts, expected)
    refuse_when_over(report)
    return report


def texts_for(source: ModelSource, max_length: int) -> tuple[str, ...]:
    """The fixed texts, their lengths counted by the model's own tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(source.tokenizer.content)
    return parity_texts(lambda text: len(tokenizer.encode(text).ids), max_length)


def compare(
    source: ModelSource,
    files: EngineFiles,
    tokens: Tokens,
    inputs: Sequence[str],
    texts: Sequence[str],
    expected: Rows,
) -> ParityReport:
    """The engine's answers to `texts` against the reference's, float [texts, width]; no refusal."""
    rows = tokenize(source, texts, tokens.max_length)
    call = open_engine(files)
    runs: list[tuple[list[int], Rows]] = []
    for members in (*_singles(len(rows)), *_mixed_batches(len(rows))):
        output = run_rows(call, [rows[at] for at in members], tokens, inputs)
        runs.append((members, final_answers(source, output)))
    return _report(source, files.precision, rows, expected, runs)


def final_answers(source: ModelSource, output: NDArray[np.float32]) -> Rows:
    """Scores of logits, as transformers' pipeline makes them; vectors are final already."""
    import numpy as np

    values = output.astype(np.float64)
    if source.task == "sentence-embedding":
        return values
    if source.problem_type == "multi_label":
        return np.asarray(1 / (1 + np.exp(-values)))
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _singles(count: int) -> list[list[int]]:
    return [[index] for index in range(count)]


def _mixed_batches(count: int) -> list[list[int]]:
    step = _STRIDE if count % _STRIDE else _STRIDE + 4
    order = [index * step % count for index in range(count)]
    return [order[start : start + _BATCH] for start in range(0, count, _BATCH)]


def _report(
    source: ModelSource,
    precision: str,
    rows: Sequence[TokenRow],
    expected: Rows,
    runs: Sequence[tuple[list[int], Rows]],
) -> ParityReport:
    import numpy as np

    tolerance = TOLERANCES[precision].difference
    differences = [np.abs(got - expected[members]).max(axis=1) for members, got in runs]
    # A vector that is not a number is as wrong as can be; plain max() would step over it.
    flat = [float(np.nan_to_num(one, nan=np.inf).max()) for one in differences]
    at = int(np.argmax(flat))
    members = runs[at][0]
    text = members[int(np.argmax(np.nan_to_num(differences[at], nan=np.inf)))]
    classifies = source.task == "text-classification"
    return ParityReport(
        reference=REFERENCES[source.task],
        precision=precision,
        texts=len(rows),
        longest_tokens=max(len(row.ids) for row in rows),
        largest_difference=flat[at],
        tolerance=tolerance,
        label_agreement=_agreement(expected, runs, tolerance) if classifies else None,
        lowest_cosine=None if classifies else _lowest_cosine(expected, runs),
        worst=WorstCase(text=text, tokens=len(rows[text].ids), batch=len(members)),
    )


def _agreement(expected: Rows, runs: Sequence[tuple[list[int], Rows]], tolerance: float) -> float:
    """The part of answers with the reference's first label; a tie within tolerance agrees."""
    import numpy as np

    agreed = total = 0
    for members, got in runs:
        wanted = expected[members]
        chosen = wanted[np.arange(len(members)), got.argmax(axis=1)]
        agreed += int((wanted.max(axis=1) - chosen <= tolerance).sum())
        total += len(members)
    return agreed / total


def _lowest_cosine(expected: Rows, runs: Sequence[tuple[list[int], Rows]]) -> float:
    import numpy as np

    lowest = 1.0
    for members, got in runs:
        wanted = expected[members]
        lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1)
        cosines = (wanted * got).sum(axis=1) / np.maximum(lengths, 1e-30)
        lowest = min(lowest, float(np.nan_to_num(cosines, nan=-1.0).min()))
    return lowest


def refuse_when_over(report: ParityReport) -> None:
    """Raise ConversionRefused, with the worst case, for a report over its precision's tolerance."""
    tolerance = TOLERANCES[report.precision]
    cosine = report.lowest_cosine if report.lowest_cosine is not None else 1.0
    agreement = report.label_agreement if report.label_agreement is not None else 1.0
    within = report.largest_difference <= tolerance.difference
    if within and cosine >= tolerance.cosine and agreement == 1.0:
        return
    advice = (
        f"convert with --precision {tolerance.safer}"
        if tolerance.safer
        else "the exported graph does not compute what the model does; try the other --engine"
    )
    raise ConversionRefused(
        f"{report.precision} does not answer as {report.reference} does: largest difference "
        f"{report.largest_difference:.2g} (allowed {tolerance.difference:g}), lowest cosine "
        f"{cosine:.7f} (allowed {tolerance.cosine:g}), labels agree on {agreement:.1%}; worst is "
        f"text {report.worst.text} with {report.worst.tokens} tokens in a batch of "
        f"{report.worst.batch}; {advice}"
    )
