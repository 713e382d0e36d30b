"""The commands of the Triton container's two processes, by the variables that it was given.

Tested by tests/engine/test_container.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

from transformer_serving.contract.gate.server_facts import COMPATIBLE_VARIABLE
from transformer_serving.contract.settings.polls import SERVING_POLL, TRITON_POLL
from transformer_serving.contract.settings.stop import (
    TRITON_EXIT_SECONDS,
    refuse_a_stop_that_does_not_fit,
)
from transformer_serving.engine.controller.files.room import STORE_BYTES_VARIABLE
from transformer_serving.engine.triton_process import LOOPBACK, TritonAddresses, triton_command
from transformer_serving.engine.triton_traces import trace_options

TRITONSERVER = Path("/opt/tritonserver/bin/tritonserver")
BACKENDS = Path("/opt/tritonserver/backends")
# The controller's figures and Triton's, for a Prometheus in the containers' network.
METRICS_PORT = 8003
GRACE_VARIABLE = "TRANSFORMER_SERVING_GRACE_SECONDS"
# Of an update's load, beside the look of the controller that begins it and that of the last worker
# that learns of it.
_BESIDE_POLLS_S = 30.0
FILTER_VARIABLE = "TRANSFORMER_SERVING_ENDPOINTS"
KEEP_TASKS_VARIABLE = "TRANSFORMER_SERVING_KEEP_TASKS_SECONDS"
# On a control plane of the kit's own, where nobody else deletes them: each start of a worker makes
# a task. docker/entrypoint.py leaves the variable where that one is asked.
KEEP_TASKS_SECONDS = 3600
LOCAL_API_VARIABLE = "TRANSFORMER_SERVING_LOCAL_API"
# The task of before, with which the inference container goes on.
WORKERS_TASK_VARIABLE = "CLEARML_INFERENCE_TASK_ID"
MODEL_CACHE_VARIABLE = "TRANSFORMER_SERVING_MODEL_CACHE"
_MOST_BYTES = 1 << 53
# More than the longest polls make of it, where none is set.
_MOST_GRACE_S = 100_000_000
STATE_FILE = "controller.json"
# For what ends beside and after Triton: the controller, the models.
_LEAVE_S = 20.0


def commands(environment: Mapping[str, str], state: Path, key: str) -> tuple[list[str], list[str]]:
    """The two commands. Raises ValueError naming a variable that is no number or does not fit.

    Triton listens on every address of the container, of which compose publishes none: for
    inference, and for control beside the key. Its figures are for this container alone.
    """
    extra = [f"--exit-timeout-secs={exit_seconds(environment)}"]
    if environment.get(COMPATIBLE_VARIABLE) == "1":
        extra.append("--backend-config=tensorrt,version-compatible=true")
    extra += trace_options(TRITONSERVER, environment)
    triton = triton_command(
        TRITONSERVER,
        repository=state / "models",
        backend_directory=BACKENDS,
        addresses=TritonAddresses(host="0.0.0.0", metrics_host=LOOPBACK),
        key=key,
        extra=extra,
    )
    return triton, controller_command(environment, state)


def end_seconds(environment: Mapping[str, str]) -> float:
    """What all of the container has for its end. Raises ValueError as `exit_seconds` does."""
    return exit_seconds(environment) + _LEAVE_S


def exit_seconds(environment: Mapping[str, str]) -> int:
    """What Triton has for its end. Raises ValueError naming a variable that is none or too much."""
    seconds = math.ceil(TRITON_EXIT_SECONDS.number(environment))
    refuse_a_stop_that_does_not_fit(
        environment, {TRITON_EXIT_SECONDS.name: seconds}, beside=_LEAVE_S
    )
    return seconds


def controller_command(environment: Mapping[str, str], state: Path) -> list[str]:
    """Raises ValueError as `commands` does."""
    poll = TRITON_POLL.number(environment)
    # Where nobody says how often the workers look, as often as this one.
    workers = SERVING_POLL.number(environment) if environment.get(SERVING_POLL.name) else poll
    grace = _grace_seconds(environment, 60 * (poll + workers))
    kept = _keeps_tasks_seconds(environment)
    command = [
        sys.executable,
        "-m",
        "transformer_serving.engine.controller",
        f"--serving-id={environment.get('CLEARML_SERVING_TASK_ID', '')}",
        "--triton-metrics=http://127.0.0.1:8002/metrics",
        f"--metrics-address=0.0.0.0:{METRICS_PORT}",
        f"--triton-log={state / 'triton.log'}",
        f"--repository={state / 'models'}",
        f"--state={state / STATE_FILE}",
        f"--poll-seconds={60 * poll:.9g}",
        f"--grace-seconds={grace:.9g}",
        f"--keep-tasks-seconds={_number(environment, KEEP_TASKS_VARIABLE, kept, or_0=True):g}",
        f"--filter={environment.get(FILTER_VARIABLE) or '*'}",
    ]
    if cache := environment.get(MODEL_CACHE_VARIABLE):
        command.append(f"--model-cache={cache}")
    if environment.get(STORE_BYTES_VARIABLE):
        limit = _number(environment, STORE_BYTES_VARIABLE, 0.0, below=_MOST_BYTES)
        command.append(f"--store-bytes={limit:.0f}")
    return command


def _grace_seconds(environment: Mapping[str, str], polls_s: float) -> float:
    """`polls_s` is both polls together. Raises ValueError for a grace that is over before them."""
    fits = math.ceil(polls_s + _BESIDE_POLLS_S)
    grace = _number(environment, GRACE_VARIABLE, fits, below=_MOST_GRACE_S)
    if grace <= polls_s:
        raise ValueError(
            f"{GRACE_VARIABLE} ({grace:g}) must be more than {TRITON_POLL.name} and "
            f"{SERVING_POLL.name} together ({polls_s:g} s), or workers ask for a bundle that is "
            f"unloaded: set {fits}, or none for that"
        )
    return grace


def _keeps_tasks_seconds(environment: Mapping[str, str]) -> int:
    """Where nobody says; 0: for ever, as a task that a container goes on with must stay."""
    is_local = LOCAL_API_VARIABLE in environment and not environment.get(WORKERS_TASK_VARIABLE)
    return KEEP_TASKS_SECONDS if is_local else 0


def _number(
    environment: Mapping[str, str], name: str, default: float, below: int = 86_400, *,
    or_0: bool = False,
) -> float:  # fmt: skip
    text = environment.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < below and not (or_0 and number == 0):
        least = "of at least" if or_0 else "above"
        raise ValueError(f"{name} must be a number {least} 0, less than {below}")
    return number
