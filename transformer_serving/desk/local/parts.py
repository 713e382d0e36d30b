"""The table of the stack's parts: what runs, what must answer before it starts, and how health is
asked.

What one part alone needs for its command is imported there: every start of each of them reads this.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.clearml_tools.variables import without_clearml
from transformer_serving.desk.local.record import (
    LOOPBACK,
    MONITORING,
    POLL_SECONDS,
    StackRecord,
    clearml_environment,
)
from transformer_serving.desk.local.sockets import make_private
from transformer_serving.gateway.settings import WORKERS

GRACE_SECONDS = 30
# Three looks of the workers.
NOTICE_SECONDS = 3 * POLL_SECONDS
_TRITON_EXIT_S = 1
# With the SDK's own 240 tries and pauses of up to two minutes, a part that was started or told to
# leave while the control plane was away would notice long after that it is back.
SDK_CONFIGURATION = """api.http {
  wait_on_maintenance_forever: false
  retries { total: 6, connect: 6, read: 6, redirect: 6, status: 6, backoff_factor: 0.1 }
}
"""


@dataclass(frozen=True)
class Launch:
    """A part's command and the variables it gets on top of the caller's environment."""

    command: list[str]
    environment: dict[str, str]

    def run_in(self, environment: Mapping[str, str]) -> dict[str, str]:
        """All its variables: of the caller's those of another ClearML server are left out."""
        return {**without_clearml(environment), **self.environment}


@dataclass(frozen=True)
class Part:
    """One supervised process. Parts stop in the reverse of the table's order.

    `address` is where it listens, host:port or unix:/path; there `health` says whether it is
    ready and `live` answers while it runs. All are None for a part without a listener, which
    shows a heartbeat instead. `needs` are parts that must answer before it starts, and one that
    `needs_service` is of a serving service, which a first start creates. One that `may_load`
    answers nobody while it does, and itself ends what hangs in it. `version` is where it says its
    own, a path and the keys within the answer; the kit's where it says none.
    """

    name: str
    launch: Callable[[Path, StackRecord], Launch]
    address: Callable[[StackRecord], str] | None
    health: str | None
    live: str | None
    needs: tuple[str, ...] = ()
    needs_service: bool = False
    may_load: bool = False
    version: tuple[str, ...] = ()

    def listens(self, record: StackRecord) -> str | None:
        return None if self.address is None else self.address(record)


def control_plane_data(state: Path) -> Path:
    """The folder of its database and files."""
    return state / "control-plane"


def _control_plane(state: Path, record: StackRecord) -> Launch:
    command = [
        sys.executable,
        "-P",
        "-m",
        "transformer_serving.control_plane",
        "--host=127.0.0.1",
        f"--port={record.ports.control_plane}",
        f"--data={control_plane_data(state)}",
    ]
    return Launch(
        command,
        {
            "TRANSFORMER_SERVING_ACCESS_KEY": record.access_key,
            "TRANSFORMER_SERVING_SECRET_KEY": record.secret_key,
        },
    )


def _triton(state: Path, record: StackRecord) -> Launch:
    from transformer_serving.engine import backend_directory, orphans, triton_process, triton_traces

    repository = state / "triton" / "models"
    repository.mkdir(parents=True, exist_ok=True)
    orphans.end_orphans(repository)
    pytriton = backend_directory.pytriton_tritonserver()
    backends = backend_directory.assemble(state / "triton" / "backends", pytriton=pytriton)
    # Of one that was removed from the temporary folder Triton would make none.
    make_private(Path(record.sockets))
    record.triton.remove_sockets()
    tritonserver = pytriton / "bin" / "tritonserver"
    environment = triton_process.triton_environment()
    traces = triton_traces.trace_options(tritonserver, run_in=environment)
    command = triton_process.triton_command(
        tritonserver,
        repository=repository,
        backend_directory=backends,
        addresses=record.triton,
        # Nobody is waited for: the worker has left before, or asks the Triton that comes next.
        extra=(f"--exit-timeout-secs={_TRITON_EXIT_S}", *traces),
    )
    return Launch(command, environment)


def _controller(state: Path, record: StackRecord) -> Launch:
    from transformer_serving.contract.gate.server_facts import TRITON_VARIABLE
    from transformer_serving.desk.versions.lock import read_lock
    from transformer_serving.engine.container_commands import KEEP_TASKS_SECONDS

    command = [
        sys.executable,
        "-P",
        "-m",
        "transformer_serving.engine.controller",
        f"--serving-id={record.serving_id}",
        f"--triton-grpc={record.triton.grpc}",
        f"--triton-metrics=http://{record.triton.metrics}/metrics",
        f"--metrics-address={LOOPBACK}:{record.ports.controller_metrics}",
        f"--triton-log={state / 'logs' / 'triton.log'}",
        f"--repository={state / 'triton' / 'models'}",
        f"--state={controller_state(state)}",
        f"--poll-seconds={POLL_SECONDS}",
        f"--grace-seconds={GRACE_SECONDS}",
        f"--keep-tasks-seconds={KEEP_TASKS_SECONDS}",
        f"--notice-seconds={NOTICE_SECONDS}",
    ]
    # As NVIDIA's images say it of theirs.
    triton = {TRITON_VARIABLE: read_lock().embedded.triton}
    return Launch(command, {**_clearml(state, record, "controller"), **triton})


def gateway_launch(state: Path, record: StackRecord, name: str, port: int, workers: int) -> Launch:
    """A gateway of the stack; its ClearML files are in a folder of that name."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "transformer_serving.gateway",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--workers={workers}",
    ]
    environment = {
        **_clearml(state, record, name),
        # The host reads this in minutes.
        "CLEARML_SERVING_POLL_FREQ": f"{POLL_SECONDS / 60:.5f}",
        "TRANSFORMER_SERVING_TRITON_HTTP": record.triton.http,
        "TRANSFORMER_SERVING_TRITON_GRPC": record.triton.grpc,
        "TOKENIZERS_PARALLELISM": "false",
    }
    return Launch(command, environment)


def _inference(state: Path, record: StackRecord) -> Launch:
    workers = int(WORKERS.number(os.environ))
    return gateway_launch(state, record, "inference", record.ports.inference, workers)


def _prometheus(state: Path, record: StackRecord) -> Launch:
    from transformer_serving.desk.local import monitoring

    return Launch(monitoring.prometheus_command(state, record), {})


def _alertmanager(state: Path, record: StackRecord) -> Launch:
    from transformer_serving.desk.local import monitoring

    return Launch(monitoring.alertmanager_command(state, record), {})


def _watchdog(state: Path, record: StackRecord) -> Launch:
    return Launch(
        [sys.executable, "-P", "-m", "transformer_serving.desk.local.watchdog", str(state)], {}
    )


def _clearml(state: Path, record: StackRecord, part: str) -> dict[str, str]:
    """ClearML's variables, its files kept inside the stack, its reporter a thread.

    The forked reporter of the SDK outlives a killed parent and keeps the stack's ports.
    """
    home = state / "clearml" / part
    home.mkdir(parents=True, exist_ok=True)
    _keep(home / "clearml.conf", SDK_CONFIGURATION)
    return clearml_environment(record) | sdk_variables(home)


def sdk_variables(home: Path) -> dict[str, str]:
    """How the SDK behaves in a part whose files of ClearML are in `home`."""
    return {
        "CLEARML_CACHE_DIR": str(home),
        "CLEARML_CONFIG_FILE": str(home / "clearml.conf"),
        "CLEARML_BKG_THREAD_REPORT": "1",
        "CLEARML_SUPPRESS_UPDATE_MESSAGE": "1",
        "CLEARML_TASK_NO_REUSE": "1",
        "CLEARML_LOG_LEVEL": "WARNING",
    }


def _keep(path: Path, text: str) -> None:
    """On a full disk a part starts again with the file that it has, which is never cut short."""
    if not path.is_file() or path.read_bytes() != text.encode():
        replace_file(path, text)


def controller_state(state: Path) -> Path:
    return state / "triton" / "controller.json"


def beat_file(state: Path, part: Part) -> Path:
    """The file that a part without a listener touches in each of its rounds."""
    return controller_state(state) if part.name == "controller" else state / "run" / part.name


PARTS = (
    Part(
        "control-plane",
        _control_plane,
        lambda record: f"{LOOPBACK}:{record.ports.control_plane}",
        "/health",
        "/health",
    ),
    Part(
        "triton",
        _triton,
        lambda record: record.triton.http,
        "/v2/health/ready",
        "/v2/health/live",
        version=("/v2", "version"),
    ),
    Part("controller", _controller, None, None, None, needs_service=True),
    # Without an answer ClearML's SDK would hold the app's start back, without a word.
    Part(
        "inference",
        _inference,
        lambda record: f"{LOOPBACK}:{record.ports.inference}",
        "/health/ready",
        "/health/live",
        needs=("control-plane",),
        needs_service=True,
        may_load=True,
        version=("/openapi.json", "info", "version"),
    ),
    Part(
        "prometheus",
        _prometheus,
        lambda record: f"{LOOPBACK}:{record.ports.prometheus}",
        "/-/ready",
        "/-/healthy",
        version=("/api/v1/status/buildinfo", "data", "version"),
    ),
    Part(
        "alertmanager",
        _alertmanager,
        lambda record: f"{LOOPBACK}:{record.ports.alertmanager}",
        "/-/ready",
        "/-/healthy",
        version=("/api/v2/status", "versionInfo", "version"),
    ),
    Part("watchdog", _watchdog, None, None, None),
)

BY_NAME = {part.name: part for part in PARTS}


def parts_of(record: StackRecord) -> tuple[Part, ...]:
    """Those of this stack."""
    return tuple(
        part for part in PARTS if part.name not in MONITORING or part.name in record.monitoring
    )
