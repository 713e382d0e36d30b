"""Parity sets of random rows, and an engine that answers them as the reference did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_serving.engine.proof.parity_set import ParitySet, Tolerance
from transformer_serving.engine.proof.rows import ParityRow, ProofInput

BUCKETS = (4, 8, 16)
INPUTS = (
    ProofInput("ids", "input_ids", "INT32", 7),
    ProofInput("types", "token_type_ids", "INT64", 1),
    ProofInput("mask", "attention_mask", "INT32", 0),
)
EXTRAS = (
    ProofInput("at", "mask_positions", "INT32", 0),
    ProofInput("wanted", "candidates", "INT64", 0),
)
NAMES = {"masks": ("scores", "token_ids", "candidate_scores")}
LABELS, BEST, CANDIDATES = 5, 6, 3


def parity_set(
    kind: str = "vector",
    side: str = "right",
    buckets: Sequence[int] = BUCKETS,
    max_batch_size: int = 6,
    max_call_tokens: int | None = 64,
) -> ParitySet:
    inputs = (*INPUTS, *EXTRAS) if kind == "masks" else INPUTS
    lengths = sorted(
        {
            size
            for low, high in zip((0, *buckets), buckets, strict=False)
            for size in (low + 1, high - 1, high)
            if size > 0
        }
    )
    return ParitySet(
        reference="the test",
        precision="fp32",
        tolerance=Tolerance(1e-4, 0.999, 1e-3),
        kind=kind,
        inputs=inputs,
        outputs=NAMES.get(kind, ("output",)),
        padding_side=side,
        buckets=tuple(buckets),
        max_batch_size=max_batch_size,
        max_call_tokens=max_call_tokens,
        rows=tuple(_row(kind, inputs, size) for size in lengths),
    )


def _row(kind: str, inputs: Sequence[ProofInput], tokens: int) -> ParityRow:
    random = np.random.default_rng(tokens)
    given = {
        "input_ids": random.integers(10, 90, tokens),
        "token_type_ids": np.arange(tokens) % 2,
        "attention_mask": np.ones(tokens, int),
        "mask_positions": np.arange(min(tokens, 1 + tokens % 2)),
        "candidates": random.integers(10, 90, CANDIDATES),
    }
    own = {tensor.name: given[tensor.role].astype(tensor.numpy) for tensor in inputs}
    values = {name: array[None] for name, array in own.items()}
    positions = np.array([0, tokens - 1], np.int32) if kind == "token_vectors" else None
    outputs = {name: array[0] for name, array in answer(kind, inputs, values).items()}
    if positions is not None:
        outputs = {name: array[positions] for name, array in outputs.items()}
    return ParityRow(tokens, own, outputs, positions)


def answer(
    kind: str, inputs: Sequence[ProofInput], tensors: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """An engine of each kind that heeds its mask: sums over what is no padding."""
    by_role = {tensor.role: np.asarray(tensors[tensor.name], float) for tensor in inputs}
    ids, mask = by_role["input_ids"], by_role["attention_mask"]
    own = np.sin(ids)[..., None] * mask[..., None]
    pooled = (own * np.cos(ids[..., None] * np.arange(1, LABELS + 1))).sum(axis=1)
    of_tokens = (own + pooled[:, None]) * np.arange(1, LABELS + 1)
    made: dict[str, Any] = {
        "vector": lambda: (pooled,),
        "softmax": lambda: (pooled,),
        "sigmoid": lambda: (pooled,),
        "scores": lambda: (pooled[:, :1],),
        "token_vectors": lambda: (of_tokens,),
        "token_softmax": lambda: (of_tokens,),
        "spans": lambda: (of_tokens[..., :2],),
        "masks": lambda: _masks(by_role, pooled),
    }
    results = [
        array if array.dtype == np.int32 else array.astype(np.float32) for array in made[kind]()
    ]
    return dict(zip(NAMES.get(kind, ("output",)), results, strict=True))


def _masks(by_role: Mapping[str, np.ndarray], pooled: np.ndarray) -> tuple[np.ndarray, ...]:
    at, wanted = by_role["mask_positions"], by_role["candidates"]
    mask, ids = by_role["attention_mask"], by_role["input_ids"]
    found = np.take_along_axis(np.where(mask > 0, ids, 0), at.astype(int), axis=1)
    scores = np.abs(np.sin(found[..., None] + pooled[:, None, :1] + np.arange(BEST))) / 10
    order = np.argsort(-scores, axis=-1)
    best = np.take_along_axis(scores, order, -1)
    chosen = np.abs(np.cos(found[..., None] * wanted[:, None])) / 10
    return best, (order + 100).astype(np.int32), chosen
