"""Servers of others, each in an environment of its own: how they are started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.servers import tritons
from benchmarks.servers.environments import environment_python
from benchmarks.servers.process import Child, Unusable, free_ports
from benchmarks.servers.running import Running, Start, start_server, when_ready
from benchmarks.servers.site import STOCK, Site
from transformer_serving.desk.step_report import StepReport

_RECIPES = Path(__file__).parent.parent / "recipes"
_GUNICORN_WORKERS = 2
_SHORT = b'{"text": "a short text"}'
# As benchmarks/recipes have them: requests that are computed together, seconds that they wait.
_MOST, _WAIT_S = 64, 0.001


def queue(site: Site, report: StepReport) -> Running:
    python = environment_python("recipes", report)

    def command(port: int) -> list[str]:
        return [
            str(python), "-m", "uvicorn", "queue_app:app", "--host=127.0.0.1", f"--port={port}",
            "--no-access-log", "--log-level=warning",
        ]  # fmt: skip

    return start_server(
        site, "queue", command, _model_variables(site), ready="/", body=b"a text",
        folder=_RECIPES, environment="recipes",
    )  # fmt: skip


def gunicorn(site: Site, report: StepReport) -> Running:
    python = environment_python("recipes", report)

    def command(port: int) -> list[str]:
        return [
            str(python), "-m", "gunicorn", "gunicorn_app:app", f"--bind=127.0.0.1:{port}",
            f"--workers={_GUNICORN_WORKERS}", "--worker-class=uvicorn.workers.UvicornWorker",
            "--timeout=1000", "--log-level=warning",
        ]  # fmt: skip

    return start_server(
        site, "gunicorn", command, _model_variables(site), ready="/classify", body=_SHORT,
        folder=_RECIPES, environment="recipes",
    )  # fmt: skip


def litserve(site: Site, report: StepReport) -> Running:
    python = environment_python("litserve", report)
    script = str(_RECIPES / "litserve_app.py")
    return start_server(
        site, "litserve", lambda port: [str(python), script, str(port)], _model_variables(site),
        ready="/predict", body=_SHORT, environment="litserve",
    )  # fmt: skip


def mlserver(*, batches: bool = False) -> Start:
    """MLServer's Hugging Face runtime: one request a pipeline call, which is its default, or with
    its adaptive batching by the limits of the queue recipe and LitServe."""
    name = "mlserver-batched" if batches else "mlserver"

    def start(site: Site, report: StepReport) -> Running:
        python = environment_python("mlserver", report)
        ports = free_ports(3)
        folder = mlserver_folder(site.work / name, site.models.hugging_face, ports, batches=batches)
        child = Child(
            name, [str(python.with_name("mlserver")), "start", str(folder)],
            site.work / "logs" / f"{name}.log",
            # It keeps folders of its own where it is started.
            _model_variables(site), folder,
        )  # fmt: skip
        base = f"http://127.0.0.1:{ports[0]}"
        return when_ready(
            child, base, "/v2/models/transformer/ready", None, limit_s=300.0, environment="mlserver"
        )

    return start


def mlserver_folder(
    folder: Path, pretrained: Path, ports: Sequence[int], *, batches: bool = False
) -> Path:
    """Its settings; the ports of HTTP, gRPC and metrics."""
    http, grpc, metrics = ports
    server = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "host": "127.0.0.1",
              "parallel_workers": 1}  # fmt: skip
    model: dict[str, Any] = {
        "name": "transformer",
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "parameters": {
            "extra": {"task": "text-classification", "pretrained_model": str(pretrained)}
        },
    }
    if batches:
        model |= {"max_batch_size": _MOST, "max_batch_time": _WAIT_S}
    (folder / "transformer").mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(server), "utf-8")
    (folder / "transformer" / "model-settings.json").write_text(json.dumps(model), "utf-8")
    return folder


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
    return Running(base, (triton.child,), environment="ensemble")


def _model_variables(site: Site) -> dict[str, str]:
    return {
        "BENCH_MODEL": str(site.models.hugging_face),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
