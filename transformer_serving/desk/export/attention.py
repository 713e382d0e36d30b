"""Attention as OpenVINO's paged attention wants to find it: a fused call behind masks of one form.

SDPAToPagedAttention replaces masks by its own causal one and reads the window of a sliding one from
the operations that made it; where those are any others it goes on without a window and says
nothing (OpenVINO 2026.4, state_management_pattern.cpp, its pattern for gpt-oss). So the order of
what `_windowed` does is not to be changed.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

from typing import Any

import torch

# The name under which transformers finds `Attention`.
NAME = "transformer_serving"
# What changes scores in a way that paged attention would leave out.
_UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias")


class Masks:
    """The masks of one forward pass, additive, float32 [texts or 1, 1, new, total].

    `pad` is bool [texts, total], True where a token is; the `new` tokens are its last.
    """

    def __init__(self, pad: torch.Tensor, new: int) -> None:
        self._pad = pad[:, None, None, :]
        self._total = pad.shape[1]
        self._queries = torch.arange(self._total)[self._total - new :]
        self._made: dict[int | None, torch.Tensor] = {}

    @property
    def queries(self) -> torch.Tensor:
        """Where the new tokens stand, int64 [new]."""
        return self._queries

    def of(self, window: int | None) -> torch.Tensor:
        """Every token before, or the nearest `window`, itself one of them."""
        if window not in self._made:
            self._made[window] = self._causal() if window is None else self._windowed(window)
        return self._made[window]

    def _causal(self) -> torch.Tensor:
        seen = (torch.arange(self._total)[None, :] <= self._queries[:, None])[None, None]
        seen = seen & self._pad
        nothing = torch.zeros(seen.shape, dtype=torch.float32)
        return nothing.masked_fill(~seen, torch.finfo(torch.float32).min)

    def _windowed(self, window: int) -> torch.Tensor:
        keys = torch.arange(self._total)[None, None, None, :]
        queries = self._queries[None, None, :, None]
        every = torch.ones((1, 1, 1, 1), dtype=torch.bool)
        seen = torch.bitwise_and(every, keys > (queries + torch.tensor(-window)))
        seen = torch.bitwise_and(seen, keys <= queries)
        seen = torch.bitwise_and(every, seen)
        seen = torch.bitwise_and(seen, self._pad)
        seen = seen.expand(self._pad.shape[0], 1, queries.shape[2], self._total)
        least = torch.tensor(torch.finfo(torch.float32).min)
        return torch.where(seen, torch.tensor(0.0), least)[:, :, :, : self._total]


class Attention:
    """The attention of all layers of one model while it is exported; `calls` counts them, and
    `windows` are the sliding ones that they came with."""

    def __init__(self) -> None:
        self.masks: Masks | None = None
        self.calls = 0
        self.windows: set[int] = set()

    def interface(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **terms: Any,
    ) -> tuple[torch.Tensor, None]:
        """As transformers calls it: [texts, heads, tokens, width] in, tokens before heads out.

        Raises ValueError for a term of the scores that paged attention does not know.
        """
        for name in _UNKNOWN_TERMS:
            if terms.get(name) is not None:
                raise ValueError(f"its attention has {name}, which paged attention leaves out")
        if scaling is None:
            scaling = _scaling_of(module, query.shape[-1])
        groups = int(getattr(module, "num_key_value_groups", 1))
        found = self.scores(query, _repeated(key, groups), _repeated(value, groups), scaling,
                            sliding_window)  # fmt: skip
        return found.transpose(1, 2).contiguous(), None

    def scores(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """[texts, heads, new tokens, width]."""
        assert self.masks is not None
        self.calls += 1
        if window is not None:
            self.windows.add(window)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self.masks.of(window), scale=scaling
        )


def _scaling_of(module: Any, width: int) -> float | None:
    """By a GPT-2's own fields, which its eager attention heeds and tells no other one; None is the
    usual one."""
    scaled = getattr(module, "scale_attn_weights", True)
    if not getattr(module, "scale_attn_by_inverse_layer_idx", False):
        return None if scaled else 1.0
    return float((width**-0.5 if scaled else 1.0) / (module.layer_idx + 1))


def take_over(model: Any, attention: Attention) -> None:
    """Give `attention` to the two families whose layers have no place for another one."""
    for module in model.modules():
        kind = type(module).__name__
        if kind == "GPTNeoSelfAttention":
            window = model.config.window_size if module.attention_type == "local" else None
            # Its scores are not divided by anything.
            module._attn = _inner(attention, 1.0, window)
        elif kind == "GPTJAttention":
            module._attn = _inner(attention, None, None)


def _inner(attention: Attention, scaling: float | None, window: int | None) -> Any:
    def attn(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, None]:
        query, key = query.to(value.dtype), key.to(value.dtype)
        return attention.scores(query, key, value, scaling, window), None

    return attn


def _repeated(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """Each head of keys or values for all the heads of queries that share it."""
    if groups == 1:
        return tensor
    texts, heads, tokens, width = tensor.shape
    wide = tensor[:, :, None].expand(texts, heads, groups, tokens, width)
    return wide.reshape(texts, heads * groups, tokens, width)
