"""What the engine of a language model is told by config.pbtxt, one parameter a field.

Tested by tests/engine/test_generation_calls.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.contract.generation import MAX_POSITIONS
from transformer_serving.engine.backends.model_settings import ModelError, ModelSettings
from transformer_serving.engine.backends.precision import HINTS

# Tokens of one block of the cache: what openvino_genai 2026.4 takes on a CPU.
BLOCK_TOKENS = 32
# What a cache entry is kept in, and what it is unless said: exact where the model is.
KV_PRECISIONS = ("f32", "bf16", "f16", "u8")
_KV_OF = {"fp32": "f32", "bf16": "u8", "fp16": "u8", "int8": "u8"}
_SWITCH = {"on": True, "off": False}
_GAP_MS = 80


@dataclass(frozen=True)
class GenerationSettings:
    """The limits of one model's engine.

    `kv_blocks` of BLOCK_TOKENS tokens each hold every running sequence. Of `max_running` sequences
    each step makes a token; `max_waiting` more may wait. A step computes at most `step_tokens`
    tokens, so that a long prompt does not hold up the others. Where many run, `send_gap_s` seconds
    lie between two messages of one. `max_positions` are prompt and new tokens together.
    """

    vocabulary: int
    max_positions: int
    kv_blocks: int
    precision: str = "fp32"
    kv_precision: str = "f32"
    max_running: int = 64
    max_waiting: int = 1024
    step_tokens: int = 256
    prefix_cache: bool = False
    send_gap_s: float = _GAP_MS / 1000
    threads: int = 1


def read_generation_settings(settings: ModelSettings) -> GenerationSettings:
    """The parameters of a model configuration. Raises ModelError naming the one that is wrong."""
    precision = settings.choice("precision", tuple(HINTS), "fp32")
    positions = _required(settings, "max_positions")
    if not 2 <= positions <= MAX_POSITIONS:
        raise ModelError(
            f"parameter 'max_positions' must be from 2 to {MAX_POSITIONS}, got {positions}"
        )
    return GenerationSettings(
        vocabulary=_required(settings, "vocabulary"),
        max_positions=positions,
        kv_blocks=_required(settings, "num_kv_blocks"),
        precision=precision,
        kv_precision=settings.choice("kv_precision", KV_PRECISIONS, _KV_OF[precision]),
        max_running=settings.count("max_running", 64),
        max_waiting=settings.count("max_waiting", 1024),
        step_tokens=settings.count("max_num_batched_tokens", 256),
        prefix_cache=_SWITCH[settings.choice("prefix_cache", tuple(_SWITCH), "off")],
        send_gap_s=settings.count("send_gap_ms", _GAP_MS) / 1000,
        threads=settings.threads,
    )


def blocks_of(tokens: int) -> int:
    """The blocks that so many tokens fill."""
    return -(-tokens // BLOCK_TOKENS)


def _required(settings: ModelSettings, name: str) -> int:
    value = settings.count(name, 0)
    if not value:
        raise ModelError(f"parameter '{name}' is missing; convert the model again")
    return value
