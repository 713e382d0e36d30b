"""The control plane in a container, for compose's profile local and the chart's local.enabled.

`serve` runs it with credentials that it made at its first start, `create-service` creates the
serving service once, `env` prints what a shell on the host needs; `backup` writes all of it to
stdout, and `restore` reads that from stdin, which `hold` keeps a pod for. Credentials and the
service's id lie as files in a volume. Compose's other containers read them there. Pods share no
volume: their credentials come from a Secret, as variables, and `find-service` asks the control
plane for the id.

Tested by tests/control_plane/test_serving_service.py and
tests/control_plane/test_container_backup.py.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from transformer_serving.control_plane.settings import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import interruptible
from transformer_serving.desk.local import container_backup
from transformer_serving.desk.local.container_backup import ACCESS_KEY, SECRET_KEY, SERVING_ID
from transformer_serving.desk.local.record import write_private
from transformer_serving.desk.local.services import SERVING_TAG

SHARED = Path("/run/local")
DATA = Path("/var/lib/control-plane")
PORT = 8008
SERVICE = "transformer-serving"
# Where a shell on the host reaches what compose publishes.
CONTROL_PLANE_URL = "TRANSFORMER_SERVING_CONTROL_PLANE_URL"
SERVE_URL = "CLEARML_DEFAULT_BASE_SERVE_URL"
# A control plane that is new on a slow disk; then the container ends and is started again.
_FIND_S = 300.0
_PAUSE_S = 1.0


class Commands(click.Group):
    """Prints a Failure as one line and leaves with its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            click.echo(f"error: {failure}", err=True)
            sys.exit(failure.exit_code)


@click.group(cls=Commands)
def main() -> None:
    """The control plane of compose's profile local."""


@main.command()
def serve() -> None:
    """Serve the ClearML API and files on every address of the container."""
    environment = {
        **os.environ,
        ACCESS_KEY_VARIABLE: access_key(),
        SECRET_KEY_VARIABLE: secret_key(),
    }
    command = [sys.executable, "-P", "-m", "transformer_serving.control_plane"]
    command += ["--host=0.0.0.0", f"--port={PORT}", f"--data={DATA}"]
    os.execve(sys.executable, command, environment)


@main.command("create-service")
@click.option("--only-on", metavar="ADDRESS", help="Refuse where CLEARML_API_HOST is another.")
def create_service(only_on: str | None) -> None:
    """Create the serving service, unless it was created before."""
    asked = os.environ.get("CLEARML_API_HOST", "").rstrip("/")
    if only_on is not None and asked != only_on.rstrip("/"):
        raise Failure(
            "profile local creates a serving service on its own control plane alone, and "
            "CLEARML_API_HOST is another server's: leave --profile local out, or leave "
            "CLEARML_API_HOST empty",
            exit_code=2,
        )
    created = _once(SERVING_ID, _present_or_new_service)
    click.echo(f"serving service {created}")


def _present_or_new_service() -> str:
    """Where one was ended before its id was written down, the others have found its service."""
    api = ClearmlApi(os.environ)
    # A pod runs this beside its server's first start, and is ended where it fails.
    api.wait(_FIND_S)
    return _oldest_service(api) or ClearmlCli(os.environ).create_service(SERVICE)


@main.command("find-service")
def find_service() -> None:
    """Wait for the serving service and write its id where the other containers read it."""
    found = _once(SERVING_ID, lambda: found_service(ClearmlApi(os.environ), _FIND_S))
    click.echo(f"serving service {found}")


def found_service(api: ClearmlApi, seconds: float) -> str:
    """The id of the first service of our name. Raises Failure where there is none in that time."""
    deadline = time.monotonic() + seconds
    api.wait(seconds)
    while True:
        found = _oldest_service(api)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise Failure(
                f"{api.host} has no serving service {SERVICE} after {seconds:.0f} s; see the log "
                "of the control plane's container"
            )
        time.sleep(_PAUSE_S)


def _oldest_service(api: ClearmlApi) -> str | None:
    rows = api.call(
        "tasks.get_all", name=f"^{SERVICE}$", type=["service"], system_tags=[SERVING_TAG],
        order_by=["created"], only_fields=["id"], page=0, page_size=1,
    )["tasks"]  # fmt: skip
    return str(rows[0]["id"]) if rows else None


@main.command()
def env() -> None:
    """Print the CLEARML_* variables for a shell on the host, to be evaluated there."""
    for name, value in host_environment().items():
        click.echo(f"export {name}={shlex.quote(value)}")


@main.command()
def backup() -> None:
    """Write all that is stored, the keys too, to stdout; also while it is served."""
    if sys.stdout.isatty():
        raise click.UsageError("stdout is a terminal: send the backup to a file, with > FILE")
    with interruptible():
        count = container_backup.backup(_volumes(), sys.stdout.buffer)
    click.echo(f"{count} files, and the keys", err=True)


@main.command()
def restore() -> None:
    """Put a backup from stdin in place of what is stored, which is kept; nothing may serve it."""
    if sys.stdin.isatty():
        raise click.UsageError("stdin is a terminal: give the backup, with < FILE")
    with interruptible():
        kept = container_backup.restore(_volumes(), sys.stdin.buffer)
    click.echo(f"it is restored; what was there is kept in {kept}")


@main.command()
def hold() -> None:
    """Wait and serve nothing, so that `restore` can be run beside it."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    click.echo("nothing is served until local.restoring is false again; restore a backup now")
    while True:
        signal.pause()


def _volumes() -> container_backup.Volumes:
    keys = ((ACCESS_KEY, ACCESS_KEY_VARIABLE), (SECRET_KEY, SECRET_KEY_VARIABLE))
    given = {name: os.environ[key] for name, key in keys if os.environ.get(key)}
    return container_backup.Volumes(DATA, SHARED, given)


def host_environment() -> dict[str, str]:
    """Raises Failure where it is no container of compose's, or there is no service yet."""
    control_plane, serve = _given(CONTROL_PLANE_URL), _given(SERVE_URL)
    if not (SHARED / SERVING_ID).is_file():
        raise Failure("there is no serving service yet; wait for the containers to be ready")
    return {
        "CLEARML_WEB_HOST": control_plane,
        "CLEARML_API_HOST": control_plane,
        "CLEARML_FILES_HOST": control_plane,
        "CLEARML_API_ACCESS_KEY": access_key(),
        "CLEARML_API_SECRET_KEY": secret_key(),
        "CLEARML_SERVING_TASK_ID": (SHARED / SERVING_ID).read_text("utf-8").strip(),
        SERVE_URL: serve,
    }


def _given(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise Failure(
            f"{variable} is not set; call it in the control plane's container, where it is",
            exit_code=2,
        )
    return value


def access_key() -> str:
    given = os.environ.get(ACCESS_KEY_VARIABLE)
    return given or _once(ACCESS_KEY, lambda: secrets.token_hex(10).upper())


def secret_key() -> str:
    given = os.environ.get(SECRET_KEY_VARIABLE)
    return given or _once(SECRET_KEY, lambda: secrets.token_urlsafe(32))


def _once(name: str, make: Callable[[], str]) -> str:
    """What the shared volume holds under that name; made at the first time."""
    path = SHARED / name
    if not path.exists():
        write_private(path, make() + "\n")
    return path.read_text("utf-8").strip()


if __name__ == "__main__":
    main()
