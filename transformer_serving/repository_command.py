"""What `transformer-serving repository` prints: where the models lie and how to serve them."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click

from transformer_serving.bundle_folder import open_bundle
from transformer_serving.desk.versions.lock import read_lock
from transformer_serving.engine.backend_directory import assemble, pytriton_tritonserver
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.triton_process import (
    LOOPBACK,
    closed_grpc,
    closed_http,
    triton_environment,
)
from transformer_serving.triton_repository import write_repository

MODELS, BACKENDS = "models", "backends"


def repository(
    path: Path,
    output: Path,
    name: str | None,
    *,
    ensemble: bool,
    environment: Path | None,
    as_json: bool,
) -> None:
    """Write the repository and print the commands that serve it. Raises Failure (2)."""
    bundle = open_bundle(path)
    done = write_repository(
        bundle,
        output / MODELS,
        name or path.resolve().name,
        ensemble=ensemble,
        environment=environment,
    )
    commands = {"image": image_line(done.folder)}
    here = wheel_line(output)
    if here is not None:
        commands["here"] = here
    models = [done.model] if done.ensemble is None else [done.model, done.ensemble]
    if as_json:
        values = {"repository": str(done.folder), "models": models, "commands": commands}
        click.echo(json.dumps(values, indent=2))
        return
    click.echo(f"{', '.join(models)} in {done.folder}")
    if here is not None:
        click.echo(f"\nServe it with the tritonserver of the wheel:\n\n{here}")
    if bundle.manifest.engine != "openvino":
        click.echo(f"\nServe it with the pinned image:\n\n{commands['image']}")


def wheel_line(output: Path) -> str | None:
    """The command of this machine's tritonserver, its backends laid out; None without the wheel."""
    try:
        server = pytriton_tritonserver()
        backends = assemble(output.absolute() / BACKENDS, pytriton=server)
        environment = triton_environment(os.environ)
    except EngineError:
        return None
    libraries = shlex.quote(environment["LD_LIBRARY_PATH"])
    python = shlex.quote(environment["PATH"].split(os.pathsep)[0])
    command = [
        str(server / "bin" / "tritonserver"),
        f"--model-repository={output.absolute() / MODELS}",
        f"--backend-directory={backends}",
        "--disable-auto-complete-config",
        *(f"--{door}-address={LOOPBACK}" for door in ("http", "grpc", "metrics")),
        closed_http(),
        closed_grpc(),
    ]
    return f'LD_LIBRARY_PATH={libraries} PATH={python}:"$PATH" {shlex.join(command)}'


def image_line(models: Path) -> str:
    """The docker command of the pinned image; it has native onnxruntime and tensorrt backends."""
    image = read_lock().image.image
    volume = shlex.quote(f"{models.absolute()}:/models:ro")
    return (
        "docker run --rm --gpus all --shm-size 1g -p 127.0.0.1:8000:8000 -p 127.0.0.1:8001:8001 "
        f"-v {volume} {image} tritonserver --model-repository=/models "
        f"--disable-auto-complete-config {closed_http()} {closed_grpc()}"
    )
