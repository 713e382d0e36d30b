"""What a step needs of a machine, and what is said where it is not there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from benchmarks.runs import ab, wrk
from transformer_serving.contract.gate.release import same
from transformer_serving.contract.gate.server_facts import read_gpus
from transformer_serving.desk.versions.lock import read_lock

# Asked of a machine: None, or what is missing and what would bring it.
Need = Callable[[], str | None]
_DOCKER_S = 30


def gpu() -> str | None:
    return None if read_gpus(os.environ) else "an NVIDIA GPU: nvidia-smi names none"


def torch() -> str | None:
    if importlib.util.find_spec("torch"):
        return None
    return "PyTorch: pip install 'transformer-serving[convert]'"


def torch_cuda() -> str | None:
    if (missing := torch()) is not None:
        return missing
    module: Any = importlib.import_module("torch")
    if module.cuda.is_available():
        return None
    return f"a torch that sees the GPU: this is {module.__version__}"


def engine_torch() -> str | None:
    """Where there is a GPU, figures of a torch that computes on the CPU would be taken for its."""
    return torch() if gpu() else torch_cuda()


def tensorrt() -> str | None:
    pin = read_lock().image.tensorrt
    wanted = f"TensorRT {pin}: pip install tensorrt-cu12=={'.'.join(pin.split('.')[:3])}"
    try:
        version = str(importlib.import_module("tensorrt").__version__)
    except (ImportError, AttributeError, OSError):
        return wanted
    return None if same(version, pin) else f"{wanted}; {version} is installed"


def onnx_cuda() -> str | None:
    from benchmarks.runs.gpu_runtimes import CUDA

    try:
        there = importlib.import_module("onnxruntime").get_available_providers()
    except ImportError:
        there = []
    return None if CUDA in there else "ONNX Runtime on CUDA: pip install onnxruntime-gpu"


def image() -> str | None:
    """The pinned Triton image in a Docker that this user may ask."""
    name = read_lock().image.image
    wanted = f"the image {name} in a Docker with the NVIDIA runtime"
    if shutil.which("docker") is None:
        return wanted
    try:
        done = subprocess.run(
            ["docker", "image", "inspect", name], capture_output=True, check=False,
            timeout=_DOCKER_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return wanted
    return None if done.returncode == 0 else wanted


def load_tools() -> str | None:
    """Not a need of a step: our own generator takes their place, and the page says so."""
    if ab.available() and wrk.available():
        return None
    return "ab and wrk: apt-get install apache2-utils wrk"


ALL: dict[str, Need] = {
    "GPU": gpu,
    "torch": torch,
    "torch on CUDA": torch_cuda,
    "engine torch": engine_torch,
    "TensorRT": tensorrt,
    "ONNX Runtime on CUDA": onnx_cuda,
    "Triton image": image,
    "load tools": load_tools,
}


def missing() -> dict[str, str]:
    """By name, what this machine lacks of ALL."""
    return {name: said for name, need in ALL.items() if (said := need()) is not None}
