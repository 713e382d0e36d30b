"""Which OpenVINO settings a precision means; the desk's parity check uses the same."""

from __future__ import annotations

from collections.abc import Iterable

# OpenVINO lowers fp32 to bf16 by itself on CPUs that have it, so fp32 must be asked for.
# An int8 graph carries its own quantized layers; the hint is for the layers between them. There it
# is never bf16: on AMX OpenVINO 2026.4 is then wrong at the length of a head (docs/decisions.md).
HINTS = {
    "fp32": ("f32", "FP32"),
    "bf16": ("bf16", "BF16"),
    "fp16": ("f16", "FP16"),
    "int8": ("f32", "FP32"),
}


def openvino_properties(
    precision: str, *, capabilities: Iterable[str], threads: int, streams: int = 1
) -> dict[str, str]:
    """Compile properties for the CPU plugin; f32 where the CPU lacks the precision.

    Threads stay unpinned: each process pins from the first core on, so that two instances of one
    thread each would share that core, and a pinned thread waits for whoever else runs on its core.
    """
    hint, capability = HINTS[precision]
    return {
        "INFERENCE_PRECISION_HINT": hint if capability in set(capabilities) else "f32",
        "INFERENCE_NUM_THREADS": str(threads),
        "NUM_STREAMS": str(streams),
        "ENABLE_CPU_PINNING": "NO",
    }
