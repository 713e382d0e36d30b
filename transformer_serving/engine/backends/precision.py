"""Which OpenVINO settings a precision means; the desk's parity check uses the same.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

# OpenVINO lowers fp32 to bf16 by itself on CPUs that have it, so fp32 must be asked for.
# An int8 graph carries its own quantized layers; the hint is for the layers between them. There it
# is never bf16: on AMX OpenVINO 2026.4 is then wrong at the length of a head
# (docs/decisions/precisions.md).
HINTS = {
    "fp32": ("f32", "FP32"),
    "bf16": ("bf16", "BF16"),
    "fp16": ("f16", "FP16"),
    "int8": ("f32", "FP32"),
}

# Holds oneDNN, inside OpenVINO, to a lesser instruction set. OpenVINO goes on listing BF16 by what
# the processor has, and then cannot compile (AVX2), or emulates it.
LIMIT_VARIABLE = "ONEDNN_MAX_CPU_ISA"
_LIMITS_WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")


def usable(capabilities: Iterable[str]) -> frozenset[str]:
    """OpenVINO's OPTIMIZATION_CAPABILITIES without what this process' limit takes away."""
    limit = os.environ.get(LIMIT_VARIABLE, "").upper()
    return frozenset(capabilities) - ({"BF16"} if limit in _LIMITS_WITHOUT_BF16 else set())


def openvino_properties(
    precision: str, *, capabilities: Iterable[str], threads: int, streams: int = 1
) -> dict[str, str]:
    """Compile properties for the CPU plugin; f32 where the CPU lacks the precision.

    Threads stay unpinned: each process pins from the first core on, so that two instances of one
    thread each would share that core, and a pinned thread waits for whoever else runs on its core.
    """
    hint, capability = HINTS[precision]
    return {
        "INFERENCE_PRECISION_HINT": hint if capability in usable(capabilities) else "f32",
        "INFERENCE_NUM_THREADS": str(threads),
        "NUM_STREAMS": str(streams),
        "ENABLE_CPU_PINNING": "NO",
    }
