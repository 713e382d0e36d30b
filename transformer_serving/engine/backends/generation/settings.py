"""What the engine of a language model is told by config.pbtxt, one parameter a field.

Tested by tests/engine/test_generation_calls.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.contract.engine_parameters import (
    BLOCK_TOKENS,
    KV_PRECISION,
    MAX_RUNNING,
    MAX_WAITING,
    NUM_KV_BLOCKS,
    ON,
    PREFIX_CACHE,
    SEND_GAP_MS,
    STEP_TOKENS,
    THREADS,
    EngineParameter,
)
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.generation import MAX_POSITIONS
from transformer_serving.engine.backends.model_settings import ModelError, ModelSettings
from transformer_serving.engine.backends.precision import HINTS

# What a cache entry is kept in unless said: exact where the model is.
KV_OF = {"fp32": "f32", "bf16": "u8", "fp16": "u8", "int8": "u8"}
# openvino_genai keeps a cache in one of these only where it computes in it.
COMPUTED = ("f32", "bf16")


@dataclass(frozen=True)
class GenerationSettings:
    """The limits of one model's engine.

    `kv_blocks` of BLOCK_TOKENS tokens each hold every running sequence. Of `max_running` sequences
    each step makes a token; `max_waiting` more may wait. A health check has room beside both. A
    step computes at most `step_tokens` tokens, so that a long prompt does not hold up the others.
    Where many run, `send_gap_s` seconds lie between two messages of one. `max_positions` are prompt
    and new tokens together.
    """

    vocabulary: int
    max_positions: int
    kv_blocks: int
    precision: str = "fp32"
    kv_precision: str = "f32"
    max_running: int = int(MAX_RUNNING.default)
    max_waiting: int = int(MAX_WAITING.default)
    step_tokens: int = int(STEP_TOKENS.default)
    prefix_cache: bool = PREFIX_CACHE.default == ON
    send_gap_s: float = int(SEND_GAP_MS.default) / 1000
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
        kv_blocks=_number(settings, NUM_KV_BLOCKS, 0),
        precision=precision,
        kv_precision=_text(settings, KV_PRECISION, KV_OF[precision]),
        max_running=_number(settings, MAX_RUNNING),
        max_waiting=_number(settings, MAX_WAITING),
        step_tokens=_number(settings, STEP_TOKENS),
        prefix_cache=_text(settings, PREFIX_CACHE) == ON,
        send_gap_s=_number(settings, SEND_GAP_MS) / 1000,
        threads=_number(settings, THREADS, settings.threads),
    )


def blocks_of(tokens: int) -> int:
    """The blocks that so many tokens fill."""
    return -(-tokens // BLOCK_TOKENS)


def caches_of(precision: str) -> tuple[str, ...]:
    """What a model of the precision may keep its cache in, on every processor."""
    computed = HINTS[precision][0]
    return tuple(kv for kv in KV_PRECISION.choices if kv == computed or kv not in COMPUTED)


def _number(settings: ModelSettings, row: EngineParameter, unsaid: int | None = None) -> int:
    """0 and absent mean `unsaid`, or the row's default; neither 0 nor absent where that is 0."""
    default = int(row.default) if unsaid is None else unsaid
    value = settings.count(row.name, default) if default else _required(settings, row.name)
    return int(_checked(row, str(value)))


def _text(settings: ModelSettings, row: EngineParameter, unsaid: str = "") -> str:
    return _checked(row, settings.parameters.get(row.name, "").strip() or unsaid or row.default)


def _checked(row: EngineParameter, value: str) -> str:
    try:
        return row.check(value)
    except ContractError as error:
        raise ModelError(str(error)) from None


def _required(settings: ModelSettings, name: str) -> int:
    value = settings.count(name, 0)
    if not value:
        raise ModelError(f"parameter '{name}' is missing; convert the model again")
    return value
