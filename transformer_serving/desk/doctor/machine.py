"""Checks of the machine: Python, its shared library, open files, packages, ports, disk.

Tested by tests/doctor/test_faults.py.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from importlib import metadata

import psutil

from transformer_serving.contract.pip_line import pip_line
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import Finding, Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.subject import GIB, Subject
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.environment import OPEN_FILES, check_open_files
from transformer_serving.desk.local.health import OK
from transformer_serving.desk.local.record import Ports, StackRecord
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.libpython import PACKAGE, libpython_folder

# Below twice of what is needed there is no room for a second version of a model.
_COMFORT = 2


def check_python(subject: Subject) -> Findings:
    own = ".".join(str(part) for part in subject.python)
    allowed = subject.lock.python
    if own in allowed:
        yield ok(f"Python {own}")
    else:
        yield failure(
            f"Python {own}, the kit needs {allowed[0]} to {allowed[-1]}",
            f"make a new environment: make up PYTHON=python{allowed[0]}",
        )


def check_libpython(subject: Subject) -> Findings:
    if subject.from_file:
        yield skipped("the Triton of --env-file has a Python of its own")
        return
    try:
        libpython_folder()
    except EngineError as error:
        yield failure(str(error), f"apt-get install {PACKAGE}, on Debian and Ubuntu")
    else:
        yield ok("Triton's Python stub finds a shared libpython")


def check_files(subject: Subject) -> Findings:
    if subject.from_file:
        yield skipped("the stack of --env-file is not started here")
        return
    try:
        check_open_files()
    except Failure as fault:
        why, _, fix = str(fault).partition(": ")
        yield failure(why, fix)
    else:
        yield ok(f"the {OPEN_FILES} open files that the stack needs are allowed")


def check_packages(subject: Subject) -> Findings:
    for name, pin in subject.lock.packages.items():
        # The first of a name on the path is the one that Python imports.
        found = metadata.distributions(name=name, path=list(subject.package_path))
        version = next((distribution.version for distribution in found), None)
        yield _package(name, version, pin.value)


def _package(name: str, got: str | None, wanted: str) -> Finding:
    if got == wanted:
        return ok(f"{name} {got}")
    fix = pip_line(f"--no-deps {name}=={wanted}")
    if got is None:
        return failure(f"{name} is not installed, the lock has {wanted}", fix)
    return failure(f"{name} is {got}, the lock has {wanted}", fix)


def check_ports(subject: Subject) -> Findings:
    """Free, or used by the very stack that is looked at."""
    if subject.from_file:
        yield skipped("the stack of --env-file does not listen here by this kit's doing")
        return
    if subject.silent is not None:
        yield skipped("whether the stack has its ports cannot be asked: see 'parts'")
        return
    if subject.left_behind:
        yield skipped("what is left of the stack may have them: see 'parts'")
        return
    record = subject.record or StackRecord(Ports(), "", "")
    ports = record.listening()
    rows = list(_ports_of_others(subject, record) if subject.running else ports.items())
    taken = [f"{port} ({name})" for name, port in rows if not _free(port)]
    unheard = subject.running and not taken and _without_figures(subject, record.ports)
    if unheard:
        yield unheard
    elif subject.running and not taken:
        yield ok("the stack runs and nobody else has its ports")
    elif taken:
        move = command_line("up --port-base N", subject.state)
        # One that runs keeps its ports.
        down = f"{command_line('down', subject.state)}, then " if subject.running else ""
        yield failure(
            f"port {', '.join(taken)} is taken by another program",
            f"stop that program, or move all ports: {down}{move}",
        )
    else:
        yield ok(f"ports {', '.join(map(str, ports.values()))} are free")


def _ports_of_others(subject: Subject, record: StackRecord) -> Iterator[tuple[str, int]]:
    """Of a stack that runs: those whose part does not, and the two for figures, which are no
    part's own address, where their part does not hold them."""
    figures = {
        "triton": ("triton_metrics", record.ports.triton_metrics),
        "controller": ("controller_metrics", record.ports.controller_metrics),
    }
    for part in subject.parts:
        if part.port and part.pid is None:
            yield part.name, part.port
        if part.name in figures and not _holds(part.pid, figures[part.name][1]):
            yield figures[part.name]


def _without_figures(subject: Subject, ports: Ports) -> Finding | None:
    """A controller whose port was taken as it began serves on, and does not try again."""
    for part in subject.parts:
        is_well = part.name == "controller" and part.health == OK
        if is_well and not _holds(part.pid, ports.controller_metrics):
            down, up = (command_line(words, subject.state) for words in ("down", "up"))
            return failure(
                f"the controller gives no figures at port {ports.controller_metrics}, which "
                "another program had as it began",
                f"start the stack again: {down}, then {up}",
            )
    return None


def _holds(pid: int | None, port: int) -> bool:
    """Whether that process listens there; True where that cannot be seen."""
    try:
        rows = [] if pid is None else psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        # It may be gone, too: then the one in its place holds the port.
        return True
    return any(row.status == psutil.CONN_LISTEN and row.laddr.port == port for row in rows)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def check_disk(subject: Subject) -> Findings:
    if subject.from_file and not subject.is_state_named:
        yield skipped(
            "the stack of --env-file keeps its data elsewhere: see df on its machine, or name a "
            "folder with --state"
        )
        return
    folder = next(path for path in (subject.state, *subject.state.parents) if path.exists())
    free, needed = shutil.disk_usage(folder).free, subject.disk_needed
    why = f"{free / GIB:.1f} GiB free in {folder}"
    fix = "free some space, or keep the stack elsewhere: --state DIR"
    if free < needed:
        yield failure(f"{why}, {needed / GIB:.1f} GiB are needed", fix)
    elif free < _COMFORT * needed:
        yield warning(f"{why}, little for two versions of a large model", fix)
    else:
        yield ok(why)
