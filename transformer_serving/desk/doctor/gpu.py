"""Checks of the NVIDIA driver and GPU against the image pin.

Tested by tests/doctor/test_faults.py.
"""

from __future__ import annotations

import re
import shutil

from transformer_serving.contract.error_line import MOST, one_line
from transformer_serving.contract.gate.release import older, parts
from transformer_serving.contract.gate.server_facts import ASK_GPUS, Gpu, gpus_of
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import Finding, Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.versions.matrix import UNKNOWN, find_release

# Of a driver whose library is another one's, or which has lost its GPU.
RELOAD = (
    "restart the machine, or load the module again while nobody uses the GPU; then restart Triton"
)
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def check_driver(subject: Subject) -> Findings:
    driver = _driver(subject)
    if driver is None:
        yield skipped("no NVIDIA driver: only CPU engines serve here")
        return
    pin, row = subject.lock.image, find_release(subject.lock.image.release)
    if not older(driver, pin.driver_min):
        yield ok(f"NVIDIA driver {driver}, the image {pin.release} needs {pin.driver_min}")
    elif any(_same_branch(driver, branch) for branch in row.driver_datacenter):
        yield warning(
            f"NVIDIA driver {driver} is older than {pin.driver_min} of the image {pin.release}; "
            "it serves on data-center GPUs only",
            f"on any other GPU install driver {pin.driver_min} or newer",
        )
    else:
        yield failure(
            f"NVIDIA driver {driver} is older than {pin.driver_min} of the image {pin.release}",
            f"install driver {pin.driver_min} or newer, or pin an older release: "
            f"{command_line('versions')}",
        )


def _driver(subject: Subject) -> str | None:
    if subject.gpus:
        return subject.gpus[0].driver
    if subject.driver_file.is_file():
        found = _VERSION.search(subject.driver_file.read_text("utf-8", "replace"))
        return found[1] if found else None
    return None


def _same_branch(driver: str, branch: str) -> bool:
    """A branch such as 535.86 goes on in all later drivers of its first number."""
    return parts(driver)[:1] == parts(branch)[:1] and not older(driver, branch)


def check_gpu(subject: Subject) -> Findings:
    if not subject.gpus:
        yield _none(subject)
    for gpu in subject.gpus:
        yield _capability(gpu, subject)


def _none(subject: Subject) -> Finding:
    """A driver's file is seen in every container; nvidia-smi is in those that get a GPU."""
    if not subject.driver_file.is_file():
        return skipped("nvidia-smi reports no GPU")
    if shutil.which(ASK_GPUS[0], path=subject.environment.get("PATH")) is None:
        return skipped("no nvidia-smi is on PATH")
    asked = subject.run(*ASK_GPUS)
    said = [line for line in asked.output.splitlines() if line.strip() and not gpus_of(line)]
    why = "it does not end" if asked.code is None else said[0].strip() if said else "no GPU"
    return failure(f"a driver is loaded, and nvidia-smi says: {one_line(why, MOST)}", RELOAD)


def _capability(gpu: Gpu, subject: Subject) -> Finding:
    row = find_release(subject.lock.image.release)
    why = f"{gpu.name}, compute capability {gpu.compute_capability}"
    if row.compute_min == UNKNOWN:
        return warning(
            f"{why}; what release {row.release} needs at least is unknown",
            f"read the GPU requirements in NVIDIA's notes on release {row.release}",
        )
    if older(gpu.compute_capability, row.compute_min):
        return failure(
            f"{why}, release {row.release} needs {row.compute_min} or higher",
            f"use a newer GPU, or pin an older release: {command_line('versions')}",
        )
    return ok(why)
