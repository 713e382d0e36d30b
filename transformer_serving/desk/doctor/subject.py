"""What doctor looks at: this machine, a stack's folder, an environment, a bundle, a log.

Tested by tests/doctor/test_faults.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_serving.contract.gate.server_facts import Gpu, read_gpus
from transformer_serving.desk.clearml_tools.variables import without_clearml
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.http import KEY_VARIABLE, key_header
from transformer_serving.desk.local.open_triton import USUAL
from transformer_serving.desk.local.record import StackRecord, clearml_environment, load_record
from transformer_serving.desk.versions.lock import Lock, read_lock

if TYPE_CHECKING:
    from transformer_serving.desk.local.health import PartStatus
    from transformer_serving.desk.local.leftovers import Absence
    from transformer_serving.desk.local.supervision import SilentSupervisor

GIB = 1 << 30
_RUN_S = 20.0


@dataclass(frozen=True)
class Ran:
    """A program's end; `code` is None when it is not installed or did not end in time."""

    code: int | None
    output: str


@dataclass(frozen=True)
class Subject:
    """The fields with defaults are this machine; a test describes another one with them.

    `environment` holds the variables of --env-file that have a value, of the stack and of the
    shell, the first named first. `from_file` says whether --env-file was given: its stack is not
    the embedded one, unless `is_state_named`, by --state beside it.
    """

    state: Path
    environment: Mapping[str, str]
    record: StackRecord | None = None
    from_file: bool = False
    is_state_named: bool = False
    bundle: Path | None = None
    endpoint: str | None = None
    log: Path | None = None
    key: str | None = None
    lock: Lock = field(default_factory=read_lock)
    python: tuple[int, int] = sys.version_info[:2]
    package_path: Sequence[str] = field(default_factory=lambda: tuple(sys.path))
    disk_needed: int = 2 * GIB
    driver_file: Path = Path("/proc/driver/nvidia/version")
    usual_triton: str = USUAL

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        return read_gpus(self.environment)

    @cached_property
    def running(self) -> bool:
        """Whether the embedded stack of this folder is up, as far as its supervisor says so."""
        return self._up is True

    @property
    def silent(self) -> SilentSupervisor | None:
        """Why it cannot be said whether it is up."""
        return None if isinstance(self._up, bool) else self._up

    @cached_property
    def absence(self) -> Absence | None:
        """Why it is not up; None where it is, where that cannot be said, and where none is looked
        at."""
        from transformer_serving.desk.local.leftovers import absence

        if self.record is None or self.running or self.silent is not None:
            return None
        return absence(self.state)

    @property
    def left_behind(self) -> bool:
        """Whether parts of it run that no supervisor keeps."""
        return self.absence is not None and self.absence.left_behind

    @cached_property
    def _up(self) -> bool | SilentSupervisor:
        from transformer_serving.desk.local.supervision import SilentSupervisor, Supervisor

        try:
            # Asking it makes a folder for its socket; a stack that never ran needs none.
            return self.record is not None and self.was_started and Supervisor(self.state).is_up()
        except SilentSupervisor as silent:
            return silent

    @cached_property
    def started_with(self) -> Mapping[str, str]:
        """The environment of the embedded stack that runs; empty where nobody can tell."""
        from transformer_serving.desk.local.supervision import Supervisor

        return (Supervisor(self.state).environment() if self.running else None) or {}

    @property
    def was_started(self) -> bool:
        """And not stopped since by `down`."""
        return (self.state / "supervisor.pid").exists()

    @cached_property
    def parts(self) -> tuple[PartStatus, ...]:
        """What `status` says of each part of the embedded stack; empty where it is not up."""
        from transformer_serving.desk.local.health import all_parts
        from transformer_serving.desk.local.supervision import Supervisor

        if self.record is None or not self.running:
            return ()
        return tuple(all_parts(self.state, self.record, Supervisor(self.state).processes()))

    def run(self, *command: str) -> Ran:
        """Run a program of the environment's PATH."""
        try:
            done = subprocess.run(
                command, env=dict(self.environment), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=_RUN_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return Ran(None, "")
        return Ran(done.returncode, (done.stdout or done.stderr).strip())


def subject_of(
    state: Path,
    *,
    is_state_named: bool = False,
    env_file: Path | None = None,
    bundle: Path | None = None,
    endpoint: str | None = None,
    log: Path | None = None,
    key: str | None = None,
) -> Subject:
    """Raises Failure for an --env-file that cannot be read, and for a key that is none; without
    that file for a stack.json that cannot be read or is somebody else's.
    """
    # Who may call docker is often root, beside a stack of its user that is not looked at.
    record = None if env_file is not None else load_record(state)
    environment = dict(os.environ)
    if env_file is not None:
        # docker/example.env has each name, and compose takes an empty one for one that is not set.
        environment |= {name: value for name, value in read_env_file(env_file).items() if value}
    elif record is not None:
        environment = without_clearml(environment) | clearml_environment(record)
    key = key or environment.get(KEY_VARIABLE)
    key_header(key)
    return Subject(
        state=state,
        environment=environment,
        record=record,
        from_file=env_file is not None,
        is_state_named=is_state_named,
        bundle=bundle,
        endpoint=endpoint,
        log=log,
        key=key,
    )
