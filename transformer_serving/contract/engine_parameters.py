"""The parameters of a language model's engine, a row each: of convert, of the bundle, in docs.

Those of engine openvino stand in config.pbtxt, those of vllm, by vLLM's own names, in model.json.

Tested by tests/engine/test_generation_calls.py and tests/cli/test_engine_parameters.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from transformer_serving.contract.error_line import in_ascii
from transformer_serving.contract.errors import ContractError

# Tokens of one block of the cache: what openvino_genai 2026.4 takes on a CPU.
BLOCK_TOKENS = 32
# Blocks beside those that callers share, for a health check: no golden request of convert takes
# more, of a tokenizer of bytes either.
SPARE_BLOCKS = 2
ON, OFF = "on", "off"
OPENVINO, VLLM = "openvino", "vllm"
_FRACTION = re.compile(r"0\.[0-9]{1,4}|1(\.0{1,4})?")


@dataclass(frozen=True)
class EngineParameter:
    """One of `choices`, a `fraction`, or a whole number from 1 to `high`, of one `engine`.

    `default` is what convert writes unless told, "" for one that it works out or leaves to the
    engine; `unsaid` says that in words.
    """

    name: str
    help: str
    default: str = ""
    unsaid: str = ""
    high: int = 0
    choices: tuple[str, ...] = ()
    fraction: bool = False
    engine: str = OPENVINO

    @property
    def flag(self) -> str:
        """Of `convert`."""
        return "--" + self.name.replace("_", "-")

    @property
    def limit(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.fraction:
            return "a number above 0 and at most 1, such as 0.45"
        return f"a whole number from 1 to {self.high}"

    @property
    def usual(self) -> str:
        """What it is where nobody says, for people."""
        return self.default or self.unsaid

    def check(self, value: str) -> str:
        """The value. Raises ContractError naming field, limit and got."""
        if self.choices:
            allowed = value in self.choices
        elif self.fraction:
            allowed = bool(_FRACTION.fullmatch(value)) and float(value) > 0
        else:
            # Longer ones are beyond every limit, and int() takes its time over them.
            allowed = (
                value.isascii() and value.isdigit() and len(value) < 20
                and 1 <= int(value) <= self.high
            )  # fmt: skip
        if not allowed:
            got = in_ascii(value[:40])
            raise ContractError(f"parameter '{self.name}' must be {self.limit}, got '{got}'")
        return value


NUM_KV_BLOCKS = EngineParameter(
    "num_kv_blocks",
    f"Blocks of {BLOCK_TOKENS} tokens that hold every running sequence, at least one whole one. "
    f"A call that can never fit is refused with both numbers. A health check has {SPARE_BLOCKS} "
    "more, and a place beside the sequences that run.",
    unsaid="a gigabyte's worth, at least 1 and at most 64 whole sequences",
    high=2**31 - 1,
)
KV_PRECISION = EngineParameter(
    "kv_precision",
    "What the cache is kept in. f32 goes with fp32 and int8, bf16 with bf16; a server without bf16 "
    "keeps that in f32, twice as large.",
    unsaid="f32 for fp32, u8 for bf16 and int8",
    choices=("f32", "bf16", "f16", "u8"),
)
MAX_RUNNING = EngineParameter(
    "max_running",
    "Sequences that each step makes a token of. Others wait in the order of their coming; one "
    "starts when its prompt and all that it may generate fit beside the others, so that none is "
    "ever pushed out.",
    "64",
    high=4096,
)
MAX_WAITING = EngineParameter(
    "max_waiting",
    "Calls that may wait; more are refused as UNAVAILABLE.",
    "1024",
    high=1_000_000,
)
STEP_TOKENS = EngineParameter(
    "max_num_batched_tokens",
    "Tokens of one step: a long prompt goes in so many at a time, and the others go on between.",
    "256",
    high=1_000_000,
)
PREFIX_CACHE = EngineParameter(
    "prefix_cache",
    "on: prompts that begin as an earlier one did are not computed again; text is the same.",
    OFF,
    choices=(ON, OFF),
)
SEND_GAP_MS = EngineParameter(
    "send_gap_ms",
    "Milliseconds between two messages of a sequence where more than four run; the first token "
    "goes at once.",
    "80",
    high=10_000,
)
THREADS = EngineParameter(
    "intra_op_thread_count",
    "Threads that compute.",
    unsaid="all cores that the server has",
    high=1024,
)

GPU_MEMORY = EngineParameter(
    "gpu_memory_utilization",
    "The part of each GPU's memory that one copy of the model takes, its cache included. With more "
    "than half of it no new version fits beside the one that serves, so that the endpoint is to be "
    "removed first.",
    "0.45",
    fraction=True,
    engine=VLLM,
)
MAX_SEQUENCES = EngineParameter(
    "max_num_seqs",
    "Sequences that each step makes a token of.",
    unsaid="vLLM's own",
    high=4096,
    engine=VLLM,
)
PREFIX_CACHING = EngineParameter(
    "enable_prefix_caching",
    "on: prompts that begin as an earlier one did are not computed again.",
    unsaid="vLLM's own",
    choices=(ON, OFF),
    engine=VLLM,
)
TENSOR_PARALLEL = EngineParameter(
    "tensor_parallel_size",
    "GPUs that share the model, each with a part of every layer.",
    unsaid="1",
    high=64,
    engine=VLLM,
)

ENGINE_PARAMETERS = (
    NUM_KV_BLOCKS, KV_PRECISION, MAX_RUNNING, MAX_WAITING, STEP_TOKENS, PREFIX_CACHE, SEND_GAP_MS,
    THREADS, GPU_MEMORY, MAX_SEQUENCES, PREFIX_CACHING, TENSOR_PARALLEL,
)  # fmt: skip


def parameters_of(engine: str) -> dict[str, EngineParameter]:
    """The engine's rows by their names."""
    return {row.name: row for row in ENGINE_PARAMETERS if row.engine == engine}


def check_parameters(asked: Mapping[str, str], engine: str = OPENVINO) -> None:
    """Raises ContractError naming field, limit and got for the first that cannot be."""
    rows = parameters_of(engine)
    for name, value in asked.items():
        row = rows.get(name)
        if row is None:
            raise ContractError(
                f"parameter '{name}' is unknown to engine {engine}; there are {', '.join(rows)}"
            )
        row.check(value)
