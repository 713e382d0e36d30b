"""What a backend reads from the model configuration that Triton passes to it.

Tested by tests/engine/test_backends.py and tests/engine/test_thread_count.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer_serving.contract.error_line import in_ascii

DTYPES = {
    "TYPE_BOOL": "bool",
    "TYPE_UINT8": "uint8",
    "TYPE_UINT16": "uint16",
    "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
}
TRITON_TYPES = {numpy_name: triton for triton, numpy_name in DTYPES.items()}
# Quota and period of the control groups' second version, and of its first.
_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


class ModelError(Exception):
    """The model cannot be served as configured; the message names the file or field and the fix."""


class DeviceFailed(ModelError):
    """The device computes nothing more for this process; another one may have it back."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the graph or the configuration; -1 in `dims` is any size.

    `dims` include the batch axis. `dtype` is the numpy name.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]

    @property
    def integer(self) -> bool:
        return bool(np.issubdtype(np.dtype(self.dtype), np.integer))


@dataclass(frozen=True)
class ModelSettings:
    """The model configuration, as far as our backends honour it.

    `gpu` is the number of the instance's own, None on a CPU.
    """

    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    instances: int
    file_name: str
    parameters: Mapping[str, str]
    graph_level: int
    gpu: int | None = None

    def served(self, outputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Those of a graph's outputs that the configuration names; all where it names none."""
        named = {spec.name for spec in self.outputs}
        return tuple(spec for spec in outputs if not named or spec.name in named)

    def count(self, name: str, default: int) -> int:
        """A parameter that is a count; 0 and absent mean the default."""
        text = self.parameters.get(name, "").strip() or "0"
        if not text.isdigit():
            raise ModelError(f"parameter '{name}' must be a whole number, got '{in_ascii(text)}'")
        return int(text) or default

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        value = self.parameters.get(name, "").strip() or default
        if value not in allowed:
            raise ModelError(
                f"parameter '{name}' must be one of {', '.join(allowed)}, got '{in_ascii(value)}'"
            )
        return value

    @property
    def threads(self) -> int:
        """Threads of one instance: its share of the cores unless `intra_op_thread_count` says."""
        return self.count("intra_op_thread_count", max(1, available_cores() // self.instances))


def read_settings(config: Mapping[str, Any]) -> ModelSettings:
    """The settings in a model configuration (the JSON that Triton passes, parsed)."""
    max_batch_size = int(config.get("max_batch_size") or 0)
    optimization = config.get("optimization") or {}
    return ModelSettings(
        max_batch_size=max_batch_size,
        inputs=_tensors(config.get("input"), max_batch_size),
        outputs=_tensors(config.get("output"), max_batch_size),
        instances=max(1, sum(map(_instances, config.get("instance_group") or []))),
        file_name=str(config.get("default_model_filename") or ""),
        parameters={
            name: str(value.get("string_value", ""))
            for name, value in (config.get("parameters") or {}).items()
        },
        graph_level=int((optimization.get("graph") or {}).get("level") or 0),
    )


def _instances(group: Mapping[str, Any]) -> int:
    """Processes of a group: its count on each of its GPUs, or on the CPU."""
    return int(group.get("count", 1)) * max(1, len(group.get("gpus") or []))


def _tensors(rows: Any, max_batch_size: int) -> tuple[TensorSpec, ...]:
    batch = (-1,) if max_batch_size else ()
    return tuple(
        TensorSpec(
            str(row["name"]),
            DTYPES.get(str(row["data_type"]), str(row["data_type"])),
            batch + tuple(int(size) for size in row["dims"]),
        )
        for row in rows or []
    )


def available_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use: its affinity, and the container's quota where there is one."""
    cores = len(os.sched_getaffinity(0))
    for files in _QUOTAS:
        try:
            words = " ".join((groups / name).read_text("ascii") for name in files).split()
            quota, period = int(words[0]), int(words[1])
        except (OSError, ValueError, IndexError):
            # Not there, or "max".
            continue
        # The first version says -1 where there is none.
        if quota > 0 and period > 0:
            cores = min(cores, -(-quota // period))
    return max(1, cores)


def find_model(folder: Path, settings: ModelSettings, names: tuple[str, ...]) -> Path:
    """The model file of a version folder: the configured one, else the first of `names`."""
    wanted = (settings.file_name,) if settings.file_name else names
    for name in wanted:
        path = folder / name
        # A model with external weights may be a folder that holds model.onnx.
        inner = path / "model.onnx"
        if path.is_dir() and inner.is_file():
            return inner
        if path.is_file():
            return path
    single = sorted(folder.glob("*.onnx"))
    if not settings.file_name and len(single) == 1:
        return single[0]
    found = ", ".join(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ""
    raise ModelError(
        f"model file '{in_ascii(wanted[0])}' is missing in version {folder.name} "
        f"(found: {in_ascii(found) or 'nothing'}); upload the model again"
    )


def check_tensors(
    kind: str, configured: tuple[TensorSpec, ...], graph: tuple[TensorSpec, ...]
) -> None:
    """Refuse a configuration whose inputs or outputs the graph does not have."""
    known = {spec.name: spec for spec in graph}
    for spec in configured:
        own = known.get(spec.name)
        if own is None:
            names = ", ".join(in_ascii(name) for name in known)
            raise ModelError(f"{kind} '{in_ascii(spec.name)}' is not in the model; it has: {names}")
        if own.dtype not in TRITON_TYPES:
            raise ModelError(
                f"{kind} '{in_ascii(spec.name)}' is {in_ascii(own.dtype)} in the model, and this "
                f"backend takes {', '.join(TRITON_TYPES)}; export the model with one of these"
            )
        if own.dtype != spec.dtype:
            raise ModelError(
                f"{kind} '{in_ascii(spec.name)}' is {own.dtype} in the model and {spec.dtype} in "
                f"the configuration; set its type to {own.dtype}"
            )
        if len(own.dims) != len(spec.dims) or any(
            mine != theirs and mine > 0 and theirs > 0
            for mine, theirs in zip(own.dims, spec.dims, strict=False)
        ):
            raise ModelError(
                f"{kind} '{in_ascii(spec.name)}' has dims {list(own.dims)} in the model and "
                f"{list(spec.dims)} in the configuration (batch included)"
            )
