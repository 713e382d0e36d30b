"""The whole stack before an engine: loads, processor time, overload, workers that feed it."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report.gpu_page import PAUSE_S, PAUSED, REMARKS
from benchmarks.runs import loads, processor_time
from benchmarks.runs.loads import Load
from benchmarks.runs.results import times_of_answers
from benchmarks.runs.rounds import measure_rounds
from benchmarks.runs.runners import Plan
from benchmarks.runs.session import Session, session
from benchmarks.runs.wrk import wrk
from benchmarks.servers import texts
from benchmarks.servers.encoders import LARGE, MINILM, Encoder
from benchmarks.servers.models import TENSORRT, TORCH_TEXT, Models
from benchmarks.servers.peers import Peer
from benchmarks.servers.process import Child, Unusable, cpu_s, free_ports
from benchmarks.servers.running import Running
from benchmarks.servers.site import BUILD, OURS, service_of_one
from benchmarks.servers.table import gateway
from benchmarks.studies.gpu import needs
from benchmarks.studies.gpu.engines import bundle_of, fastest
from benchmarks.studies.gpu.step_process import labels
from benchmarks.studies.overload import Overload
from benchmarks.studies.workers import FULL_SENDER, measured, remarks
from transformer_serving.contract.golden import agrees
from transformer_serving.desk.bench.bounds import spread
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.cli.repository import image_line
from transformer_serving.desk.deploy.golden import ask
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.deploy.plain_triton import write_repository
from transformer_serving.desk.step_report import StepReport
from transformer_serving.engine.model_config import FILE_NAME, from_text, to_text

# A step's time is short, and nothing of its page is of how idle the machine was.
_PLAN = Plan(seconds=2.0, rounds=3, warm_up_s=1.0, idle_within_s=0.0)
_OVERLOAD_S = 30.0
_WORKERS = (1, 2, 4, 8, 16)
_KIND_GPU = 1
_IMAGE_S = 180.0
# Of a measurement, what is stored and shown.
FIGURES = (
    "texts", "p50", "p99", "cpu_us", "triton_us", "engine_us", "load_us", "failed", "texts_a_call",
)  # fmt: skip


def peers(engine: str) -> list[Peer]:
    """Ours, and the engine alone on texts padded as ours are: call after call, and of one text at a
    time after pauses too, as it has them behind a server."""
    alone = Peer("raw-padded", "the engine alone", engine, "limit", None, padded=True)
    return [
        Peer("gateway", "ours, gateway", engine, "ours", "gateway", f"/serve/{OURS}"),
        alone,
        replace(alone, name=PAUSED, title="the engine alone, after pauses", pause_s=PAUSE_S),
    ]


_SHORT = (loads.SEED, loads.SINGLE, loads.BATCH, loads.MIXED)
# What a large encoder is asked for: a passage fills a bucket, and a call of them a GPU.
_PASSAGES = (
    replace(loads.SEED, name="passage", tokens=256,
            title="a text of 256 tokens, 128 clients, new connections (ab -c 128)"),
    replace(loads.SINGLE, name="passage-single", tokens=256,
            title="a text of 256 tokens at a time, kept connection (wrk -c 1)"),
    replace(loads.BATCH, name="passages", tokens=256,
            title="32 texts of 256 tokens a request, 4 clients"),
    loads.MIXED,
)  # fmt: skip
LOADS = {MINILM.name: _SHORT, LARGE.name: _PASSAGES}


def chosen_loads(encoder: Encoder) -> list[Load]:
    """`ab` and `wrk` where they are; else our own generator sends the same."""
    found = list(LOADS[encoder.name])
    if needs.load_tools() is None:
        return found
    return [
        one
        if one.tool == "open"
        else replace(one, tool="own", title=f"{one.title.partition(' (')[0]} (own generator)")
        for one in found
    ]


@contextlib.contextmanager
def opened(report: StepReport, encoder: Encoder = MINILM) -> Iterator[Session]:
    """The embedded stack with the model on engine torch at what this machine computes well."""
    bundle = bundle_of("torch", fastest("torch"), report, encoder)
    models = Models(encoder.folder(report), {TORCH_TEXT: bundle})
    # Each step starts the gateway that it measures, with workers of its own number.
    with session([], _PLAN, report, BUILD / "gpu" / "run", models, by_ab=False) as found:
        yield found


def stack(report: StepReport, encoder: Encoder = MINILM) -> dict[str, Any]:
    with opened(report, encoder) as found, contextlib.ExitStack() as servers:
        count = feeders()
        server = gateway(count, name="stack")(found.site, report)
        servers.callback(server.stop)
        found.runner.servers["gateway"] = server
        return {"workers": count, **loaded(found, peers(TORCH_TEXT), report, encoder)}


def cores() -> int:
    return len(os.sched_getaffinity(0))


def feeders() -> int:
    """Gateway workers: half of the cores, and the others for engine, Triton and what sends."""
    return max(1, cores() // 2)


def loaded(
    found: Session, asked: list[Peer], report: StepReport, encoder: Encoder = MINILM
) -> dict[str, Any]:
    """Medians by load and peer, and why something was not measured."""
    sent, engines = chosen_loads(encoder), found.runner.engines.values()
    outcome = measure_rounds(found.runner, asked, sent, report)
    rows: dict[str, dict[str, Any]] = {}
    for (peer, load), rounds in outcome.figures.items():
        there = [one for one in map(times_of_answers, rounds) if one is not None]
        kept = {
            name: spread([float(one[name]) for one in there]).median
            for name in FIGURES
            if there and all(isinstance(one.get(name), int | float) for one in there)
        }
        rows.setdefault(load, {})[peer] = kept
    return {
        "model": encoder.title,
        "precision": next(iter(found.site.models.bundles.values())).manifest.precision,
        "titles": {load.name: load.title for load in sent},
        "loads": rows,
        "failed": outcome.failed,
        REMARKS: list(dict.fromkeys(line for engine in engines for line in engine.remarks)),
    }


def overload(report: StepReport) -> dict[str, Any]:
    """Of the engine, not of what feeds it: several workers, and on a GPU the model that keeps one
    busy."""
    encoder, load = (MINILM, loads.SEED) if needs.gpu() else (LARGE, _PASSAGES[0])
    with opened(report, encoder) as found:
        text = found.runner.text(load)
        part = Overload(_OVERLOAD_S, engines=(), workers=feeders(), text=text)
        overloads = part(found, report)
    full = [
        f"deadline {row['deadline']}: what sends used more than {FULL_SENDER:.0%} of a core: the "
        "stack may do more"
        for row in overloads["rows"]
        if max(row["calm_generator_cpu"], row["generator_cpu"]) > FULL_SENDER
    ]
    asked = {"model": encoder.title, "text": load.title.partition(",")[0], "workers": part.workers}
    return {**asked, **overloads, REMARKS: full}


def workers(report: StepReport) -> dict[str, Any]:
    """Texts a second of more and more gateway workers on one engine, while there are cores."""
    counts = [one for one in _WORKERS if one <= max(2, cores())]
    measure = measured if needs.load_tools() else by_wrk
    rows: dict[str, dict[str, float]] = {}
    with opened(report) as found:
        for count in counts:
            report(f"{count} workers")
            server = gateway(count, name=f"feeding-{count}")(found.site, report)
            try:
                rounds = [measure(server, _PLAN.seconds) for _ in range(_PLAN.rounds + 1)][1:]
            finally:
                server.stop()
            rows[str(count)] = {
                name: spread([row[name] for row in rounds]).median for name in rounds[0]
            }
    return {"cores": cores(), "rows": rows, REMARKS: remarks(rows)}


def by_wrk(server: Running, seconds: float) -> dict[str, float]:
    """As `measured`, by a program that is not the first to be at its end, in several threads."""
    threads = max(1, cores() // 4)
    before, own = cpu_s(server.processes()), processor_time.spent()[processor_time.LOAD]
    with tempfile.TemporaryDirectory(prefix="check-gpu-") as scratch:
        body = Path(scratch) / "text.json"
        body.write_bytes(texts.json_text([texts.SEED]))
        found = wrk(
            f"{server.base}/serve/{OURS}", body, seconds=seconds, clients=loads.KEPT.clients,
            content_type="application/json", threads=threads,
        )  # fmt: skip
    elapsed = found.requests / found.rate
    return {
        "per_s": round((found.requests - found.failed) / found.requests * found.rate, 1),
        "server": round((cpu_s(server.processes()) - before) / (elapsed * cores()), 3),
        "generator": round(
            (processor_time.spent()[processor_time.LOAD] - own) / (elapsed * threads), 3
        ),
    }


Start = Callable[[Bundle, StepReport], "contextlib.AbstractContextManager[str]"]


def outside(engine: str, start: Start, report: StepReport) -> dict[str, Any]:
    """The gateway and the embedded control plane before another Triton, which `start` starts.

    It is given the bundle and gives host:port of Triton's HTTP; the stack's own Triton serves none
    of this.
    """
    key = TORCH_TEXT if engine == "torch" else engine
    bundle = bundle_of(engine, fastest(engine), report)
    with opened(report) as found, start(bundle, report) as http:
        site = found.site
        cli = ClearmlCli(site.environment)
        destination = f"{cli.environment['CLEARML_FILES_HOST']}/bench/gpu-{time.time_ns()}"
        model = cli.upload_model(OURS, "benchmarks", bundle.model_folder, destination)
        environment = {
            **service_of_one(site, f"gpu {engine}", add_arguments(bundle, OURS, model)),
            "TRANSFORMER_SERVING_TRITON_HTTP": http,
        }
        server = gateway(environment=environment, name=f"outside-{engine}")(site, report)
        try:
            _require_golden(bundle, server)
            return _before(found, key, bundle, server, report)
        finally:
            server.stop()


def _require_golden(bundle: Bundle, server: Running) -> None:
    """Raises Unusable where the answer is another one than the bundle's own."""
    golden = bundle.manifest.golden
    reply = ask(f"{server.base}/serve/{OURS}", dict(golden.request))
    if reply.status != 200 or not agrees(reply.body, golden.answer, golden.tolerance):
        raise Unusable(f"the golden request was answered otherwise, with status {reply.status}")


def _before(
    found: Session, key: str, bundle: Bundle, server: Running, report: StepReport
) -> dict[str, Any]:
    found.site.models = Models(found.site.models.hugging_face, {key: bundle})
    found.runner.models = found.site.models
    found.runner.servers["gateway"] = server
    return loaded(found, peers(key)[:1], report)


@contextlib.contextmanager
def pinned_image(bundle: Bundle, report: StepReport) -> Iterator[str]:
    """The pinned image in Docker, with the bundle's model on its GPU."""
    folder = BUILD / "gpu" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    written = write_repository(bundle, folder / "models", OURS, ensemble=False)
    _on_gpu(written.folder / OURS / FILE_NAME)
    name, (http, grpc) = f"check-gpu-{uuid.uuid4().hex[:8]}", free_ports(2)
    command = container_command(written.folder, name, http, grpc)
    child = Child("the pinned image", command, folder / "image.log")
    report("starting the pinned image")
    child.start()
    try:
        child.wait_until(f"http://127.0.0.1:{http}/v2/models/{OURS}/ready", limit_s=_IMAGE_S)
        yield f"127.0.0.1:{http}"
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
        child.stop()


def container_command(models: Path, name: str, http: int, grpc: int) -> list[str]:
    """The pinned image's `docker run` with these ports, of this name and with the step's mark."""
    line = image_line(models, gpus=True).replace("127.0.0.1:8000:", f"127.0.0.1:{http}:", 1)
    line = line.replace("127.0.0.1:8001:", f"127.0.0.1:{grpc}:", 1)
    own = shlex.join(["--name", name, *labels()])
    return shlex.split(line.replace("docker run --rm", f"docker run --rm {own}", 1))


def _on_gpu(config_file: Any) -> None:
    """Of ONNX Runtime too, whose bundles say KIND_CPU."""
    config = from_text(config_file.read_text("utf-8"))
    config.instance_group[0].kind = _KIND_GPU
    config_file.write_text(to_text(config), "utf-8")


def image(engine: str, report: StepReport) -> dict[str, Any]:
    return outside(TENSORRT if engine == TENSORRT else engine, pinned_image, report)
