"""What each part of the stack says of itself right now.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformer_serving.contract.gate.release import kit_version
from transformer_serving.desk.http import UNIX, NoAnswer, ask_at
from transformer_serving.desk.local.parts import (
    Part,
    beat_file,
    control_plane_data,
    controller_state,
    parts_of,
)
from transformer_serving.desk.local.record import StackRecord
from transformer_serving.desk.local.supervision import Process

_STALE_S = 15.0
# The words of a part that answers.
OK, UNKEPT = ANSWERING = "ok", "runs, but no supervisor keeps it"
# Before those of a controller whose control plane does not answer.
NO_CONTROL_PLANE = "control plane: "


@dataclass(frozen=True)
class PartStatus:
    """`health` is 'ok', or why not; `version` of the program that runs, where it says.

    `address` is host:port or unix:/path; `port` is its number in the first form.
    """

    name: str
    pid: int | None
    port: int | None
    address: str | None
    health: str
    version: str | None
    uptime_s: float


def part_status(
    part: Part,
    state: Path,
    record: StackRecord,
    process: Process | None,
    *,
    left_behind: bool = False,
) -> PartStatus:
    """`left_behind` where no supervisor says what runs, and the part may all the same."""
    address = part.listens(record)
    port = None if address is None or address.startswith(UNIX) else int(address.split(":")[1])
    if left_behind:
        health, version = _ask(part, state, address, None)
        health = UNKEPT if health == OK else health
        return PartStatus(part.name, None, port, address, health, version, 0.0)
    if process is None or process.pid is None:
        word = "not running" if process is None else process.state.lower()
        # One that runs has looked at its data itself.
        why = data_fault(state) if part.name == "control-plane" else None
        return PartStatus(part.name, None, port, address, why or word, None, 0.0)
    health, version = _ask(part, state, address, process.pid)
    return PartStatus(
        part.name, process.pid, port, address, health, version, round(process.uptime_s, 1)
    )


def data_fault(state: Path) -> str | None:
    """Why the control plane's data cannot be served, with the fix; looked at once a change."""
    from transformer_serving.control_plane.integrity import DATABASE, note_of

    folder = control_plane_data(state)
    read = folder / DATABASE, folder / f"{DATABASE}-wal", note_of(folder)
    return _fault_of(folder, *map(_changed, read))


@lru_cache(maxsize=1)
def _fault_of(folder: Path, *_changes: tuple[int, int]) -> str | None:
    from transformer_serving.control_plane.integrity import quick_fault

    return quick_fault(folder)


def _changed(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
        return status.st_mtime_ns, status.st_size
    except FileNotFoundError:
        return 0, 0


def _ask(part: Part, state: Path, address: str | None, pid: int | None) -> tuple[str, str | None]:
    if part.name == "controller":
        return _controller(state, pid)
    if address is None or part.health is None:
        return heartbeat(beat_file(state, part)), kit_version()
    health = probe(address, part.health)
    return health, _version(part, address) if health == "ok" else None


def probe(address: str, path: str, timeout_s: float = 3) -> str:
    """'ok' when it answers 200, else why not."""
    try:
        status = ask_at(address, path, timeout_s=timeout_s).status
    except NoAnswer:
        return "does not answer"
    return "ok" if status == 200 else f"answers {status}"


def heartbeat(path: Path) -> str:
    """'ok' while its part touches the file, else since when it does not."""
    try:
        late = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return "has not begun yet"
    return "ok" if late < _STALE_S else f"last seen {late:.0f} s ago"


def _version(part: Part, address: str) -> str | None:
    if not part.version:
        return kit_version()
    path, *keys = part.version
    try:
        value = json.loads(ask_at(address, path).body)
        for key in keys:
            value = value[key]
    except (NoAnswer, ValueError, LookupError, TypeError):
        return None
    return str(value)


def read_controller(state: Path) -> dict[str, Any]:
    """The controller's own state file; empty before its first round."""
    try:
        values: dict[str, Any] = json.loads(controller_state(state).read_text("utf-8"))
        return values
    except (OSError, ValueError):
        return {}


def _controller(state: Path, pid: int | None) -> tuple[str, str | None]:
    """`pid` None: that of its process is not known."""
    own = read_controller(state).get("controller", {})
    last = own.get("last_sync")
    # After a crash the file is still that of the process before.
    if last is None or (pid is not None and own.get("pid") != pid):
        return "has not synced yet", kit_version()
    if own.get("control_plane_error"):
        return f"{NO_CONTROL_PLANE}{own['control_plane_error']}", kit_version()
    late = time.time() - float(last)
    return ("ok" if late < _STALE_S else f"last synced {late:.0f} s ago"), kit_version()


def endpoint_rows(state: Path) -> list[dict[str, Any]]:
    """Each endpoint as the controller sees it."""
    rows: list[dict[str, Any]] = read_controller(state).get("endpoints", [])
    return rows


def rollout_rows(state: Path) -> list[dict[str, Any]]:
    """The last rollout of each endpoint, as the controller has it."""
    rows: list[dict[str, Any]] = read_controller(state).get("rollouts", [])
    return rows


def all_parts(
    state: Path,
    record: StackRecord,
    processes: dict[str, Process],
    *,
    left_behind: bool = False,
) -> list[PartStatus]:
    return [
        part_status(part, state, record, processes.get(part.name), left_behind=left_behind)
        for part in parts_of(record)
    ]
