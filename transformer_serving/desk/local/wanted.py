"""What `up` is asked for, and all that it refuses before anything is started.

Tested by tests/cli/test_up.py and tests/stack/test_commands.py.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import health, monitoring
from transformer_serving.desk.local.environment import (
    check_open_files,
    check_settings,
    check_triton,
)
from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.local.leftovers import has_leftovers
from transformer_serving.desk.local.record import (
    LOOPBACK,
    Ports,
    StackRecord,
    load_record,
    make_private,
    new_record,
    with_room,
)
from transformer_serving.desk.local.sockets import socket_folder
from transformer_serving.desk.local.supervision import Supervisor

_ROW = len(fields(Ports))
# Of the disk, with less of which no part comes to answer: bytes.
_LEAST_ROOM = 1 << 20


@dataclass(frozen=True)
class Asked:
    """`ports` None keeps those of the last time; `watchers` are the parts that watch, and `typed`
    the command without its ports."""

    ports: Ports | None = None
    open_inference: int | None = None
    watchers: tuple[str, ...] = ()
    typed: str = "up"

    def moving(self, state: Path) -> str:
        """The line that starts the stack on ports that are free now."""
        base = free_row(_ROW, beside=self.open_inference)
        return command_line(f"{self.typed} --port-base {base}", state)


def check(
    state: Path, ports: Ports | None, *, open_inference: int | None, watched: bool, typed: str
) -> None:
    """Raise Failure for what a start would refuse now, for who has minutes of work before it."""
    asked = Asked(ports, open_inference, provided(state, watched=watched), typed)
    with with_room(state):
        record, running = wanted_record(state, asked)
        # What a crash left behind may be what listens.
        if not running and not has_leftovers(state):
            check_ports(record.listening(), lambda: asked.moving(state))


def provided(state: Path, *, watched: bool) -> tuple[str, ...]:
    """The parts that watch, once the folder is there and all else that the parts need.

    Raises Failure naming a wrong setting, or what the machine lacks.
    """
    # Whose folder it is comes first; then what is missing is said before one is made.
    load_record(state)
    check_open_files()
    check_triton()
    check_settings(os.environ)
    watchers = monitoring.chosen(os.environ) if watched else ()
    make_private(state)
    return watchers


def wanted_record(state: Path, asked: Asked) -> tuple[StackRecord, bool]:
    """The record that the stack is to have, and whether it runs. Raises Failure for what it cannot
    have; the ports of one that does not run are not tried."""
    record = load_record(state)
    running = Supervisor(state).is_up()
    why = None if running else health.data_fault(state)
    if why is not None:
        raise Failure(why)
    if not running:
        check_room(state)
    if running and record is not None:
        _refuse_changes(state, record, asked)
        return _with_watchers(state, record, asked), True
    record = _next_record(state, record, asked)
    # Raises for one port of two parts.
    record.listening()
    return record, False


def _refuse_changes(state: Path, record: StackRecord, asked: Asked) -> None:
    """Raise Failure for what only a stack that is not running can be given."""
    wanted = asked.ports or record.ports, asked.open_inference or record.open_inference
    if wanted != (record.ports, record.open_inference):
        raise Failure(
            f"the stack runs on other ports; stop it first: {command_line('down', state)}",
            exit_code=2,
        )


def _with_watchers(state: Path, record: StackRecord, asked: Asked) -> StackRecord:
    """The record of a stack that runs, with them as well. Raises Failure naming a taken port."""
    new = [name for name in asked.watchers if name not in record.monitoring]
    if not new:
        return record
    if monitoring.PROMETHEUS in new:
        monitoring.check_key(Supervisor(state).environment() or {}, os.environ)
    record = replace(record, monitoring=(*record.monitoring, *new))
    ports = record.listening()

    def moving() -> str:
        return f"{command_line('down', state)}, then {asked.moving(state)}"

    check_ports({name: ports[name] for name in new}, moving)
    return record


def _next_record(state: Path, record: StackRecord | None, asked: Asked) -> StackRecord:
    kept = record or new_record(state, Ports())
    return replace(
        kept,
        ports=asked.ports or kept.ports,
        # A restart of the machine may have removed it.
        sockets=str(socket_folder(state)),
        open_inference=asked.open_inference,
        monitoring=asked.watchers,
    )


def check_room(state: Path) -> None:
    """Raise Failure where the folder's disk has no room for what the parts write as they start.

    It is tried: what a file system says is free may be another user's, or nobody's by a quota.
    """
    with with_room(state), tempfile.TemporaryFile(dir=state) as trial:
        trial.write(bytes(_LEAST_ROOM))
        trial.flush()


def check_ports(ports: Mapping[str, int], moving: Callable[[], str]) -> None:
    """Raise Failure (exit code 2) when something else listens on one of the stack's ports.

    `moving` gives the line that starts it on others.
    """
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except (OSError, OverflowError) as error:
                move = (
                    "name another --open-inference PORT"
                    if name == "open_inference"
                    else f"stop that program, or move all ports: {moving()}"
                )
                raise Failure(
                    f"port {port} for {name.replace('_', ' ')} cannot be used: "
                    f"{error.strerror if isinstance(error, OSError) else 'no such port'}; {move}",
                    exit_code=2,
                ) from error
