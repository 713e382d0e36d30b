"""The graphs of text_models.py as modules of PyTorch, and as programs for backend torch_text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engine import text_models as small
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.desk.export.program import Traceable, write_program

_TOKENS = torch.arange(33, dtype=torch.int32).reshape(3, 11) % small.VOCABULARY
_EXTRA = {"mask_positions": (3, 2), "candidates": (3, 5)}


class MeanText(torch.nn.Module):
    """Embedding table, masked mean, one linear layer."""

    def __init__(
        self, *, scale: float, pooling: str, per_token: bool, wrong_at: int | None
    ) -> None:
        super().__init__()
        random = np.random.default_rng(7)
        rows = random.normal(size=(small.VOCABULARY, small.WIDTH)).astype(np.float32)
        weight = (random.normal(size=(small.WIDTH, small.LABELS)) * scale).astype(np.float32)
        self.table = torch.nn.Parameter(torch.from_numpy(rows))
        self.weight = torch.nn.Parameter(torch.from_numpy(weight))
        self.error: torch.Tensor
        self.register_buffer("error", torch.tensor([3.0, 0.0, 0.0]))
        self.pooling, self.per_token, self.wrong_at = pooling, per_token, wrong_at

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = mask.float()[:, :, None]
        tokens = torch.nn.functional.embedding(ids, self.table)
        masked = tokens * weights
        pooled = tokens[:, -1] if self.pooling == "last" else masked.sum(1) / weights.sum(1)
        output = pooled @ self.weight
        if self.wrong_at is not None:
            length = torch.ones_like(ids[:1]).sum()
            output = output + self.error * (length == self.wrong_at).float()
        return (output, masked @ self.weight) if self.per_token else (output,)


class MaskedText(torch.nn.Module):
    """Token vectors plus the text's mean, at the masks, against the table."""

    def __init__(self) -> None:
        super().__init__()
        rows = np.random.default_rng(7).normal(size=(small.VOCABULARY, small.WIDTH))
        self.table = torch.nn.Parameter(torch.from_numpy(rows.astype(np.float32)))

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        candidates: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        weights = mask.float()[:, :, None]
        tokens = torch.nn.functional.embedding(ids, self.table)
        mean = (tokens * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
        places = positions.long()[:, :, None].expand(-1, -1, small.WIDTH)
        scores = ((tokens + mean).gather(1, places) @ self.table.T).softmax(-1)
        best = scores.topk(small.BEST, dim=-1)
        asked = candidates.long()[:, None, :].expand(-1, scores.shape[1], -1)
        return best.values, best.indices.int(), scores.gather(2, asked)


def export_small(
    folder: Path,
    head: str = "sequence",
    *,
    scale: float = 1.0,
    per_token: bool = False,
    pooling: str = "mean",
    wrong_at: int | None = None,
) -> Path:
    names: tuple[str, ...] = ("input_ids", "attention_mask")
    example: dict[str, torch.Tensor] = {
        "input_ids": _TOKENS,
        "attention_mask": torch.ones_like(_TOKENS),
        **{name: torch.ones(shape, dtype=torch.int32) for name, shape in _EXTRA.items()},
    }
    module: Any
    outputs: tuple[OutputTensor, ...]
    if head == "masks":
        names = (*names, *_EXTRA)
        module = MaskedText()
        outputs = (
            OutputTensor("scores", "FP32", (-1, small.BEST)),
            OutputTensor("token_ids", "INT32", (-1, small.BEST)),
            OutputTensor("candidate_scores", "FP32", (-1, -1)),
        )
    else:
        module = MeanText(scale=scale, pooling=pooling, per_token=per_token, wrong_at=wrong_at)
        outputs = (OutputTensor("output", "FP32", (small.LABELS,)),)
        if per_token:
            outputs = (*outputs, OutputTensor("token_output", "FP32", (-1, small.LABELS)))
    given = tuple(example[name] for name in names)
    return write_program(Traceable(module, names, given, outputs, "fp32", "small"), folder)
