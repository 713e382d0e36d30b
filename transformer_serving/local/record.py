"""stack.json: what `up` decided once and every other command reads."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from transformer_serving.failure import Failure

STATE_VARIABLE = "TRANSFORMER_SERVING_STATE"
DEFAULT_STATE = ".stack"
# Every process of a stack has this variable: `down` finds what a crash left behind by it.
MARK = "TRANSFORMER_SERVING_PART_OF"


@dataclass(frozen=True)
class Ports:
    """One TCP port a listener, all on 127.0.0.1."""

    inference: int = 8080
    control_plane: int = 8008
    triton_http: int = 8000
    triton_grpc: int = 8001
    triton_metrics: int = 8002
    controller_metrics: int = 8003

    @staticmethod
    def from_base(base: int) -> Ports:
        """Six ports in a row, the front door first."""
        return Ports(*range(base, base + 6))


@dataclass(frozen=True)
class Record:
    """The stack's ports, credentials, and the serving service once it exists."""

    ports: Ports
    access_key: str
    secret_key: str
    serving_id: str | None = None

    def with_serving_id(self, serving_id: str) -> Record:
        return replace(self, serving_id=serving_id)


def new_record(ports: Ports) -> Record:
    return Record(ports, secrets.token_hex(10).upper(), secrets.token_urlsafe(32))


def state_directory(given: str | None = None) -> Path:
    return Path(given or os.environ.get(STATE_VARIABLE) or DEFAULT_STATE).absolute()


def load_record(state: Path) -> Record | None:
    """The record, or None where no stack was ever started. Raises Failure for a broken file."""
    path = state / "stack.json"
    try:
        values = json.loads(path.read_text("utf-8"))
        ports = values["ports"]
        # Of an older stack: the controller's own figures are newer.
        ports.setdefault("controller_metrics", ports["triton_metrics"] + 1)
        return Record(**{**values, "ports": Ports(**ports)})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path} cannot be read; remove that folder and run 'up' again") from error


def require_record(state: Path) -> Record:
    record = load_record(state)
    if record is None:
        raise Failure(
            f"no stack in {state}; start one with 'transformer-serving up', or name its folder "
            f"with --state or {STATE_VARIABLE}",
            exit_code=2,
        )
    return record


def save_record(state: Path, record: Record) -> None:
    """Write stack.json for this user only, replacing it in one step."""
    write_private(state / "stack.json", json.dumps(asdict(record), indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def clearml_environment(record: Record) -> dict[str, str]:
    """The CLEARML_* variables that point unmodified ClearML tools at this stack."""
    control_plane = f"http://127.0.0.1:{record.ports.control_plane}"
    values = {
        "CLEARML_WEB_HOST": control_plane,
        "CLEARML_API_HOST": control_plane,
        "CLEARML_FILES_HOST": control_plane,
        "CLEARML_API_ACCESS_KEY": record.access_key,
        "CLEARML_API_SECRET_KEY": record.secret_key,
        "CLEARML_DEFAULT_BASE_SERVE_URL": f"http://127.0.0.1:{record.ports.inference}/serve",
        "CLEARML_DEFAULT_TRITON_GRPC_ADDR": f"127.0.0.1:{record.ports.triton_grpc}",
    }
    if record.serving_id:
        values["CLEARML_SERVING_TASK_ID"] = record.serving_id
    return values
