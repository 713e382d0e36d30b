"""The parity set of the small text models: rows at both edges of each bucket, answered by numpy."""

from __future__ import annotations

import numpy as np

from tests.engine.text_models import VOCABULARY, expected
from transformer_serving.engine.proof.parity_set import ParitySet, Tolerance
from transformer_serving.engine.proof.rows import ParityRow, ProofInput

BUCKETS = (8, 16, 32)


def small_parity_set(scale: float = 1.0) -> ParitySet:
    random = np.random.default_rng(5)
    lengths = [size for bucket in BUCKETS for size in (bucket // 2 + 1, bucket - 1, bucket)]
    return ParitySet(
        reference="numpy",
        precision="fp32",
        tolerance=Tolerance(difference=1e-3, cosine=0.999, raw=1e-3),
        kind="softmax",
        inputs=tuple(
            ProofInput(name, name, "INT32", 0) for name in ("input_ids", "attention_mask")
        ),
        outputs=("output",),
        padding_side="right",
        buckets=BUCKETS,
        max_batch_size=8,
        max_call_tokens=None,
        rows=tuple(
            _row(random.integers(4, VOCABULARY, length).astype(np.int32), scale)
            for length in lengths
        ),
    )


def _row(ids: np.ndarray, scale: float) -> ParityRow:
    mask = np.ones_like(ids)
    answer = expected(ids[None], mask[None], scale=scale)[0].astype(np.float32)
    return ParityRow(
        tokens=len(ids),
        inputs={"input_ids": ids, "attention_mask": mask},
        outputs={"output": answer},
    )
