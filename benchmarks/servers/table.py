"""The table of servers that are measured: how each is started and when it is ready."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.servers import tritons
from benchmarks.servers.environments import environment_python
from benchmarks.servers.process import Child, Unusable, free_ports
from benchmarks.servers.site import EMPTY, OURS, STOCK, Site
from transformer_serving.desk.step_report import StepReport

_RECIPES = Path(__file__).parent.parent / "recipes"
_GUNICORN_WORKERS = 2
_SHORT = b'{"text": "a short text"}'
# The whole of what the gateway's supervisor says of each; a worker that is late says more itself.
_SERVES = re.compile(r'"worker \d+ serves"')


@dataclass(frozen=True)
class Running:
    """A server that answers; `base` is its address, `children` all that was started for it.

    `lent` where somebody else stops them.
    """

    base: str
    children: tuple[Child, ...]
    lent: bool = False

    def processes(self) -> list[psutil.Process]:
        return [process for child in self.children for process in child.tree()]

    def stop(self) -> None:
        for child in () if self.lent else self.children:
            child.stop()


Start = Callable[[Site, StepReport], Running]


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
        running = _start(
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

    return _start(site, name, command, variables, ready=f"/serve/{OURS}", body=_SHORT)


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

        return _start(
            site, called, command, variables, ready=ready or f"/serve/{EMPTY}",
            body=None if ready else _SHORT,
        )  # fmt: skip

    return start


def queue(site: Site, report: StepReport) -> Running:
    python = environment_python("recipes", report)

    def command(port: int) -> list[str]:
        return [
            str(python), "-m", "uvicorn", "queue_app:app", "--host=127.0.0.1", f"--port={port}",
            "--no-access-log", "--log-level=warning",
        ]  # fmt: skip

    variables = _model_variables(site)
    return _start(site, "queue", command, variables, ready="/", body=b"a text", folder=_RECIPES)


def gunicorn(site: Site, report: StepReport) -> Running:
    python = environment_python("recipes", report)

    def command(port: int) -> list[str]:
        return [
            str(python), "-m", "gunicorn", "gunicorn_app:app", f"--bind=127.0.0.1:{port}",
            f"--workers={_GUNICORN_WORKERS}", "--worker-class=uvicorn.workers.UvicornWorker",
            "--timeout=1000", "--log-level=warning",
        ]  # fmt: skip

    variables = _model_variables(site)
    return _start(
        site, "gunicorn", command, variables, ready="/classify", body=_SHORT, folder=_RECIPES
    )


def litserve(site: Site, report: StepReport) -> Running:
    python = environment_python("litserve", report)
    script = str(_RECIPES / "litserve_app.py")
    return _start(
        site, "litserve", lambda port: [str(python), script, str(port)], _model_variables(site),
        ready="/predict", body=_SHORT,
    )  # fmt: skip


def mlserver(site: Site, report: StepReport) -> Running:
    """MLServer's Hugging Face runtime, one request a pipeline call (its default)."""
    python = environment_python("mlserver", report)
    port, grpc, metrics = free_ports(3)
    folder = site.work / "mlserver"
    (folder / "transformer").mkdir(parents=True)
    model = {
        "name": "transformer",
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "parameters": {
            "extra": {
                "task": "text-classification",
                "pretrained_model": str(site.models.hugging_face),
            }
        },
    }
    server = {"http_port": port, "grpc_port": grpc, "metrics_port": metrics, "host": "127.0.0.1",
              "parallel_workers": 1}  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(server), "utf-8")
    (folder / "transformer" / "model-settings.json").write_text(json.dumps(model), "utf-8")
    program = python.with_name("mlserver")
    child = Child(
        "mlserver", [str(program), "start", str(folder)], site.work / "logs" / "mlserver.log",
        # It keeps folders of its own where it is started.
        _model_variables(site), folder,
    )  # fmt: skip
    return _ready(
        child, f"http://127.0.0.1:{port}", "/v2/models/transformer/ready", None, limit_s=300.0
    )


def ensemble(site: Site, report: StepReport) -> Running:
    """Tokenizer, engine and ensemble inside Triton.

    Its stub takes an environment with numpy 1: the stub of tritonserver 2.51 was built for it, and
    under numpy 2 it reads texts at wrong places and dies.
    """
    python = environment_python("ensemble", report)
    work = site.work / "ensemble"
    tritons.ensemble_repository(work, site.repository, STOCK)
    triton = tritons.start_triton(
        "ensemble Triton", work, environment=_model_variables(site), packages=python.parent
    )
    base = f"http://{triton.http}"
    try:
        triton.child.wait_until(f"{base}/v2/models/ensemble/ready", limit_s=60)
    except Unusable:
        triton.child.stop()
        raise
    return Running(base, (triton.child,))


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
    "mlserver": mlserver,
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


def _model_variables(site: Site) -> dict[str, str]:
    return {
        "BENCH_MODEL": str(site.models.hugging_face),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _start(
    site: Site, name: str, command: Callable[[int], list[str]], variables: Mapping[str, str], *,
    ready: str, body: bytes | None, folder: Path | None = None,
) -> Running:  # fmt: skip
    port = free_ports(1)[0]
    child = Child(name, command(port), site.work / "logs" / f"{name}.log", variables, folder)
    return _ready(child, f"http://127.0.0.1:{port}", ready, body)


def _ready(
    child: Child, base: str, path: str, body: bytes | None, limit_s: float = 120.0
) -> Running:
    try:
        child.start()
        child.wait_until(f"{base}{path}", body=body, limit_s=limit_s)
    except BaseException as error:
        child.stop()
        if isinstance(error, FileNotFoundError):
            raise Unusable(f"{child.name}: {shutil.which(child.command[0]) or error}") from None
        raise
    return Running(base, (child,))
