"""The matrix of Triton releases: one row a month, each cell with or without evidence.

Tested by tests/test_versions.py.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformer_serving.contract.gate.release import older, same
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

UNKNOWN = "unknown"
IMAGE = "nvcr.io/nvidia/tritonserver:{release}-py3"
# A tritonserver before it keeps a place on its stack for each piece of a body in chunks, so
# that one request for inference ends it: NVIDIA's CVE-2025-23310 and CVE-2025-23311.
ENDED_BY_CHUNKS_BEFORE = "25.07"
_TRITON_OF_25_07 = "2.59.1"
_FILE = Path(__file__).with_name("matrix.csv")

# How a cell that nobody has looked at is established, inside the image itself.
ESTABLISH = {
    "triton": "cat /opt/tritonserver/TRITON_VERSION",
    "tensorrt": "dpkg -l | grep nvinfer; tritonserver --version",
    "cuda": "printenv CUDA_VERSION",
    "driver_min": "printenv CUDA_DRIVER_VERSION",
    "onnxruntime": "ls /opt/tritonserver/backends/onnxruntime",
    "python": "python3 --version",
}


@dataclass(frozen=True)
class Release:
    """One row. `verified` names the cells with evidence of this very image; `indirect` those
    taken from another NVIDIA image of the month. `driver_datacenter` lists the older driver
    branches that serve on data-center GPUs, `compute_min` the oldest GPUs."""

    release: str
    triton: str
    tensorrt: str
    cuda: str
    driver_min: str
    driver_datacenter: tuple[str, ...]
    compute_min: str
    onnxruntime: str
    python: str
    tritonclient: str
    verified: frozenset[str]
    indirect: frozenset[str]
    note: str

    @property
    def image(self) -> str:
        return IMAGE.format(release=self.release)

    def evidence(self, cell: str) -> str:
        """'verified', 'indirect' or 'unknown'."""
        if cell in self.verified:
            return "verified"
        return "indirect" if cell in self.indirect else UNKNOWN

    def command(self, cells: Sequence[str]) -> str:
        """The command that establishes cells of this row."""
        inside = "; ".join(ESTABLISH[cell] for cell in cells)
        return f"docker run --rm {self.image} sh -c '{inside}'"

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "image": self.image,
            "verified": sorted(self.verified),
            "indirect": sorted(self.indirect),
        }


@cache
def read_matrix() -> tuple[Release, ...]:
    """Every row, oldest first."""
    with _FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_release(row) for row in csv.DictReader(file))


def _release(row: dict[str, str]) -> Release:
    branches = row["driver_datacenter"]
    return Release(
        release=row["release"],
        triton=row["triton"],
        tensorrt=row["tensorrt"],
        cuda=row["cuda"],
        driver_min=row["driver_min"],
        driver_datacenter=() if branches == UNKNOWN else tuple(branches.split()),
        compute_min=row["compute_min"],
        onnxruntime=row["onnxruntime"],
        python=row["python"],
        tritonclient=row["tritonclient"],
        verified=frozenset(row["verified"].split()),
        indirect=frozenset(row["indirect"].split()),
        note=row["note"],
    )


def find_release(release: str) -> Release:
    """Raises Failure (exit code 2) for a release that is not in the matrix."""
    rows = read_matrix()
    for row in rows:
        if row.release == release:
            return row
    raise Failure(
        f"release '{release}' is not in the matrix, which has {rows[0].release} to "
        f"{rows[-1].release}; see '{command_line('versions')}'",
        exit_code=2,
    )


def releases_with(tensorrt: str) -> tuple[str, ...]:
    """The releases that are known to hold a TensorRT version."""
    return tuple(row.release for row in read_matrix() if same(row.tensorrt, tensorrt))


def ended_by_chunks(triton: str) -> bool:
    """Whether one request in chunks ends a tritonserver of that version, a known one."""
    return older(triton, _TRITON_OF_25_07)
