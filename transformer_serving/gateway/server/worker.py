"""One worker process: the app in its loop, heard of by the supervisor that started it.

`python -m transformer_serving.gateway.server.worker` is for supervisor.py only, which hands over
the listening socket and two pipes.

Tested by tests/gateway/test_workers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from granian.asgi import LifespanProtocol

from transformer_serving.contract.open_files import most_files
from transformer_serving.gateway.server.handover import WorkerLoop
from transformer_serving.gateway.server.http import HttpServer
from transformer_serving.gateway.server.worker_order import (
    BEAT_S,
    MAKE_WAY,
    MAKING_WAY_S,
    Report,
    WorkerOrder,
)
from transformer_serving.gateway.settings import read_settings
from transformer_serving.gateway.shutdown import GIVING_UP_S

if TYPE_CHECKING:
    from transformer_serving.gateway.grpc_port.port import GrpcPort

log = logging.getLogger("transformer_serving.gateway")
# A loop that has not turned for so long hangs. Endpoints load their models in it, which may take
# minutes.
_LOOP_HUNG_S = 600.0
# Files of the worker itself: its code, the SDK's sockets, the calls to engines.
_OWN_FILES = 512
# Endpoints may take minutes to be built; one that waits for its engine is not to hold a renewal up.
_READY_S = 300.0
_LOOK_S = 0.1
# For the answers that are under way where the loop was ended by what ran in it.
_LAST_ANSWERS_S = 5.0


class Worker:
    """The app under HTTP from the first request to SIGTERM."""

    def __init__(self, order: WorkerOrder) -> None:
        self._order = order
        self._ports: Sequence[Port] = ()
        self._turned = time.monotonic()

    def run(self) -> None:
        # A terminal's end, as Ctrl-C, comes to the whole group; what it means the supervisor says.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for target in (self._leave_with_the_parent, self._beat):
            threading.Thread(target=target, daemon=True).start()
        # ClearML takes SIGTERM over in this import. We take it after that, or a worker would
        # first spend seconds in ClearML's own shutdown, its requests waiting.
        app = importlib.import_module(self._order.module).app
        loop = WorkerLoop()
        asyncio.set_event_loop(loop)
        serving = loop.create_task(self._serve(app))
        try:
            loop.run_until_complete(serving)
        except BaseException as error:
            if not self._ports:
                raise
            self._leave_at_once(loop, serving, error)

    async def _serve(self, app: Any) -> None:
        lifespan = LifespanProtocol(app)
        listener = socket.socket(fileno=self._order.listener)
        server = HttpServer(
            app, listener, backlog=self._order.backlog, connections=_connections(),
            tls=self._order.tls, turns_away=getattr(app, "turns_away", None),
        )  # fmt: skip
        grpc_port = self._grpc_port(app)
        ports: list[Port] = [server, *([] if grpc_port is None else [grpc_port])]
        told = _on_signals(app, server, ports, self._order.graceful_seconds)
        self._turn()
        await lifespan.startup()
        if lifespan.interrupt or lifespan.errored:
            sys.exit("error: the app could not be started; see the lines above")
        if self._order.when_ready:
            await _readiness(app, told)
        if (note_start := getattr(app, "note_start", None)) is not None:
            note_start(self._order.since)
        if not told.is_set():
            if grpc_port is not None:
                await grpc_port.start()
            server.start()
            self._ports = ports
            self._order.report(Report.STARTED)
            for port in ports:
                await port.ended.wait()
        await lifespan.shutdown()

    def _grpc_port(self, app: Any) -> GrpcPort | None:
        """What it needs takes memory, and most have no such port: imported here."""
        order = self._order
        if order.grpc is None:
            return None
        from transformer_serving.gateway.grpc_port.port import GrpcPort

        return GrpcPort(
            app, order.grpc, read_settings(),
            graceful_seconds=order.graceful_seconds + GIVING_UP_S, tls=order.tls,
        )  # fmt: skip

    def _leave_at_once(
        self, loop: WorkerLoop, serving: asyncio.Task[None], error: BaseException
    ) -> NoReturn:
        """What ran in the loop has ended it: the host's exit_app stops it, sys.exit raises there.

        Granian's threads know nothing of it and would take connections that nobody answers, for as
        long as ClearML's work at the exit takes. That is left out, as where a worker is killed: it
        tells last figures and the end of a task that is deleted when it is silent.
        """
        log.error(
            "the event loop of worker %d was ended by what ran in it (%s), it leaves",
            os.getpid(), type(error).__name__,
        )  # fmt: skip
        last = threading.Timer(2 * _LAST_ANSWERS_S, os._exit, (1,))
        last.daemon = True
        last.start()
        with contextlib.suppress(BaseException):
            loop.run_until_complete(self._last_answers(serving))
        os._exit(1)

    async def _last_answers(self, serving: asyncio.Task[None]) -> None:
        for port in self._ports:
            port.stop()
        await asyncio.wait({serving}, timeout=_LAST_ANSWERS_S)

    def _turn(self) -> None:
        """Note, from the loop itself, that it turns."""
        self._turned = time.monotonic()
        asyncio.get_running_loop().call_later(BEAT_S, self._turn)

    def _beat(self) -> None:
        """Tell the supervisor that the process runs, and its loop: it replaces a silent one."""
        while True:
            if time.monotonic() - self._turned < _LOOP_HUNG_S:
                self._order.report(Report.ALIVE)
            time.sleep(BEAT_S)

    def _leave_with_the_parent(self) -> None:
        """End as at SIGTERM when the parent was killed: the port is the next parent's.

        At once before the start is over, where nobody waits for an answer and the ClearML SDK may
        wait without end.
        """
        self._order.wait_for_the_parents_end()
        log.warning("the parent process has ended, worker %d leaves", os.getpid())
        if not self._ports:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._order.leave_seconds)
        os._exit(1)


class Port(Protocol):
    """One that is listened on; `ended` is set after `stop` and the last answer."""

    ended: asyncio.Event

    def stop(self) -> None: ...


def _on_signals(
    app: Any, server: HttpServer, ports: Sequence[Port], graceful_seconds: float
) -> asyncio.Event:
    """Let SIGTERM stop the ports, within the seconds that requests have; set once it has come.
    What runs then is ended by the app, which answers and counts it.

    SIGUSR1 lets others take the new connections first: they serve on. It knows no drain, which
    shutdown.py puts before SIGTERM's handler.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        told.set()
        if not stopped:
            stopped = True
            for port in ports:
                port.stop()
                loop.call_later(graceful_seconds + GIVING_UP_S, port.ended.set)
            loop.call_later(graceful_seconds, getattr(app, "end_running", _nothing))

    def make_way() -> None:
        if not told.is_set():
            told.set()
            app.make_way()
            server.take_no_more()
            loop.call_later(MAKING_WAY_S, stop)

    for number, answer in ((signal.SIGTERM, stop), (MAKE_WAY, make_way)):
        signal.signal(number, lambda *_, answer=answer: loop.call_soon_threadsafe(answer))
    return told


def _nothing() -> None:
    """Of an app that is not ours."""


async def _readiness(app: Any, told: asyncio.Event) -> None:
    """Until health would say so, the worker is told to leave, or that takes too long."""
    end = time.monotonic() + _READY_S
    while (reason := app.not_ready()) is not None and not told.is_set():
        if time.monotonic() > end:
            log.warning("worker %d serves after %g s: %s", os.getpid(), _READY_S, reason)
            return
        await asyncio.sleep(_LOOK_S)


def _connections() -> int:
    """As many as there are files for: beyond it Granian would try to accept without a pause."""
    files = most_files()
    return max(files // 2, files - _OWN_FILES)


def main() -> None:
    faulthandler.enable()
    Worker(WorkerOrder.parse(sys.argv[1])).run()


if __name__ == "__main__":
    main()
