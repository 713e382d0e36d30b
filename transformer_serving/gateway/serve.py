"""`python -m transformer_serving.gateway`: uvicorn around the app, with the options it wants.

Tested by tests/gateway/test_workers.py.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
from collections.abc import Sequence

import uvicorn
import uvloop

from transformer_serving.gateway.figures_folder import figures_folder
from transformer_serving.gateway.http_protocol import BoundedProtocol
from transformer_serving.gateway.workers import look_after_workers

# Longer than the 60 s after which balancers commonly let go of an idle connection: the side that
# sends requests should be the one that closes.
_KEEP_ALIVE_SECONDS = 75
# uvicorn kills a worker that does not answer it for so long. Its own 5 s also hit workers that
# are only short of processor time, with every request that runs in them.
_HUNG_SECONDS = 60


def event_loop() -> asyncio.AbstractEventLoop:
    """A worker's loop, made after its app was imported.

    ClearML takes SIGTERM over when the app is imported. uvicorn must take it after that, or a
    worker would first spend seconds in ClearML's own shutdown, its requests waiting.
    """
    importlib.import_module("transformer_serving.gateway.app")
    return uvloop.new_event_loop()


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    look_after_workers()
    with figures_folder():
        uvicorn.run(
            "transformer_serving.gateway.app:app",
            host=options.host,
            port=options.port,
            uds=options.uds,
            workers=options.workers,
            backlog=options.backlog,
            loop="transformer_serving.gateway.serve:event_loop",
            http=BoundedProtocol,
            ws="none",
            lifespan="on",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=options.graceful_seconds,
            timeout_worker_healthcheck=_HUNG_SECONDS,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_serving.gateway",
        description="Serve clearml-serving's inference app behind the gateway.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on")
    parser.add_argument("--uds", help="unix socket to listen on instead")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--backlog", type=int, default=2048, help="connections that may queue")
    parser.add_argument(
        "--graceful-seconds", type=int, default=30, help="for running requests after SIGTERM"
    )
    return parser
