"""Runs the control plane: `python -m transformer_serving.control_plane --data DIR`.

Tested by tests/control_plane/test_server.py.
"""

from __future__ import annotations

import logging
import logging.config
import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import click
import uvicorn

from transformer_serving.contract.open_files import most_files
from transformer_serving.control_plane.app import create_app
from transformer_serving.control_plane.connections import Connection
from transformer_serving.control_plane.integrity import DATABASE, READABLE, found_damage, is_large
from transformer_serving.control_plane.settings import SettingsError, settings_from_environment
from transformer_serving.control_plane.store import StoreError

_log = logging.getLogger(__package__)

# Longer than the pause between two calls of a polling client: a connection closed just as
# the next request is on its way would cost that client an error.
_KEEP_ALIVE_SECONDS = 120
_GRACEFUL_SECONDS = 1


class OneLine(logging.Formatter):
    """Exceptions as the last place and the type only: their text may quote a request."""

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, ...],
    ) -> str:
        trace = ei[2]
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = ""
        if trace is not None:
            code = trace.tb_frame.f_code
            place = f" at {Path(code.co_filename).name}:{trace.tb_lineno} in {code.co_name}"
        return f"{ei[0].__name__ if ei[0] else ''}{place}"

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", " | ")


_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": OneLine, "format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"level": "WARNING", "handlers": ["stderr"]},
    "loggers": {__package__ or "": {"level": "INFO"}},
}


@click.command(context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8008, type=click.IntRange(1, 65535), help="API and file port.")
@click.option(
    "--data",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the database and the files.",
)
def main(host: str, port: int, data: Path) -> None:
    """Serve the ClearML API and files of one machine, on one port.

    The keys that clients log in with are read from TRANSFORMER_SERVING_ACCESS_KEY and
    TRANSFORMER_SERVING_SECRET_KEY.
    """
    logging.config.dictConfig(_LOGGING)
    try:
        settings = settings_from_environment(data, host, port)
        app = create_app(settings)
        if is_large(data):
            threading.Thread(target=_look_at_pages, args=(data,), daemon=True).start()
    except (SettingsError, StoreError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except sqlite3.Error as error:
        database = data / DATABASE
        raise click.ClickException(
            f"{database} cannot be used: {error}. Fix: {READABLE}"
        ) from error
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Connection.bounded(most_files()),
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
    )
    server = uvicorn.Server(config)
    _log.info("control plane on http://%s:%d, data in %s", host, port, data)
    server.run()
    if not server.started:
        sys.exit(3)


def _look_at_pages(data: Path) -> None:
    """Beside what serves, which is ended where the data is damaged: it is not to grow further, and
    the next start says why."""
    why = found_damage(data)
    if why is not None:
        _log.error("%s", why)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
