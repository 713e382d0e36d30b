"""`repository`: where the models of a Triton without ClearML lie, and how to serve them.

Tested by tests/deploy/test_plain_triton.py.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click

from transformer_serving.desk.cli.options import json_option, name_of
from transformer_serving.desk.interruption import interruptible

MODELS, BACKENDS = "models", "backends"
# The engines whose backends the pinned image has.
_IN_IMAGE = ("onnxruntime", "tensorrt")
# Triton's own, but for the figures: an embedded stack that runs beside it has those at 8002, and
# its other parts' up to 8005.
_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8006}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Folder of the repository; a model of that name is replaced.")  # fmt: skip
@click.option("--name", metavar="NAME", help="The model's name in Triton.  [default: the folder's]")
@click.option(
    "--ensemble", is_flag=True, help="Add a tokenizer and an ensemble that take raw text."
)
@click.option("--python-environment", "environment", metavar="DIR",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Environment with numpy<2 and tokenizers for the ensemble's tokenizer.  "
              "[default: Triton's own]")  # fmt: skip
@json_option
def repository(
    bundle: Path,
    output: Path,
    name: str | None,
    ensemble: bool,
    environment: Path | None,
    as_json: bool,
) -> None:
    """Lay BUNDLE out as the model repository of a Triton without ClearML."""
    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.deploy.plain_triton import write_repository

    if environment is not None and not ensemble:
        raise click.UsageError(
            "--python-environment is that of the ensemble's tokenizer: give --ensemble, too"
        )
    opened = open_bundle(bundle)
    model = name_of(bundle, name, "--name")
    with interruptible():
        done = write_repository(
            opened,
            output / MODELS,
            model,
            ensemble=ensemble,
            environment=environment,
        )
        here, why_not = _here(output)
    commands = {}
    if opened.manifest.engine in _IN_IMAGE:
        commands["image"] = image_line(done.folder, gpus=done.gpu)
    if here is not None:
        commands["here"] = here
    models = [done.model] if done.ensemble is None else [done.model, done.ensemble]
    if why_not is not None:
        click.echo(f"The tritonserver of the wheel cannot serve it here: {why_not}", err=True)
    if as_json:
        values = {"repository": str(done.folder), "models": models, "commands": commands}
        click.echo(json.dumps(values, indent=2))
        return
    click.echo(f"{', '.join(models)} in {done.folder}")
    if here is not None:
        click.echo(f"\nServe it with the tritonserver of the wheel:\n\n{here}")
    if "image" in commands:
        click.echo(f"\nServe it with the pinned image:\n\n{commands['image']}")


def _here(output: Path) -> tuple[str | None, str | None]:
    """The command of this machine's tritonserver, or why there is none."""
    from transformer_serving.engine.errors import EngineError

    try:
        return wheel_line(output), None
    except EngineError as error:
        return None, str(error)


def wheel_line(output: Path) -> str:
    """The command of this machine's tritonserver, its backends laid out.

    Raises EngineError without the wheel, or where it cannot run.
    """
    from transformer_serving.engine.backend_directory import assemble, pytriton_tritonserver
    from transformer_serving.engine.triton_process import (
        LOOPBACK,
        closed_grpc,
        closed_http,
        nameable,
        triton_environment,
    )

    server = pytriton_tritonserver()
    backends = nameable(assemble(output.absolute() / BACKENDS, pytriton=server), output)
    models = nameable(output.absolute() / MODELS, output)
    environment = triton_environment(os.environ)
    libraries = shlex.quote(environment["LD_LIBRARY_PATH"])
    python = shlex.quote(environment["PATH"].split(os.pathsep)[0])
    command = [
        str(server / "bin" / "tritonserver"),
        f"--model-repository={models}",
        f"--backend-directory={backends}",
        "--disable-auto-complete-config",
        *(f"--{door}-address={LOOPBACK}" for door in _PORTS),
        *(f"--{door}-port={port}" for door, port in _PORTS.items()),
        closed_http(),
        closed_grpc(),
    ]
    there = "" if models.is_absolute() else f"cd {shlex.quote(str(output.absolute()))} && "
    return f'{there}LD_LIBRARY_PATH={libraries} PATH={python}:"$PATH" {shlex.join(command)}'


def image_line(models: Path, *, gpus: bool) -> str:
    """The docker command of the pinned image; without a GPU docker refuses one with `gpus`."""
    from transformer_serving.desk.versions.lock import read_lock
    from transformer_serving.engine.triton_process import closed_grpc, closed_http

    image = read_lock().image.image
    volume = shlex.quote(f"{models.absolute()}:/models:ro")
    options = "--rm --gpus all" if gpus else "--rm"
    return (
        f"docker run {options} --shm-size 1g -p 127.0.0.1:8000:8000 -p 127.0.0.1:8001:8001 "
        f"-v {volume} {image} tritonserver --model-repository=/models "
        f"--disable-auto-complete-config {closed_http()} {closed_grpc()}"
    )


COMMANDS = (repository,)
