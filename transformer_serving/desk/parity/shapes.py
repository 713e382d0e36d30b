"""Whether an engine answers as the reference does at every shape that serves.

Kernels differ by shape, so one that is right for most lengths may be wrong for one. Compared are
the tensors of single rows, the reference's against the engine's alone and in padded batches.

Tested by tests/parity/test_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from preprocess.rows import pad
from preprocess.tensors import Tensor
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.heads import HEADS, TOKENS
from transformer_serving.desk.builders.sample_rows import asked_lengths, kept_lengths
from transformer_serving.engine.proof.arrays import Array
from transformer_serving.engine.proof.measure import scale_of
from transformer_serving.engine.proof.parity_set import ParitySet, Tolerance
from transformer_serving.engine.proof.rows import ParityRow, ProofInput
from transformer_serving.engine.proof.verdict import Proof, prove

# The vectors of so many tokens of a text are kept: all would be most of a bundle's size.
_POSITIONS = 8
_ACTIVATIONS = {"softmax": "softmax", "sigmoid": "sigmoid", "none": "scores"}
_KINDS = {
    "tokens": "token_softmax",
    "spans": "spans",
    "masks": "masks",
    "vector": "vector",
    "token_vectors": "token_vectors",
}
# A function from the tensors of one call to the engine's outputs in the endpoint's order.
Call = Callable[[Sequence[Tensor]], Sequence[Array]]


@dataclass(frozen=True)
class ShapeReport:
    """`calls` is how many shapes were asked, each a length and a number of texts; `fault` names
    those that are wrong, None where none is."""

    calls: int
    lengths: int
    largest_difference: float
    lowest_cosine: float | None
    fault: str | None


@dataclass(frozen=True)
class ShapeCase:
    """What is asked of every engine of a model, at which lengths."""

    parity_set: ParitySet
    lengths: tuple[int, ...]

    def prove(self, call: Call, precision: str, tolerance: Tolerance) -> ShapeReport:
        """The engine's answers against the reference's; no refusal."""
        asked = replace(self.parity_set, precision=precision, tolerance=tolerance)
        # Measured as it will be where the bundle is served: what passes here passes there.
        scale = scale_of(self.kept(precision, tolerance))
        return report_of(prove(asked, infer_of(asked, call), self.lengths, scale))

    def kept(self, precision: str, tolerance: Tolerance) -> ParitySet:
        """What a bundle carries: the rows that prove its buckets, and no others."""
        lengths = set(kept_lengths(self.parity_set.buckets))
        rows = tuple(row for row in self.parity_set.rows if row.tokens in lengths)
        return replace(self.parity_set, precision=precision, tolerance=tolerance, rows=rows)


def report_of(proof: Proof) -> ShapeReport:
    return ShapeReport(
        calls=len(proof.findings),
        lengths=len({one.length for one in proof.findings}),
        largest_difference=proof.largest_difference,
        lowest_cosine=proof.lowest_cosine,
        fault=proof.fault,
    )


def infer_of(
    parity_set: ParitySet, call: Call
) -> Callable[[Mapping[str, Array], Sequence[str]], dict[str, Array]]:
    """An engine of this process as a proof asks it."""
    dtypes = {tensor.name: tensor.dtype for tensor in parity_set.inputs}

    def infer(tensors: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        outputs = call([Tensor(name, dtypes[name], array) for name, array in tensors.items()])
        return dict(zip(names, outputs, strict=True))

    return infer


def shape_case(
    endpoint: Endpoint,
    rows: Sequence[Encoded],
    answers: Sequence[Sequence[Array]],
    reference: str,
    head_size: int | None,
) -> ShapeCase:
    """The case of these rows; `answers` are the reference's outputs to each, without a batch axis.

    Its precision and tolerance are the engine's to give.
    """
    tokens = endpoint.tokens
    fill = {"input_ids": tokens.pad_id, "token_type_ids": tokens.pad_type_id}
    found = ParitySet(
        reference=reference,
        precision="fp32",
        tolerance=Tolerance(1.0, 1.0, 1.0),
        kind=kind_of(endpoint),
        inputs=tuple(
            ProofInput(tensor.name, tensor.role, tensor.dtype, fill.get(tensor.role, 0))
            for tensor in endpoint.inputs
        ),
        outputs=tuple(tensor.name for tensor in endpoint.outputs),
        padding_side=tokens.padding_side,
        buckets=tokens.buckets,
        max_batch_size=endpoint.limits.max_batch_size,
        max_call_tokens=endpoint.limits.max_call_tokens,
        rows=tuple(
            _row(endpoint, row, outputs) for row, outputs in zip(rows, answers, strict=True)
        ),
    )
    return ShapeCase(found, asked_lengths(tokens.buckets, head_size))


def kind_of(endpoint: Endpoint) -> str:
    """How the endpoint's outputs are compared: a key of engine.proof.rows.KINDS."""
    if endpoint.head == "sequence":
        assert endpoint.classification is not None
        return _ACTIVATIONS[endpoint.classification.activation]
    return _KINDS[endpoint.head]


def unpadded(endpoint: Endpoint, row: Encoded) -> list[Tensor]:
    """The tensors of a row alone, [1, tokens]."""
    return pad([row], len(row.ids), endpoint.inputs, endpoint.tokens)


def _row(endpoint: Endpoint, row: Encoded, outputs: Sequence[Array]) -> ParityRow:
    tensors = {tensor.name: tensor.array[0] for tensor in unpadded(endpoint, row)}
    axes = HEADS[endpoint.head].outputs
    positions = None
    # Both ends of an answer are chosen among all tokens.
    if axes[0][0] == TOKENS and endpoint.head != "spans":
        step = max(1, len(row.ids) - 1) / (_POSITIONS - 1)
        places = sorted({round(at * step) for at in range(_POSITIONS)})
        positions = np.array([at for at in places if at < len(row.ids)], np.int32)
    expected = {}
    for tensor, names, array in zip(endpoint.outputs, axes, outputs, strict=True):
        kept = array[positions] if positions is not None and names[0] == TOKENS else array
        whole = kept.dtype.kind in "iu"
        expected[tensor.name] = kept.astype(np.int32 if whole else np.float32)
    return ParityRow(len(row.ids), tensors, expected, positions)
