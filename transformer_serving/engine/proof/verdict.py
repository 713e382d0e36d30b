"""Asking an engine a parity set, and saying in one sentence where it is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transformer_serving.contract.error_line import named_line
from transformer_serving.engine.proof.arrays import Array
from transformer_serving.engine.proof.calls import Call, calls, largest_batch
from transformer_serving.engine.proof.fault_lines import Fault, sentence
from transformer_serving.engine.proof.measure import Distance, distance, scale_of
from transformer_serving.engine.proof.parity_set import ParitySet, Tolerance

# Takes the padded input tensors and the wanted outputs' names, gives the outputs by name. What it
# raises is a fault of that call.
Infer = Callable[[Mapping[str, Array], Sequence[str]], Mapping[str, Array]]


@dataclass(frozen=True)
class Finding:
    """The worst of all calls of one length and batch; `fault` says what is wrong with it."""

    length: int
    batch: int
    difference: float
    cosine: float | None
    fault: str | None


@dataclass(frozen=True)
class Proof:
    """`fault` names the lengths and batches that are wrong and by how much; None where none is."""

    findings: tuple[Finding, ...]
    seconds: float
    largest_difference: float
    lowest_cosine: float | None
    fault: str | None


def prove(
    parity_set: ParitySet,
    infer: Infer,
    lengths: Sequence[int] | None = None,
    scale: float | None = None,
) -> Proof:
    """Ask every call of `calls` and compare with the reference's answers.

    `scale` is the set's own largest logit unless given.
    """
    began = time.monotonic()
    scale = scale_of(parity_set) if scale is None else scale
    worst: dict[tuple[int, int], Finding] = {}
    for call in calls(parity_set, lengths):
        found = _asked(parity_set, call, infer, scale)
        before = worst.get((call.length, call.batch))
        if before is None or _badness(found) > _badness(before):
            worst[call.length, call.batch] = found
    findings = tuple(worst.values())
    cosines = [one.cosine for one in findings if one.cosine is not None]
    return Proof(
        findings,
        time.monotonic() - began,
        max(one.difference for one in findings),
        min(cosines, default=None),
        _fault(parity_set, findings),
    )


def _badness(finding: Finding) -> tuple[bool, float, float]:
    return finding.fault is not None, finding.difference, -(finding.cosine or 0.0)


def _asked(parity_set: ParitySet, call: Call, infer: Infer, scale: float) -> Finding:
    try:
        outputs = infer(call.tensors, parity_set.outputs)
    except Exception as error:
        # Whatever an engine raises: the other shapes are still to be asked.
        failed = f"the engine failed ({named_line(error)})"
        return Finding(call.length, call.batch, float("inf"), None, failed)
    far = [
        distance(parity_set, parity_set.rows[row], _text(outputs, at, call), call.length, scale)
        for at, row in enumerate(call.rows)
    ]
    cosines = [one.cosine for one in far if one.cosine is not None]
    raws = [one.raw for one in far if one.raw is not None]
    whole = Distance(
        max(one.difference for one in far), min(cosines, default=None), max(raws, default=None)
    )
    return Finding(
        call.length, call.batch, whole.difference, whole.cosine,
        _over(whole, parity_set.tolerance),
    )  # fmt: skip


def _text(outputs: Mapping[str, Array], at: int, call: Call) -> dict[str, Array]:
    """One text's outputs; those without a row for each text of the call are left out."""
    return {
        name: array[at]
        for name, array in outputs.items()
        if array.ndim and len(array) == call.batch
    }


def _over(far: Distance, allowed: Tolerance) -> str | None:
    if far.difference == float("inf"):
        return "an answer of another shape, or that is no number"
    if far.cosine is not None and not far.cosine >= allowed.cosine:
        return f"cosine {far.cosine:.4g} where {allowed.cosine:g} is allowed"
    if not far.difference <= allowed.difference:
        return f"difference {far.difference:.2g} where {allowed.difference:g} is allowed"
    if far.raw is not None and not far.raw <= allowed.raw:
        return f"logits differ by {far.raw:.1%} where {allowed.raw:.1%} is allowed"
    return None


def _fault(parity_set: ParitySet, findings: Sequence[Finding]) -> str | None:
    faults = [
        Fault(one.length, one.batch, one.fault, _badness(one))
        for one in findings
        if one.fault is not None
    ]
    if not faults:
        return None
    asked: dict[int, list[int]] = {}
    for one in findings:
        asked.setdefault(one.length, []).append(one.batch)
    largest = {length: largest_batch(parity_set, length) for length in asked}
    return sentence(faults, asked, largest)
