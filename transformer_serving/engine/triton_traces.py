"""tritonserver's own OpenTelemetry mode, where traces are on and the build has it.

Tested by tests/engine/test_triton_traces.py.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from transformer_serving.contract.worker.tracing import ENDPOINT, ENDPOINTS, traces_are_on

log = logging.getLogger("engine.triton")

_PATH = "/v1/traces"
_HELP_S = 30.0


def trace_options(
    tritonserver: Path,
    environment: Mapping[str, str] = os.environ,
    run_in: Mapping[str, str] | None = None,
) -> list[str]:
    """The options by which requests that bring a traceparent are traced, and no others.

    `run_in` is the environment in which the program runs. A build without the mode would not start
    with them.
    """
    if not traces_are_on(environment):
        return []
    if not has_mode(tritonserver, run_in):
        log.warning("this tritonserver has no OpenTelemetry mode: its part of traces is missing")
        return []
    # Who calls it has decided: a rate of 0 adds none of Triton's own choice.
    return [
        "--trace-config=mode=opentelemetry",
        f"--trace-config=opentelemetry,url={receiver(environment)}",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=0",
    ]


def receiver(environment: Mapping[str, str]) -> str:
    """Where traces go: an address of traces alone is whole, the other one is without the path."""
    of_traces = environment.get(ENDPOINTS[0])
    return of_traces or environment[ENDPOINT.name].rstrip("/") + _PATH


def has_mode(tritonserver: Path, run_in: Mapping[str, str] | None) -> bool:
    try:
        done = subprocess.run(
            [str(tritonserver), "--help"], env=None if run_in is None else dict(run_in),
            capture_output=True, text=True, timeout=_HELP_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return "opentelemetry" in (done.stdout + done.stderr).lower()
