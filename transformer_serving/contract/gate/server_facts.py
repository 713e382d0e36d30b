"""What is known of the server that is to load a model: from a pin, or asked where Triton runs.

Tested by tests/contract/test_gate.py.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from subprocess import PIPE
from typing import NamedTuple

# NVIDIA's images set the first two themselves; the third is for images whose ONNX Runtime is
# not a Python package.
TENSORRT_VARIABLE = "TRT_VERSION"
TRITON_VARIABLE = "TRITON_SERVER_VERSION"
ONNXRUNTIME_VARIABLE = "TRANSFORMER_SERVING_ONNXRUNTIME"
# For a desk, or a container without nvidia-smi: the compute capability of the servers' GPUs.
CAPABILITY_VARIABLE = "TRANSFORMER_SERVING_COMPUTE_CAPABILITY"
COMPATIBLE_VARIABLE = "TRANSFORMER_SERVING_VERSION_COMPATIBLE"
ASK_GPUS = ("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
_ASK_S = 10.0
# What was killed is gone by then, but where the kernel holds it.
_KILLED_S = 1.0
# nvidia-smi's exit status where it finds no device.
NO_DEVICE = 6
# Known not to be there, which is another thing than unknown.
MISSING = ""


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi reports it."""

    name: str
    driver: str
    compute_capability: str


@dataclass(frozen=True)
class ServerFacts:
    """None is unknown, and nothing is refused for what is unknown.

    `tensorrt` has up to four parts; `torch` is MISSING where there is none. `name` says whose facts
    these are, for messages. `compute_capability` is what somebody says of all its GPUs, `gpus` are
    those that Triton uses, where they can be asked.
    `version_compatible`: Triton runs with --backend-config=tensorrt,version-compatible=true.
    """

    name: str = "this server"
    tensorrt: str | None = None
    triton: str | None = None
    compute_capability: str | None = None
    gpus: tuple[Gpu, ...] = ()
    onnxruntime: str | None = None
    torch: str | None = None
    kit_version: str | None = None
    version_compatible: bool = False


def server_facts(environment: Mapping[str, str]) -> ServerFacts:
    """The facts of the machine or container that this runs in."""
    stated = environment.get(CAPABILITY_VARIABLE) or None
    return ServerFacts(
        tensorrt=environment.get(TENSORRT_VARIABLE) or None,
        triton=environment.get(TRITON_VARIABLE) or None,
        compute_capability=stated,
        gpus=() if stated else visible_gpus(environment),
        onnxruntime=environment.get(ONNXRUNTIME_VARIABLE) or installed("onnxruntime"),
        torch=installed("torch") or MISSING,
        kit_version=installed("transformer-serving"),
        version_compatible=is_version_compatible(environment),
    )


def is_version_compatible(environment: Mapping[str, str]) -> bool:
    """Whether Triton runs with its flag for plans that bring code of their own."""
    return environment.get(COMPATIBLE_VARIABLE) == "1"


def installed(distribution: str) -> str | None:
    """The version of an installed Python package."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def visible_gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those that CUDA shows a process with these variables; none where that cannot be told.

    CUDA counts from the fastest one on unless CUDA_DEVICE_ORDER says otherwise, nvidia-smi by the
    bus. So a number means one of several only where all are alike.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return read_gpus(environment)
    named = [one.strip() for one in chosen.split(",")]
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if all(one.startswith("GPU-") or (by_bus and one.isdigit()) for one in named):
        return read_gpus(environment, f"--id={','.join(named)}")
    gpus = read_gpus(environment) if all(map(str.isdigit, named)) else ()
    return gpus if len(set(gpus)) == 1 else ()


def read_gpus(environment: Mapping[str, str], *chosen: str) -> tuple[Gpu, ...]:
    """The GPUs of this machine, in nvidia-smi's order; none without nvidia-smi on PATH or when it
    fails. `chosen` are options of it."""
    return ask_gpus(environment, *chosen).gpus


class AskedGpus(NamedTuple):
    """What nvidia-smi names, or `why` that is none; its exit `status`, 0 where there is no such
    program, and None where it could not be run or did not end: there may be GPUs then."""

    gpus: tuple[Gpu, ...]
    why: str = ""
    status: int | None = 0


def ask_gpus(environment: Mapping[str, str], *chosen: str, patience_s: float = _ASK_S) -> AskedGpus:
    """As `read_gpus`, with what became of nvidia-smi."""
    try:
        done = _ran([*ASK_GPUS, *chosen], environment, patience_s)
    except FileNotFoundError:
        return AskedGpus((), "there is no nvidia-smi on PATH")
    except OSError as error:
        return AskedGpus((), f"nvidia-smi cannot be run: {error}", None)
    except subprocess.TimeoutExpired:
        said = f"nvidia-smi did not answer within {patience_s:g} s; let the driver stay loaded: "
        return AskedGpus((), f"{said}nvidia-smi -pm 1", None)
    if done.returncode not in (0, NO_DEVICE):
        lines = f"{done.stdout}\n{done.stderr}".split("\n")
        said = next((line.strip() for line in lines if line.strip()), "without a word")
        return AskedGpus((), f"nvidia-smi ended with {done.returncode}: {said}", done.returncode)
    gpus = () if done.returncode else gpus_of(done.stdout)
    return AskedGpus(gpus, "" if gpus else "nvidia-smi names none", done.returncode)


def _ran(
    command: list[str], environment: Mapping[str, str], patience_s: float
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run, which waits without an end for what it kills: in a driver's call that
    hangs, nothing ends."""
    process = subprocess.Popen(command, env=dict(environment), stdout=PIPE, stderr=PIPE, text=True)
    try:
        said, complained = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILLED_S)
        raise
    return subprocess.CompletedProcess(command, process.returncode, said, complained)


def gpus_of(said: str) -> tuple[Gpu, ...]:
    """What ASK_GPUS said."""
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    return tuple(Gpu(*row) for row in rows if len(row) == 3)
