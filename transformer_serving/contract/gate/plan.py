"""Whether a server's TensorRT and GPU can load a plan, and what to do when they cannot.

Tested by tests/contract/test_gate.py and tests/contract/test_plan_header.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_serving.contract.gate.plan_header import PlanHeader, read_plan_header
from transformer_serving.contract.gate.release import equal, older, parts, same
from transformer_serving.contract.gate.server_facts import ServerFacts

# Version-compatible plans go forward only: builder and runtime from 8.6, and these majors.
_FIRST_COMPATIBLE = "8.6"
_FORWARD = {8: (8, 9, 10), 9: (9, 10), 10: (10, 11), 11: (11,)}
_AMPERE = "8.0"
HARDWARE_LEVELS = ("none", "ampere+", "same_compute_capability")


def plan_faults(
    path: Path, name: str, stated: Mapping[str, Any], server: ServerFacts
) -> Iterator[str]:
    """Why the plan must not be loaded. `stated` is the manifest's field 'tensorrt'.

    Of it are read: version, compute_capability, version_compatible, hardware_compatibility.
    """
    header = read_plan_header(path, name)
    yield from _against_manifest(header, name, stated)
    yield from _version(header, name, stated, server)
    yield from _gpu(header, name, stated, server)


def _against_manifest(header: PlanHeader, name: str, stated: Mapping[str, Any]) -> Iterator[str]:
    version = stated.get("version")
    if version and header.tensorrt and not same(str(version), header.tensorrt):
        yield (
            f"file '{name}' was built by TensorRT {header.tensorrt}, the manifest says {version}: "
            "it is another plan; convert again"
        )
    capability = stated.get("compute_capability")
    if capability and not equal(header.compute_capability or str(capability), str(capability)):
        yield (
            f"file '{name}' was built on compute capability {header.compute_capability} "
            f"(observed), the manifest says {capability}: it is another plan; convert again"
        )


def _version(
    header: PlanHeader, name: str, stated: Mapping[str, Any], server: ServerFacts
) -> Iterator[str]:
    built = header.tensorrt or str(stated.get("version") or "")
    if server.tensorrt is None or not built or same(built, server.tensorrt):
        return
    compatible = bool(stated.get("version_compatible")) and header.version_compatible is not False
    if compatible and not server.version_compatible and goes_forward(built, server.tensorrt):
        yield (
            f"file '{name}' is a version-compatible plan of TensorRT {built}, and {server.name} "
            f"has {server.tensorrt} without the flag; start Triton with "
            "--backend-config=tensorrt,version-compatible=true"
        )
    elif not (compatible and goes_forward(built, server.tensorrt)):
        yield (
            f"file '{name}' was built by TensorRT {built}, {server.name} has {server.tensorrt}; "
            "convert again with the pinned image, or move the pin to a release with TensorRT "
            f"{built}: transformer-serving versions"
        )


def goes_forward(built: str, runtime: str) -> bool:
    """Whether a version-compatible plan of `built` runs on `runtime`."""
    if not parts(built) or not parts(runtime) or older(runtime, built):
        return False
    return not older(built, _FIRST_COMPATIBLE) and parts(runtime)[0] in _FORWARD.get(
        parts(built)[0], ()
    )


def _gpu(
    header: PlanHeader, name: str, stated: Mapping[str, Any], server: ServerFacts
) -> Iterator[str]:
    built = stated.get("compute_capability") or header.compute_capability
    if built is None:
        return
    level = stated.get("hardware_compatibility") or HARDWARE_LEVELS[0]

    def fits(own: str) -> bool:
        return equal(str(built), own) or (level == "ampere+" and not older(own, _AMPERE))

    why = f"file '{name}' was built for GPUs of compute capability {built}, {server.name} has"
    own = server.compute_capability
    if own is not None and not fits(own):
        yield f"{why} {own}; convert again on this GPU"
    unfit = [gpu for gpu in server.gpus if not fits(gpu.compute_capability)]
    if unfit:
        fix = "convert again on this GPU"
        if len(unfit) < len(server.gpus):
            fix = "give Triton GPUs of one kind, as with CUDA_VISIBLE_DEVICES"
        yield f"{why} {unfit[0].compute_capability} ({unfit[0].name}); {fix}"
