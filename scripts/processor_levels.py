"""The instruction sets that oneDNN can be held to, and which of them a processor can imitate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# oneDNN inside OpenVINO reads it when a process starts. ONNX Runtime's own kernels (MLAS) have no
# such switch: they always take what the processor has.
VARIABLE = "ONEDNN_MAX_CPU_ISA"
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Level:
    """`name` is the variable's value, `flags` what /proc/cpuinfo must name for it."""

    name: str
    flags: tuple[str, ...]


# The lowest first; oneDNN's documentation of CPU dispatcher control has the names.
LEVELS = (
    Level("AVX2", ("avx2",)),
    Level("AVX2_VNNI", ("avx_vnni",)),
    Level("AVX512_CORE", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    Level("AVX512_CORE_VNNI", ("avx512_vnni",)),
    Level("AVX512_CORE_BF16", ("avx512_bf16",)),
    Level("AVX512_CORE_FP16", ("avx512_fp16",)),
    Level("AVX512_CORE_AMX", ("amx_tile", "amx_int8", "amx_bf16")),
    Level("AVX512_CORE_AMX_FP16", ("amx_fp16",)),
)


def processor_flags(cpuinfo: str | None = None) -> frozenset[str]:
    """What this machine's first processor says that it has."""
    text = _CPUINFO.read_text() if cpuinfo is None else cpuinfo
    rows = (line.partition(":") for line in text.splitlines())
    return frozenset(
        next((value for name, _, value in rows if name.strip() == "flags"), "").split()
    )


def imitable(flags: frozenset[str]) -> tuple[Level, ...]:
    return tuple(level for level in LEVELS if flags.issuperset(level.flags))
