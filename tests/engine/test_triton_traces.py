"""The options of Triton's OpenTelemetry mode, taken by the real tritonserver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_serving.engine import triton_traces
from transformer_serving.engine.backend_directory import pytriton_tritonserver
from transformer_serving.engine.triton_process import triton_environment
from transformer_serving.engine.triton_traces import has_mode, receiver, trace_options

ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def program(folder: Path, help_text: str) -> Path:
    made = folder / "server"
    made.write_text(f"#!/bin/sh\necho '{help_text}'\nexit 1\n")
    made.chmod(0o755)
    return made


def test_off_asks_nothing_of_the_program(tmp_path: Path) -> None:
    assert trace_options(tmp_path / "nowhere", {}) == []


def test_on_it_sends_what_callers_trace(tmp_path: Path) -> None:
    made = program(tmp_path, "--trace-config ... OpenTelemetry ...")
    assert trace_options(made, ON) == [
        "--trace-config=mode=opentelemetry",
        "--trace-config=opentelemetry,url=http://collector:4318/v1/traces",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=0",
    ]


def test_a_build_without_the_mode_starts_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a long run of other tests the real logger's line was once and again not caught.
    told: list[str] = []
    monkeypatch.setattr(triton_traces, "log", SimpleNamespace(warning=told.append))
    assert trace_options(program(tmp_path, "--model-repository"), ON) == []
    assert ["no OpenTelemetry mode" in line for line in told] == [True]
    assert trace_options(tmp_path / "nowhere", ON) == []


def test_an_address_of_traces_alone_is_whole() -> None:
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4318/own"}
    assert receiver({**ON, **own}) == "http://traces:4318/own"


@pytest.mark.slow
def test_the_pinned_tritonserver_has_it() -> None:
    assert has_mode(pytriton_tritonserver() / "bin" / "tritonserver", triton_environment())
