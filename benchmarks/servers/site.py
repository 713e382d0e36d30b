"""The place of a measurement: models, a fresh embedded stack with its endpoints, a null Triton."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.servers import tritons
from benchmarks.servers.models import TORCH_TEXT, Models, build_models
from benchmarks.servers.process import Unusable
from benchmarks.servers.stack_processes import stack_processes
from benchmarks.servers.tritons import Triton
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.deploy.golden import ask
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.local.parts import sdk_variables
from transformer_serving.desk.local.record import require_record
from transformer_serving.desk.step_report import StepReport

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
OURS, OURS_ORT, OURS_AGAIN = "ours", "ours_onnxruntime", "ours_again"
STOCK, STOCK_ORT, EMPTY = "stock", "stock_onnxruntime", "empty"
# The endpoints of one engine: with our preprocess, and in the style of the host's own example.
_ENDPOINTS = {
    "openvino": (OURS, STOCK),
    "onnxruntime": (OURS_ORT, STOCK_ORT),
    TORCH_TEXT: (OURS, STOCK),
}
_RECIPES = Path(__file__).parent.parent / "recipes"
# clearml-serving's own command that adds the empty Preprocess.
EMPTY_ARGUMENTS = (
    "model", "add", "--engine", "custom", "--endpoint", EMPTY,
    "--preprocess", str(_RECIPES / "empty_preprocess.py"),
)  # fmt: skip
# Below the folder of a run: the demo's own stack, and all that a run may have started.
DEMO_STACK = "demo-stack"
_STACKS = ("stack", DEMO_STACK, "clone/.stack")
_STOCK_PREPROCESS = ROOT / "examples" / "stock" / "preprocess.py"
_AUX = {"openvino": 'backend="openvino_text"', "onnxruntime": 'platform="onnxruntime_onnx"'}


@dataclass
class Site:
    """Where everything runs.

    `environment` points ClearML's tools at the stack, `uploaded` holds model ids by endpoint.
    """

    work: Path
    models: Models
    state: Path
    environment: Mapping[str, str]
    triton: str
    port_base: int
    null: Triton | None = None
    uploaded: dict[str, str] = field(default_factory=dict)

    @property
    def repository(self) -> Path:
        return self.state / "triton" / "models"

    def app_environment(self, name: str) -> dict[str, str]:
        """The variables of an inference app; its ClearML files are its own."""
        home = self.work / "clearml" / name
        home.mkdir(parents=True, exist_ok=True)
        return {
            **self.environment,
            **sdk_variables(home),
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMER_SERVING_TRITON_HTTP": self.triton,
            # A container has no checkout: here the SDK would find this one above its virtual
            # environment, and parse all of it beside the first rounds.
            "GIT_CEILING_DIRECTORIES": str(ROOT),
        }

    def processes(self) -> dict[str, list[psutil.Process]]:
        """By name those of the stack's parts and of the null engine, with all below them. Raises
        SilentSupervisor."""
        stack = stack_processes(self.state)
        found = {f"the stack's {name}": processes for name, processes in stack.items()}
        if self.null is not None:
            found[self.null.child.name] = self.null.child.tree()
        return found

    def triton_pid(self) -> int:
        """The stack's Triton."""
        return stack_processes(self.state)["triton"][0].pid


def open_site(
    work: Path, report: StepReport, *, null: bool, models: Models | None = None, others: bool = True
) -> Site:
    """Build, start and deploy; `models` are built where they are not given, and `others` adds the
    endpoints that ours are compared with.

    Raises Unusable or Failure when that does not work here.
    """
    models = models or build_models(BUILD / "models", report)
    for state in (work / name for name in _STACKS):
        if state.is_dir():
            # A run that was killed left it: without its record nobody could stop it, and it would
            # be in the way of this one.
            report("stopping what an earlier run may have left")
            stack_command("down", state)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    report("starting the stack")
    site = _started(work, models)
    try:
        _deploy_all(site, f"http://127.0.0.1:{site.port_base}/serve", report, others=others)
        if null:
            report("starting the null engine")
            tritons.copy_repository(site.repository, work / "null")
            site.null = tritons.start_triton("null Triton", work / "null", null=True)
    except BaseException:
        close_site(site)
        raise
    return site


def _started(work: Path, models: Models) -> Site:
    """The site with its stack alone; what an `up` leaves that fails or is ended is stopped."""
    state = work / "stack"
    base = free_row(4)
    try:
        stack_command("up", state, "--port-base", str(base))
        environment: dict[str, str] = json.loads(stack_command("env", state, "--json"))
        return Site(work, models, state, environment, require_record(state).triton.http, base)
    except BaseException:
        stack_command("down", state)
        raise


def close_site(site: Site) -> None:
    if site.null is not None:
        site.null.child.stop()
    stack_command("down", site.state)


def _deploy_all(site: Site, serve_url: str, report: StepReport, *, others: bool) -> None:
    cli = ClearmlCli(site.environment, site.environment["CLEARML_SERVING_TASK_ID"])
    added = [EMPTY]
    for engine, bundle in site.models.bundles.items():
        ours, stock = _ENDPOINTS[engine]
        report(f"deploying {ours}")
        deploy(site, bundle.folder, ours)
        if not others:
            continue
        report(f"adding {stock}")
        _add_stock(cli, bundle, stock)
        added.append(stock)
    if others:
        cli.run(*EMPTY_ARGUMENTS)
    for name in added if others else ():
        report(f"waiting for {name}")
        wait_for(f"{serve_url}/{name}")


def deploy(site: Site, bundle: Path, endpoint: str) -> None:
    """Serve a bundle in the stack, and wait for its golden answer."""
    arguments = (str(bundle), "--endpoint", endpoint, "--timeout", "300", "--json")
    site.uploaded[endpoint] = json.loads(stack_command("deploy", site.state, *arguments))[
        "model_id"
    ]


def service_of_one(site: Site, name: str, arguments: Sequence[str]) -> dict[str, str]:
    """A serving service with one endpoint: the variables that make an app serve it.

    `arguments` are clearml-serving's, of the endpoint. The stack's own service has them all.
    """
    service = ClearmlCli(site.environment).create_service(name)
    ClearmlCli(site.environment, service).run(*arguments)
    return {"CLEARML_SERVING_TASK_ID": service}


def ours_arguments(site: Site) -> list[str]:
    """The same of our endpoint, with the model that the stack's Triton has."""
    return list(add_arguments(site.models.bundles["openvino"], OURS, site.uploaded[OURS]))


def _add_stock(cli: ClearmlCli, bundle: Bundle, name: str) -> None:
    """As the seed's own commands have it, dynamic batching included; see docs/by-hand.md."""
    destination = f"{cli.environment['CLEARML_FILES_HOST']}/bench/{name}-{time.time_ns()}"
    model = cli.upload_model(name, "benchmarks", bundle.model_folder, destination)
    inputs = bundle.endpoint.inputs
    cli.run(
        "model", "add", "--engine", "triton", "--endpoint", name, "--model-id", model,
        "--preprocess", str(_STOCK_PREPROCESS),
        "--input-size", *("[-1]" for _ in inputs), "--input-type", *("int32" for _ in inputs),
        "--input-name", *(tensor.name for tensor in inputs),
        "--output-size", "[2]", "--output-type", "float32",
        "--output-name", bundle.endpoint.outputs[0].name,
        "--aux-config", _AUX[bundle.manifest.engine], "max_batch_size=64",
        "dynamic_batching.max_queue_delay_microseconds=500",
    )  # fmt: skip


def wait_for(url: str, limit_s: float = 180.0) -> None:
    deadline = time.monotonic() + limit_s
    reply = ask(url, {"text": "a short text"})
    while reply.status != 200:
        if time.monotonic() > deadline:
            raise Unusable(f"{url} did not answer: {reply.status} {str(reply.body)[:200]}")
        time.sleep(0.5)
        reply = ask(url, {"text": "a short text"})


def stack_command(command: str, state: Path, *arguments: str) -> str:
    """What the command line prints. Raises Unusable with what it says when it fails."""
    program = str(Path(sys.executable).with_name("transformer-serving"))
    done = subprocess.run(
        [program, command, *arguments, "--state", str(state)],
        cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    if done.returncode:
        raise Unusable(f"transformer-serving {command}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
