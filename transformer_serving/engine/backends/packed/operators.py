"""What stands in a packed graph for what a padded one computes across a text's tokens.

Tested by tests/engine/test_packed_graph.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Of query, key and value [1, heads, tokens, width], cumulative lengths, the longest text, and the
# scale, None for one over the root of the width.
Attention = Callable[..., torch.Tensor]


def of_text(tokens: torch.Tensor, owners: torch.Tensor, cumulative: torch.Tensor) -> torch.Tensor:
    """The sum [texts, ...] of each text's tokens [1, tokens, ...].

    By a product, which adds in the same order each time. Tokens of no text hold anything, and a
    text with a value that is not finite is all NaN: the product would take it into every text.
    """
    count, dtype = texts(cumulative), tokens.dtype if tokens.is_floating_point() else torch.int64
    rows = tokens[0].reshape(tokens.shape[1], -1)
    rows = rows if rows.is_floating_point() else rows.float()
    theirs = torch.arange(count, device=owners.device)[:, None] == owners[None, :]
    good = rows.isfinite().all(1)
    summed = theirs.to(rows.dtype) @ torch.where(((owners < count) & good)[:, None], rows, 0)
    spoilt = (theirs & ~good[None, :]).any(1)
    summed = torch.where(spoilt[:, None], torch.nan, summed)
    return summed.reshape(count, *tokens.shape[2:]).to(dtype)


def first_of_text(tokens: torch.Tensor, cumulative: torch.Tensor) -> torch.Tensor:
    """The first token [texts, ...] of each text; of places without a text any one."""
    starts = cumulative[:-1].clamp(max=tokens.shape[1] - 1)
    return tokens[0].index_select(0, starts)


def last_of_text(tokens: torch.Tensor, cumulative: torch.Tensor) -> torch.Tensor:
    """The last token [texts, ...] of each text; of places without a text any one."""
    ends = (cumulative[1:] - 1).clamp(min=0)
    return tokens[0].index_select(0, ends)


def texts(cumulative: torch.Tensor) -> int:
    return cumulative.shape[0] - 1


def text_by_text(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cumulative: torch.Tensor,
    longest: int, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """Attention on any device, for each text its own: what `varlen` is measured by."""
    found = torch.zeros_like(value)
    ends = cumulative.tolist()
    for start, end in zip(ends, ends[1:], strict=False):
        if end > start:
            found[:, :, start:end] = torch.nn.functional.scaled_dot_product_attention(
                query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], scale=scale
            )
    return found


def varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cumulative: torch.Tensor,
    longest: int, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """torch's attention over texts of various lengths, a kernel of CUDA in bf16 and fp16."""
    from torch.nn.attention import varlen as kernels

    # By another name than torch's stubs know it, whose releases differ in what else it takes.
    attention: Any = kernels.varlen_attn
    rows = [one[0].transpose(0, 1) for one in (query, key, value)]
    found: torch.Tensor = attention(*rows, cumulative, cumulative, longest, longest, scale=scale)
    return found.transpose(0, 1)[None]
