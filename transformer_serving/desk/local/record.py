"""stack.json: what `up` decided once and every other command reads."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.command_line import STATE_VARIABLE, command_line, usual_state
from transformer_serving.desk.failure import Failure, no_space
from transformer_serving.desk.local.owner import check_owner
from transformer_serving.desk.local.sockets import RECORD, socket_folder

if TYPE_CHECKING:
    from transformer_serving.engine.triton_process import TritonAddresses

LOOPBACK = "127.0.0.1"
# The parts that run only where they were asked for: `up --monitoring`.
MONITORING = ("prometheus", "alertmanager")
# How often the gateway's workers and the controller look at the control plane.
POLL_SECONDS = 2
# Counts up with every change of stack.json that an older kit could not work with. 1 is taken: a
# stack.json without a number is of that one.
FORMAT = 2


@dataclass(frozen=True)
class Ports:
    """One TCP port a listener, all on 127.0.0.1."""

    inference: int = 8080
    control_plane: int = 8008
    triton_metrics: int = 8002
    controller_metrics: int = 8003
    # Not their usual ones: there Debian's own services of them listen, once they are installed.
    prometheus: int = 8004
    alertmanager: int = 8005

    @staticmethod
    def from_base(base: int) -> Ports:
        """Six ports in a row, the front door first."""
        return Ports(*range(base, base + 6))


@dataclass(frozen=True)
class StackRecord:
    """The stack's ports, credentials, and the serving service once it exists.

    `sockets` is the folder where Triton listens, which only this user can enter;
    `open_inference` the port at which everybody on this machine may call it instead, for
    inference alone. `monitoring` are the parts beside the stack's own that watch it.
    """

    ports: Ports
    access_key: str
    secret_key: str
    serving_id: str | None = None
    sockets: str = ""
    open_inference: int | None = None
    monitoring: tuple[str, ...] = ()

    def listening(self) -> dict[str, int]:
        """The ports that this stack takes, by whom they are for.

        Raises Failure (exit code 2) where Triton's is another's, too: each is free until then.
        """
        ports = {
            name: port
            for name, port in asdict(self.ports).items()
            if name not in MONITORING or name in self.monitoring
        }
        if self.open_inference is None:
            return ports
        for name, port in ports.items():
            if port == self.open_inference:
                part = name.replace("_", " ")
                raise Failure(
                    f"port {port} is the stack's own ({part}), so --open-inference "
                    "cannot have it; name another, or move the stack's with --port-base N",
                    exit_code=2,
                )
        return {**ports, "open_inference": self.open_inference}

    @property
    def triton(self) -> TritonAddresses:
        """HTTP and gRPC are sockets; the metrics have no way in."""
        # Here, as the control plane's image has no engine.
        from transformer_serving.engine.triton_process import TritonAddresses

        addresses = TritonAddresses(
            metrics_port=self.ports.triton_metrics,
            host=f"unix:{self.sockets}/triton",
            metrics_host=LOOPBACK,
        )
        if self.open_inference is None:
            return addresses
        return replace(addresses, http_host=LOOPBACK, http_port=self.open_inference)

    def with_serving_id(self, serving_id: str) -> StackRecord:
        return replace(self, serving_id=serving_id)


def new_record(state: Path, ports: Ports) -> StackRecord:
    return StackRecord(
        ports,
        secrets.token_hex(10).upper(),
        secrets.token_urlsafe(32),
        sockets=str(socket_folder(state)),
    )


def state_directory(given: str | None = None) -> Path:
    """Under the one name that it has however it is given: a stack's processes bear it."""
    named = Path(given) if given else usual_state()
    try:
        return named.resolve()
    except (OSError, RuntimeError) as error:  # links that lead in a circle
        raise _unusable(named, error) from error


def _unusable(path: Path, error: Exception) -> Failure:
    why = getattr(error, "strerror", None) or "its links lead in a circle"
    return Failure(
        f"{path} cannot be used: {why}; be the user who ran 'up' there, or name another folder "
        f"with --state or {STATE_VARIABLE}",
        exit_code=2,
    )


@contextlib.contextmanager
def usable(folder: Path) -> Iterator[None]:
    """What this user may not do there, as a Failure."""
    try:
        yield
    except PermissionError as error:
        raise _unusable(folder, error) from error


@contextlib.contextmanager
def with_room(folder: Path) -> Iterator[None]:
    """A full disk of that folder, as a Failure; not every error says whose disk it was."""
    try:
        yield
    except OSError as error:
        if not is_full_disk(error):
            raise
        raise Failure(no_space(folder)) from error


class BrokenRecord(Failure):
    """stack.json is no record, or that of a newer kit."""


def has_record(state: Path) -> bool:
    """Whether a stack was ever started there, also where its record cannot be read."""
    with usable(state):
        return (state / RECORD).exists()


def load_record(state: Path) -> StackRecord | None:
    """The record, or None where no stack was ever started. Raises BrokenRecord, and Failure for a
    stack of somebody else's."""
    check_owner(state)
    return stored_record(state)


def stored_record(state: Path) -> StackRecord | None:
    """The same in a folder that is no stack's, such as an unpacked backup's."""
    path = state / RECORD
    try:
        values = json.loads(path.read_text("utf-8"))
        if int(values["format"]) > FORMAT:
            raise BrokenRecord(
                f"{path} was written by a newer kit; use that one, or put an older stack.json "
                f"back from a backup with '{command_line('restore FILE', state)}'",
                exit_code=2,
            )
        return _read(values)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenRecord(
            f"{path} cannot be read; put it back from a backup with "
            f"'{command_line('restore FILE', state)}', or remove that folder with all that it "
            "stores and run 'up' again",
            exit_code=2,
        ) from error


def _read(values: dict[str, Any]) -> StackRecord:
    """What a newer kit added without a need for another format is left out."""
    if values["format"] != FORMAT:
        raise ValueError(values["format"])
    return StackRecord(
        **_known(StackRecord, values)
        | {
            "ports": Ports(**_known(Ports, values["ports"])),
            "sockets": str(values["sockets"]),
            "monitoring": tuple(values.get("monitoring", ())),
        }
    )


def _known(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    names = {row.name for row in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def require_record(state: Path) -> StackRecord:
    record = load_record(state)
    if record is None:
        raise Failure(
            f"no stack in {state}; start one with '{command_line('up', state)}', or name its "
            f"folder with --state or {STATE_VARIABLE}",
            exit_code=2,
        )
    return record


def save_record(state: Path, record: StackRecord) -> None:
    """Write stack.json for this user only, replacing it in one step."""
    write_private(state / RECORD, record_text(record))


def record_text(record: StackRecord) -> str:
    """As stack.json holds it."""
    return json.dumps({"format": FORMAT, **asdict(record)}, indent=2) + "\n"


def make_private(folder: Path) -> None:
    """Make the state folder, for this user only. Raises Failure for one that is not a stack's, or
    that of somebody else's."""
    check_owner(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise _unusable(folder, error) from error
    if not found.st_mode & 0o077:
        return
    shared = found.st_uid != os.getuid() or found.st_mode & stat.S_ISVTX
    if shared or not ((folder / RECORD).exists() or not any(folder.iterdir())):
        raise Failure(
            f"{folder} is open to other users and is not a stack's own; name a new folder with "
            f"--state or {STATE_VARIABLE}",
            exit_code=2,
        )
    folder.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text, mode=0o600, durable=True)


def clearml_environment(record: StackRecord) -> dict[str, str]:
    """The CLEARML_* variables that point unmodified ClearML tools at this stack, and what keeps
    them from asking a proxy for it."""
    control_plane = f"http://127.0.0.1:{record.ports.control_plane}"
    values = {
        "CLEARML_WEB_HOST": control_plane,
        "CLEARML_API_HOST": control_plane,
        "CLEARML_FILES_HOST": control_plane,
        "CLEARML_API_ACCESS_KEY": record.access_key,
        "CLEARML_API_SECRET_KEY": record.secret_key,
        "CLEARML_DEFAULT_BASE_SERVE_URL": f"http://127.0.0.1:{record.ports.inference}/serve",
        "CLEARML_DEFAULT_TRITON_GRPC_ADDR": record.triton.grpc,
    }
    if record.serving_id:
        values["CLEARML_SERVING_TASK_ID"] = record.serving_id
    return values | past_proxies(os.environ)


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """This machine among what is asked without a proxy; nothing where there is no proxy."""
    proxies = {name for name in environment if name.lower().endswith("_proxy")}
    if not proxies - {"no_proxy", "NO_PROXY"}:
        return {}
    # Of two spellings all tools take the small one first.
    named = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [host.strip() for host in named.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in (LOOPBACK, "localhost") if host not in hosts]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(hosts))
