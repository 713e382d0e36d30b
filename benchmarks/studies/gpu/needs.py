"""What a step needs of a machine, and what is said where it is not there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache

from benchmarks.runs import ab, wrk
from benchmarks.runs.rounds import reason
from benchmarks.servers.site import ROOT
from transformer_serving.contract.gate import server_facts
from transformer_serving.contract.gate.release import same
from transformer_serving.contract.gate.server_facts import NO_DEVICE, AskedGpus
from transformer_serving.desk.convert_packages import INSTALL
from transformer_serving.desk.versions.lock import read_lock

# Asked of a machine: None, or what is missing and what would bring it.
Need = Callable[[], str | None]
# Where nothing keeps the driver loaded, nvidia-smi loads it first, for each GPU of the machine.
_SMI_S = 60
_DOCKER_S = 30
_LIBRARY_S = 120
# Why torch sees none it says where it is told to begin, and else as a warning.
_ASK_TORCH = """
import torch
sees = torch.cuda.is_available()
why = f"built for CUDA {torch.version.cuda}"
if not sees:
    try:
        torch.cuda.init()
    except Exception as error:
        why += f"; {type(error).__name__}: {' '.join(str(error).split())}"
print(torch.__version__, sees, why)
"""
# A graph of one node that gives what it gets.
_ASK_ONNX = """
from onnx import TensorProto, helper
from benchmarks.runs.gpu_runtimes import open_on_cuda
given, found = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
graph = helper.make_graph([helper.make_node("Identity", "x", "y")], "one", [given], [found])
opset = helper.make_opsetid("", 17)
model = helper.make_model(graph, ir_version=8, opset_imports=[opset])
open_on_cuda(model.SerializeToString())
print("opened")
"""


@cache
def ask_gpus() -> AskedGpus:
    """Once in a process: where it is slow, it is so each time."""
    return server_facts.ask_gpus(os.environ, patience_s=_SMI_S)


def gpu() -> str | None:
    asked = ask_gpus()
    return None if asked.gpus else f"an NVIDIA GPU: {asked.why}"


def torch() -> str | None:
    if importlib.util.find_spec("torch"):
        return None
    return f"PyTorch: install it {INSTALL}"


def torch_cuda() -> str | None:
    if (missing := torch()) is not None:
        return missing
    wanted = "a torch that sees the GPU"
    try:
        version, sees, why = _asked(_ASK_TORCH).split(maxsplit=2)
    except _Unfit as error:
        return f"{wanted}: {error}"
    return None if sees == "True" else f"{wanted}: this is {version}, {why}"


class _Unfit(Exception):
    """What an installed library does not do."""


def _asked(code: str) -> str:
    """What the code says at last, in a process of its own: libraries that do not fit end an import,
    a driver that is stuck does not answer. Raises _Unfit."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False,
            timeout=_LIBRARY_S, cwd=ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _Unfit(f"this one does not say within {_LIBRARY_S} s whether it does") from None
    if asked.returncode:
        said = asked.stderr.strip().splitlines()
        raise _Unfit(f"this one fails: {said[-1] if said else asked.returncode}")
    return asked.stdout.strip().splitlines()[-1]


def engine_torch() -> str | None:
    """Where there is a GPU, figures of a torch that computes on the CPU would be taken for its;
    and figures of one that sees a GPU stand under its name, which only nvidia-smi says."""
    lacking, missing = gpu(), torch()
    if missing is not None:
        return missing
    if lacking is None:
        return torch_cuda()
    if ask_gpus().status not in (0, NO_DEVICE):
        return lacking
    return f"{lacking}, and torch sees one" if torch_cuda() is None else None


def tensorrt() -> str | None:
    pin = read_lock().image.tensorrt
    wanted = f"TensorRT {pin}: pip install tensorrt-cu12=={'.'.join(pin.split('.')[:3])}"
    try:
        version = str(importlib.import_module("tensorrt").__version__)
    except (ImportError, AttributeError, OSError):
        return wanted
    return None if same(version, pin) else f"{wanted}; {version} is installed"


def onnx_cuda() -> str | None:
    # That the provider was compiled in says nothing of CUDA's libraries.
    try:
        _asked(_ASK_ONNX)
    except _Unfit as error:
        return (
            f"an ONNX Runtime that opens a graph on CUDA: {error}; pip install "
            "'onnxruntime-gpu[cuda,cudnn]'"
        )
    return None


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


def lack(name: str) -> str | None:
    """What is said of a need that is not met, or that cannot be asked for."""
    try:
        return ALL[name]()
    except Exception as error:
        return f"{name}: {reason(error)}"


def missing() -> dict[str, str]:
    """By name, what this machine lacks of ALL."""
    return {name: said for name in ALL if (said := lack(name)) is not None}
