"""The table of servers that are measured: how each is started and when it is ready."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from benchmarks.servers import tritons
from benchmarks.servers.others import ensemble, gunicorn, litserve, mlserver, queue
from benchmarks.servers.process import Unusable
from benchmarks.servers.running import Running, Start, start_server
from benchmarks.servers.site import EMPTY, OURS, Site
from transformer_serving.desk.step_report import StepReport

_SHORT = b'{"text": "a short text"}'
# The whole of what the gateway's supervisor says of each; a worker that is late says more itself.
_SERVES = re.compile(r'"worker \d+ serves"')


def gateway(
    workers: int = 1, *, null: bool = False, environment: Mapping[str, str] | None = None,
    first: str = OURS, name: str = "", ready: str = "",
) -> Start:  # fmt: skip
    """clearml-serving's app behind our gateway, ready when endpoint `first` answers and all serve.

    With `ready` it is ready when it answers GET of that path.
    """
    called = f"gateway-{name or workers}{'-null' if null else ''}"
    arguments = ["-m", "transformer_serving.gateway", "--host=127.0.0.1", f"--workers={workers}"]

    def start(site: Site, report: StepReport) -> Running:
        variables = {**_variables(site, called, null), **(environment or {})}
        running = start_server(
            site, called, lambda port: [sys.executable, *arguments, f"--port={port}"], variables,
            ready=ready or f"/serve/{first}", body=None if ready else _SHORT,
        )  # fmt: skip
        try:
            # The first of them answers alone.
            running.children[0].wait_until_said(_SERVES, workers)
        except BaseException:
            running.stop()
            raise
        return running

    return start


def uvicorn_null(site: Site, report: StepReport) -> Running:
    """The gateway's app in uvicorn, as before Granian, with the null engine behind it."""
    name = "uvicorn-null"
    figures = site.work / "figures" / name
    figures.mkdir(parents=True, exist_ok=True)
    variables = {
        **_variables(site, name, True),
        # As the gateway itself has it: figures are shared by files.
        "PROMETHEUS_MULTIPROC_DIR": str(figures),
    }

    def command(port: int) -> list[str]:
        return [
            sys.executable, "-m", "uvicorn", "transformer_serving.gateway.app:app",
            "--host=127.0.0.1", f"--port={port}",
            "--lifespan=on", "--no-access-log", "--log-level=warning",
            "--loop=uvloop", "--http=httptools",
        ]  # fmt: skip

    return start_server(site, name, command, variables, ready=f"/serve/{OURS}", body=_SHORT)


def app(
    *, null: bool = False, workers: int = 1, environment: Mapping[str, str] | None = None,
    name: str = "", ready: str = "",
) -> Start:  # fmt: skip
    """clearml-serving's app, unmodified, in uvicorn as its own entry point starts it."""
    called = f"app-{name or workers}{'-null' if null else ''}"

    def start(site: Site, report: StepReport) -> Running:
        variables = {**_variables(site, called, null), **(environment or {})}

        def command(port: int) -> list[str]:
            return [
                sys.executable, "-m", "uvicorn", "clearml_serving.serving.main:app",
                "--host=127.0.0.1", f"--port={port}", f"--workers={workers}", "--loop=uvloop",
                "--http=httptools", "--no-access-log", "--log-level=warning",
            ]  # fmt: skip

        return start_server(
            site, called, command, variables, ready=ready or f"/serve/{EMPTY}",
            body=None if ready else _SHORT,
        )  # fmt: skip

    return start


def triton_alone(site: Site, report: StepReport) -> Running:
    """A Triton of its own with our model, at a port, where the stack's listens on a socket."""
    work = site.work / "triton-alone"
    tritons.copy_repository(site.repository, work, only=OURS)
    started = tritons.start_triton("Triton alone", work)
    return Running(f"http://{started.http}", (started.child,))


def triton_null(site: Site, report: StepReport) -> Running:
    """The Triton before the null engine, which the site starts and stops."""
    if site.null is None:
        raise Unusable("the null engine was not started")
    return Running(f"http://{site.null.http}", (site.null.child,), lent=True)


# By the name that peers use. Those of `make bench` first, the others are of `make bench-all`.
SERVERS: dict[str, Start] = {
    "gateway": gateway(),
    "app": app(),
    "gateway-null": gateway(null=True),
    "uvicorn-null": uvicorn_null,
    "app-null": app(null=True),
    "queue": queue,
    "gunicorn": gunicorn,
    "gateway-2": gateway(2),
    "gateway-3": gateway(3),
    "app-2": app(workers=2),
    "app-3": app(workers=3),
    "litserve": litserve,
    "mlserver": mlserver(),
    "mlserver-batched": mlserver(batches=True),
    "ensemble": ensemble,
    "triton": triton_alone,
    "triton-null": triton_null,
}


def _variables(site: Site, name: str, null: bool) -> dict[str, str]:
    variables = site.app_environment(name)
    if null:
        if site.null is None:
            raise Unusable("the null engine was not started")
        variables |= site.null.variables()
    return variables
