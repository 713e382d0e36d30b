"""`up` and `down`: the whole stack on one machine, each part waited for until it answers.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import health, monitoring
from transformer_serving.desk.local.environment import unheard
from transformer_serving.desk.local.leftovers import has_leftovers, sweep
from transformer_serving.desk.local.open_triton import open_tritons
from transformer_serving.desk.local.owner import check_owner
from transformer_serving.desk.local.parts import BY_NAME, parts_of
from transformer_serving.desk.local.record import (
    BrokenRecord,
    Ports,
    StackRecord,
    clearml_environment,
    has_record,
    load_record,
    save_record,
    usable,
    with_room,
)
from transformer_serving.desk.local.services import read_services
from transformer_serving.desk.local.sockets import remove_sockets_of, sockets_of
from transformer_serving.desk.local.supervision import SilentSupervisor, Supervisor, stopped
from transformer_serving.desk.local.turn import own_turn
from transformer_serving.desk.local.wanted import (
    Asked,
    check_ports,
    check_room,
    provided,
    wanted_record,
)
from transformer_serving.desk.step_report import StepReport

if TYPE_CHECKING:
    from transformer_serving.desk.clearml_tools.cli import ClearmlCli
    from transformer_serving.desk.deploy.target import DeployTarget

SERVICE = "transformer-serving"
# For a part that ended meanwhile or never ran; and for one whose process lives on and is still
# starting, as two workers with ten endpoints are for most of a minute on two busy cores.
_WAIT_S, _STARTING_S = 60.0, 180.0


@dataclass(frozen=True)
class Stack:
    """A running stack.

    `unheard` are the caller's variables that it was started without, and that change nothing.
    """

    state: Path
    record: StackRecord
    supervisor: Supervisor
    unheard: tuple[str, ...] = ()

    def target(self) -> DeployTarget:
        from transformer_serving.desk.clearml_tools.cli import ClearmlCli
        from transformer_serving.desk.deploy.target import DeployTarget
        from transformer_serving.desk.versions.lock import read_lock

        environment = clearml_environment(self.record)
        return DeployTarget(
            cli=ClearmlCli(environment, self.record.serving_id),
            files_host=environment["CLEARML_FILES_HOST"],
            serve_url=environment["CLEARML_DEFAULT_BASE_SERVE_URL"],
            lock=self.state / "deploy.lock",
            triton=read_lock().embedded.triton,
            state=self.state,
        )


def start(
    state: Path,
    ports: Ports | None,
    report: StepReport,
    *,
    open_inference: int | None = None,
    watched: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
    typed: str = "up",
) -> Stack:
    """Bring every part up, or find it up. Raises Failure naming a wrong setting, a taken port, a
    silent part, or what the machine lacks.

    `ports` None keeps those of the last time, or the usual ones. `open_inference` is the port at
    which Triton's inference is open to every program of this machine; it is never kept, and
    neither is `watched`, which has Prometheus run beside the stack, also beside one that runs, nor
    are `settings`, variables for whoever has not set them, which one that runs does not get.
    `typed` is the command that another port is told with.
    """
    asked = Asked(ports, open_inference, provided(state, watched=watched), typed)
    with with_room(state), own_turn(state, report):
        return _start(state, asked, report, settings)


def _start(state: Path, asked: Asked, report: StepReport, settings: Mapping[str, str]) -> Stack:
    supervisor = Supervisor(state)
    before = load_record(state)
    record, running = wanted_record(state, asked)
    joined = running and before is not None and monitoring.PROMETHEUS in before.monitoring
    if not running:
        if has_leftovers(state):
            report("ending what a crash left behind")
            sweep(state)
        check_ports(record.listening(), lambda: asked.moving(state))
    if asked.watchers:
        monitoring.write_key(state, os.environ, joined=joined)
    if joined and record != before:
        # What it is told of Alertmanager it reads at its start, in the stack's own environment.
        supervisor.stop_part(monitoring.PROMETHEUS)
    if record != before:
        save_record(state, record)
    if not running:
        supervisor.start(settings)
    started_with = supervisor.environment() if running else None
    kept = () if started_with is None else tuple(unheard(os.environ, started_with))
    return Stack(state, _start_parts(state, record, supervisor, report), supervisor, kept)


def _start_parts(
    state: Path, record: StackRecord, supervisor: Supervisor, report: StepReport
) -> StackRecord:
    names = tuple(part.name for part in parts_of(record))
    at_once = _startable(record)
    report("starting the control plane")
    # Beside it all that can: its start takes one core, and to create a service takes one longer.
    for name in at_once:
        supervisor.start_part(name)
    if record.serving_id is None:
        _cli(record).prepare()
    wait_until_healthy(state, record, supervisor, ("control-plane",))
    if record.serving_id is None:
        report("creating the serving service")
        record = record.with_serving_id(_cli(record).create_service(SERVICE))
        save_record(state, record)
    report("waiting for Triton, the controller and the inference app")
    for name in names:
        if name not in at_once:
            supervisor.start_part(name)
    wait_until_healthy(state, record, supervisor, names)
    return record


def _startable(record: StackRecord) -> tuple[str, ...]:
    """Parts that wait for no other one, and for no service that is still to be created."""
    created = record.serving_id is not None
    return tuple(
        part.name
        for part in parts_of(record)
        if not part.needs and (created or not part.needs_service)
    )


def _cli(record: StackRecord) -> ClearmlCli:
    # It is half of what this file would import, for one start of each stack.
    from transformer_serving.desk.clearml_tools.cli import ClearmlCli

    return ClearmlCli(clearml_environment(record))


def wait_until_healthy(
    state: Path, record: StackRecord, supervisor: Supervisor, names: tuple[str, ...]
) -> None:
    """Wait until each named part is well. Raises Failure naming the first that is not, or at once
    where the supervisor is not there any more.

    A part that goes on starting in one and the same process is waited for longer.
    """
    begun = time.monotonic()
    first: dict[str, int | None] = {}
    while True:
        try:
            processes = supervisor.processes()
            is_up = bool(processes) or supervisor.is_up()
        except SilentSupervisor:
            # While models load a machine may have no time for it.
            if time.monotonic() - begun > _WAIT_S:
                raise
            time.sleep(0.15)
            continue
        if not is_up:
            raise Failure(f"{', '.join(names)} could not be waited for: {stopped(state)}")
        statuses = [
            health.part_status(BY_NAME[name], state, record, processes.get(name)) for name in names
        ]
        ill = [status for status in statuses if status.health != "ok"]
        if not ill:
            return
        starts = all(one.pid and first.setdefault(one.name, one.pid) == one.pid for one in ill)
        if time.monotonic() - begun > (limit_s := _STARTING_S if starts else _WAIT_S):
            # A full disk keeps logs empty.
            check_room(state)
            raise _not_healthy(state, ill[0], limit_s)
        time.sleep(0.15)


def _not_healthy(state: Path, part: health.PartStatus, limit_s: float) -> Failure:
    log = state / "logs" / f"{part.name}.log"
    return Failure(
        f"{part.name} did not become healthy within {limit_s:.0f} s: {part.health}; its log: "
        f"{log}; what was started goes on: see it with '{command_line('status', state)}', "
        f"or end it: {command_line('down', state)}"
    )


def stop(state: Path, report: StepReport) -> int:
    """Stop everything in reverse order; also what a crash left. Returns processes swept up.

    Raises Failure for a stack of somebody else's.
    """
    check_owner(state)
    report("stopping")
    # A folder that nobody has started in is not made for the lock.
    with usable(state), own_turn(state, report, insists=True) if state.is_dir() else nullcontext():
        swept = Supervisor(state).stop()
        _remove_sockets(state)
    return swept


def _remove_sockets(state: Path) -> None:
    """Also where the record cannot be read: the stack is down all the same."""
    sockets = sockets_of(state)
    try:
        record = load_record(state)
    except BrokenRecord:
        record = StackRecord(Ports(), "", "", sockets=str(sockets))
    if record is not None:
        record.triton.remove_sockets()
    remove_sockets_of(state, sockets)


def is_there(state: Path) -> bool:
    """Whether a stack was ever started there, or something of one runs."""
    return has_record(state) or has_leftovers(state)


def status(state: Path, record: StackRecord) -> dict[str, Any]:
    """The stack as `status --json` prints it."""
    supervisor = Supervisor(state)
    processes = supervisor.processes()
    left_behind = not processes and has_leftovers(state)
    is_there = bool(processes) or left_behind
    parts = health.all_parts(state, record, processes, left_behind=left_behind)
    well = any(part.name == "control-plane" and part.health in health.ANSWERING for part in parts)
    services = read_services(record) if well else None
    return {
        "state": str(state),
        "running": bool(processes),
        "left_behind": left_behind,
        "serving_id": record.serving_id,
        "parts": [asdict(row) for row in parts],
        "endpoints": health.endpoint_rows(state) if is_there else [],
        "routes": [row.stored() for row in services.routes] if services else [],
        "unserved": [asdict(row) for row in services.unserved] if services else [],
        "rollouts": health.rollout_rows(state) if is_there else [],
        "open_tritons": [asdict(row) for row in open_tritons(os.environ, own=record.triton.http)],
    }
