"""The cores of a container, and how many of them a native ONNX Runtime is told to take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transformer_serving.engine.backends.model_settings import available_cores
from transformer_serving.engine.controller.files import thread_count
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.model_config import FILE_NAME, from_text

ALL = 64


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more cores than any quota here."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(ALL)))
    monkeypatch.setattr(os, "cpu_count", lambda: ALL)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, ALL),
        ({"cpu.max": "max 100000"}, ALL),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": ""}, ALL),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, ALL),
        ({"cpu/cpu.cfs_quota_us": "350000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "350000"}, ALL),
    ],
)
def test_a_quota_of_either_version_of_control_groups_counts(
    tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert available_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("config", "cores", "threads"),
    [
        ('backend: "onnxruntime"', 4, "4"),
        ('platform: "onnxruntime_onnx"', 4, "4"),
        ('backend: "onnxruntime" instance_group { count: 2 }', 4, "2"),
        ('backend: "onnxruntime" instance_group { count: 8 }', 4, "1"),
        ('backend: "onnxruntime" instance_group { count: 1 gpus: [0, 1] }', 4, "2"),
        (
            'backend: "onnxruntime" parameters { key: "intra_op_thread_count" '
            'value { string_value: "7" } }',
            4,
            "7",
        ),
        # The whole host: its own choice is the better one.
        ('backend: "onnxruntime"', ALL, None),
        ('backend: "openvino_text"', 4, None),
        ('backend: "python" default_model_filename: "onnxruntime"', 4, None),
    ],
)
def test_the_configuration_that_triton_reads_names_the_containers_threads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    cores: int,
    threads: str | None,
) -> None:
    monkeypatch.setattr(thread_count, "available_cores", lambda: cores)
    repository = Repository(tmp_path)
    repository.install("m", {}, config)
    written = (tmp_path / "m" / FILE_NAME).read_text()
    parameters = from_text(written).parameters
    found = parameters["intra_op_thread_count"].string_value if parameters else None
    assert found == threads
    if threads is None:
        assert written == config
