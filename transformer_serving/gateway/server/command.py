"""`python -m transformer_serving.gateway`: the app, in as many processes as wanted.

Tested by tests/gateway/test_workers.py.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from transformer_serving.contract.keys import read_keys
from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.contract.settings.polls import SERVING_POLL
from transformer_serving.contract.settings.stop import refuse_a_stop_that_does_not_fit
from transformer_serving.contract.worker import tracing
from transformer_serving.contract.worker.log_lines import write_json_lines
from transformer_serving.gateway.access import ACCESS, check_address, read_access
from transformer_serving.gateway.figures.folder import figures_folder
from transformer_serving.gateway.server.kept_tls import KeptTls, kept_tls
from transformer_serving.gateway.server.listener import BoundPath, hold, listen, listen_on_socket
from transformer_serving.gateway.server.process_limit import refuse_workers_without_threads
from transformer_serving.gateway.server.supervisor import Supervisor
from transformer_serving.gateway.server.worker_order import MAKING_WAY_S, WorkerOrder
from transformer_serving.gateway.settings import (
    DRAIN_SECONDS,
    GRACEFUL_SECONDS,
    GRPC_PORT,
    WORKERS,
    GatewaySettings,
    read_settings,
)
from transformer_serving.gateway.shutdown import GIVING_UP_S, LEAVE_S

_APP = "transformer_serving.gateway.app"
# Beyond all that a worker may take from the signal to leave on.
_SPARE_S = 5.0
_LAST_PORT = 65_535
# As the system takes it.
_MOST_QUEUED = 2**31 - 1
_NUMBERS = (
    (WORKERS, "--workers", "COUNT"),
    (GRACEFUL_SECONDS, "--graceful-seconds", "SECONDS"),
    (GRPC_PORT, "--grpc-port", "PORT"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    write_json_lines()
    try:
        os.environ.update(_named(options))
        access = read_access()
        settings = read_settings()
        # What reads these, code of bundles and each worker, says so only where none can answer.
        preprocess_settings.check_settings(os.environ)
        SERVING_POLL.number(os.environ)
        tracing.check_settings(os.environ)
        taken = {
            DRAIN_SECONDS.name: settings.drain_seconds,
            GRACEFUL_SECONDS.name: settings.graceful_seconds,
        }
        refuse_a_stop_that_does_not_fit(os.environ, taken, beside=LEAVE_S)
        workers = WORKERS.whole(os.environ)
        refuse_workers_without_threads(workers)
        if options.uds is None and options.port == settings.grpc_port > 0:
            raise ValueError(f"--port and --grpc-port are both {options.port}; name two")
        if options.uds is None or settings.grpc_port:
            check_address(access, options.host)
        tls = kept_tls(access)
        if access.keys_file is not None:
            # Each worker does so itself; here it is one line and no worker is started.
            read_keys(access.keys_file)
        figures = figures_folder()
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    with figures:
        status = _serve(options, workers, tls, settings)
    sys.exit(status)


def _serve(
    options: argparse.Namespace, workers: int, tls: KeptTls | None, settings: GatewaySettings
) -> int:
    grpc_port, drain_seconds = settings.grpc_port, settings.drain_seconds
    if options.uds is None:
        with _listening(_address(options.host, options.port), "--host", "--port"):
            listener = listen(options.host, options.port, options.backlog)
    else:
        with _listening(options.uds, "--uds"):
            listener = listen_on_socket(Path(options.uds), options.backlog)
    held = None
    if grpc_port:
        with _listening(_address(options.host, grpc_port), "--host", "--grpc-port"):
            held = hold(options.host, grpc_port)
    uds = None if options.uds is None else BoundPath.of(Path(options.uds))
    life, ours = os.pipe()
    order = WorkerOrder(
        module=_APP,
        listener=listener.fileno(),
        reports=-1,
        parent=life,
        backlog=options.backlog,
        graceful_seconds=settings.graceful_seconds,
        leave_seconds=max(drain_seconds, MAKING_WAY_S)
        + settings.graceful_seconds
        + GIVING_UP_S
        + LEAVE_S
        + _SPARE_S,
        grpc=None if held is None else _address(options.host, grpc_port),
        since=time.time(),
    )
    status = Supervisor(listener, workers, order, drain_seconds, tls).run()
    os.close(ours)
    if held is not None:
        held.close()
    if uds is not None:
        uds.remove()
    return status


@contextlib.contextmanager
def _listening(where: str, *flags: str) -> Iterator[None]:
    """`flags` say where, the last of them also which of several on one machine."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = f"end who listens there, or name another with {flags[-1]}"
        else:
            fix = f"name another with {' or '.join(flags)}"
        sys.exit(f"error: cannot listen on {where}: {error.strerror or error}; {fix}")


def _named(options: argparse.Namespace) -> Mapping[str, str]:
    """Flags as the variables that the workers read; files by their whole path."""
    given = {row: getattr(options, _attribute(row.flag), None) for row in ACCESS}
    named = {
        row.name: "1" if row.is_switch else str(Path(value).absolute())
        for row, value in given.items()
        if value
    }
    numbers = ((row, _attribute(flag)) for row, flag, _ in _NUMBERS)
    return named | {row.name: getattr(options, at) for row, at in numbers if at in options}


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _attribute(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_serving.gateway",
        description="Serve clearml-serving's inference app behind the gateway.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on")
    parser.add_argument("--uds", help="unix socket to listen on instead")
    parser.add_argument("--backlog", type=_count, default=2048, help="connections that may queue")
    for setting, flag, what in _NUMBERS:
        # Not argparse's own default, which would go before the variable's.
        text = f"{setting.help} [{setting.name}] (default: {setting.default})"
        parser.add_argument(flag, metavar=what, help=text, default=argparse.SUPPRESS)
    for row in ACCESS:
        text = f"{row.help} [{row.name}]"
        if row.is_switch:
            parser.add_argument(row.flag, action="store_true", help=text)
        else:
            parser.add_argument(row.flag, metavar="FILE", help=text, default=argparse.SUPPRESS)
    return parser


def _port(text: str) -> int:
    """What is beyond would be taken modulo 65,536 by the system."""
    return _whole(text, "port", 0, _LAST_PORT)


def _count(text: str) -> int:
    return _whole(text, "number of connections", 1, _MOST_QUEUED)


def _whole(text: str, what: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text} is no {what}: {least} to {most:,}")
    return number
