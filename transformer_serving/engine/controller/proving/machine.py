"""What an engine's answers depend on beside the bundle: processor, GPU, Triton, runtime, switches.

The same bundle may answer rightly on one machine and wrongly on another, so a proof is of both.

Tested by tests/engine/test_proofs.py.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from transformer_serving.contract.gate.server_facts import (
    ONNXRUNTIME_VARIABLE,
    TENSORRT_VARIABLE,
    Gpu,
    installed,
    read_gpus,
)
from transformer_serving.engine.orphans import server_of

_CPU_INFO = Path("/proc/cpuinfo")
# As x86 and Arm name them.
_MODEL = ("model name", "CPU part")
_FEATURES = ("flags", "Features")
# Variables that choose kernels or the arithmetic of a runtime, such as ONEDNN_MAX_CPU_ISA.
_SWITCHES = (
    "ONEDNN_", "DNNL_", "OV_", "ORT_", "MKL_", "CUBLAS_", "CUDA_", "NVIDIA_TF32_OVERRIDE", "VLLM_",
    "TORCH_", "PYTORCH_",
)  # fmt: skip
_RUNTIMES = {
    "openvino_text": ("openvino",),
    "openvino_generate": ("openvino", "openvino-genai"),
    "onnxruntime": ("onnxruntime",),
    "torch_text": ("torch",),
    "tensorrt": ("tensorrt",),
    "vllm": ("vllm", "torch"),
}


@dataclass(frozen=True)
class Machine:
    """One machine with one Triton; `runtimes` and `switches` are pairs of name and value."""

    processor: str
    features: str
    triton: str
    runtimes: tuple[tuple[str, str], ...]
    switches: tuple[tuple[str, str], ...]
    gpus: tuple[Gpu, ...]

    def key(self, subject: str, backend: str) -> str:
        """The name of the proof of that subject, run by that backend, on this machine."""
        return _key(self, subject, backend)

    @property
    def name(self) -> str:
        """What people call it, for a message."""
        return ", ".join([self.processor, *(gpu.name for gpu in self.gpus)])


# Asked of every model at each of the controller's rounds.
@lru_cache(maxsize=1024)
def _key(machine: Machine, subject: str, backend: str) -> str:
    wanted = _RUNTIMES.get(backend)
    facts = asdict(machine)
    facts["runtimes"] = [
        (name, version) for name, version in machine.runtimes if not wanted or name in wanted
    ]
    meaning = json.dumps([facts, backend, subject], sort_keys=True)
    return hashlib.sha256(meaning.encode()).hexdigest()


def read_machine(
    triton: str,
    repository: Path,
    gpus: Callable[[Mapping[str, str]], tuple[Gpu, ...]] = read_gpus,
) -> Machine:
    """This machine, with the Triton of that version that serves `repository`.

    `gpus` are asked with Triton's variables; raises what that raises.
    """
    environment = _environment(repository)
    versions = {
        "openvino": installed("openvino"),
        "openvino-genai": installed("openvino-genai"),
        "onnxruntime": environment.get(ONNXRUNTIME_VARIABLE) or installed("onnxruntime"),
        "tensorrt": environment.get(TENSORRT_VARIABLE),
        "vllm": installed("vllm"),
        "torch": installed("torch"),
    }
    cpu = _first_processor()
    return Machine(
        processor=_stated(cpu, _MODEL) or "unknown processor",
        features=hashlib.sha256(
            " ".join(sorted(_stated(cpu, _FEATURES).split())).encode()
        ).hexdigest(),
        triton=triton,
        runtimes=tuple((name, version) for name, version in versions.items() if version),
        switches=tuple(
            sorted((n, value) for n, value in environment.items() if n.startswith(_SWITCHES))
        ),
        gpus=gpus(environment),
    )


def _environment(repository: Path) -> Mapping[str, str]:
    """Triton's own variables; where it is out of sight ours, which the same supervisor gave."""
    server = server_of(repository)
    try:
        return os.environ if server is None else server.environ()
    except psutil.Error:
        return os.environ


def _first_processor() -> Mapping[str, str]:
    try:
        block = _CPU_INFO.read_text("utf-8", "replace").split("\n\n", 1)[0]
    except OSError:
        return {}
    rows = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in rows}


def _stated(cpu: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((cpu[name] for name in names if name in cpu), "")
