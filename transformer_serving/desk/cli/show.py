"""`show`: a bundle, and ClearML's own commands that serve it.

Tested by tests/stack/test_show_and_adopt.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transformer_serving.contract.naming import DEPLOYED, name_fault
from transformer_serving.desk.cli.options import json_option
from transformer_serving.desk.cli.tables import table_console, whole_table
from transformer_serving.desk.failure import Failure

if TYPE_CHECKING:
    from rich.table import Table

    from transformer_serving.contract.endpoint import Limits
    from transformer_serving.desk.bundle.folder import Bundle

SERVING = 'clearml-serving --id "$CLEARML_SERVING_TASK_ID"'
_MODEL_ID = "$MODEL_ID"
# Stands for a name in the lines, and is none: pasted as they are, they are refused.
_NO_NAME = "{NAME}"


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--endpoint",
    metavar="NAME",
    help="Name in the printed lines.  [default: the folder's, where that can be one]",
)
@json_option
def show(bundle: Path, endpoint: str | None, as_json: bool) -> None:
    """Print BUNDLE and the clearml-serving commands that upload and add it."""
    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.command_line import command_line
    from transformer_serving.desk.deploy.endpoint import check_name

    _check_readable(bundle)
    opened = open_bundle(bundle)
    if endpoint is not None:
        check_name(endpoint)
    name = endpoint or _usual_name(bundle)
    commands = {"upload": upload_line(opened, name), "add": add_line(opened, name)}
    if as_json:
        values = {
            "bundle": str(bundle),
            "endpoint": asdict(opened.endpoint),
            "manifest": asdict(opened.manifest),
            "commands": None if name == _NO_NAME else commands,
        }
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    console = table_console()
    console.print(_facts(opened))
    console.print(_tensors(opened))
    console.print(_files(opened))
    serve = command_line(f"deploy {shlex.quote(str(bundle))} --endpoint {shlex.quote(name)}")
    click.echo(f"\nServe it:\n\n{serve}")
    click.echo(
        "\nOr with ClearML's own commands, once CLEARML_SERVING_TASK_ID names the serving service "
        "and\nCLEARML_FILES_HOST the file server (on the embedded stack both come from "
        f"'{command_line('env')}'):\n\n{commands['upload']}\n\n{commands['add']}"
    )


def _usual_name(bundle: Path) -> str:
    """The folder's; of one that nothing can be served as, the word that stands for a name."""
    name = bundle.resolve().name
    return _NO_NAME if name_fault(name, DEPLOYED) else name


def _check_readable(bundle: Path) -> None:
    """Raises Failure (exit code 2) for a path that no line can be printed with."""
    try:
        str(bundle).encode()
    except UnicodeEncodeError as error:
        raise Failure(
            "the path of BUNDLE is no UTF-8, so no line can name it; rename the folder",
            exit_code=2,
        ) from error


def upload_line(bundle: Bundle, endpoint: str) -> str:
    """The shell line that uploads the model folder and keeps the new model's id in MODEL_ID.

    clearml-serving names an upload by its file alone, so each version gets a folder of its own.
    """
    from transformer_serving.desk.deploy.upload import PROJECT

    version = bundle.manifest.bundle_version
    arguments = [
        "model", "upload", "--name", f"{endpoint} {version}", "--project", PROJECT,
        "--framework", "onnx", "--path", str(bundle.model_folder),
    ]  # fmt: skip
    destination = f'"${{CLEARML_FILES_HOST%/}}/bundles/{endpoint}-{version}"'
    command = f"{SERVING} {shlex.join(arguments)} --destination {destination}"
    return f"MODEL_ID=$({command} | sed -n 's/.*new Model ID=//p')"


def add_line(bundle: Bundle, endpoint: str) -> str:
    """The shell line that adds the uploaded model as an endpoint."""
    from transformer_serving.desk.deploy.model_add import add_arguments

    arguments = add_arguments(bundle, endpoint, _MODEL_ID)
    return f"{SERVING} {' '.join(_quoted(arguments))}"


def _quoted(arguments: Sequence[str]) -> list[str]:
    return [
        f'"{argument}"' if argument == _MODEL_ID else shlex.quote(argument)
        for argument in arguments
    ]


def _facts(bundle: Bundle) -> Table:
    endpoint, manifest = bundle.endpoint, bundle.manifest
    table = whole_table("", "", show_header=False, title=str(bundle.folder), title_justify="left")
    source = manifest.source.get("model") or "unknown"
    revision = manifest.source.get("revision")
    rows = {
        "bundle version": str(manifest.bundle_version),
        "made of": f"{source}{f' at {revision}' if revision else ''}",
        "task": f"{endpoint.task} (head {endpoint.head})",
        "engine": f"{manifest.engine} {manifest.precision}",
        "tokens": f"at most {endpoint.tokens.max_length}, padded to "
        + ", ".join(map(str, endpoint.tokens.buckets)),
        "texts of one call": _call_size(endpoint.limits),
        "parity": _parity(bundle),
        "proof": _proof(bundle),
    }
    if manifest.tensorrt:
        rows["TensorRT"] = (
            f"{manifest.tensorrt.get('version')} for compute capability "
            f"{manifest.tensorrt.get('compute_capability')}"
        )
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _parity(bundle: Bundle) -> str:
    parity = bundle.manifest.parity
    if "largest_difference" not in parity:
        return str(parity.get("unverified") or "unknown")
    worst = _fields(parity.get("worst"))
    return (
        f"largest difference from {parity.get('reference')} "
        f"{_figure(parity['largest_difference'])} "
        f"(allowed {parity.get('tolerance')}), with {worst.get('tokens')} tokens in a batch of "
        f"{worst.get('batch')}"
    )


def _proof(bundle: Bundle) -> str:
    """What the controller can ask of the engine where it is served."""
    from transformer_serving.engine.proof.parity_set import FILE_NAME as PARITY

    parity = bundle.manifest.parity
    if not (bundle.model_folder / PARITY).is_file():
        return f"unproven where it is served: {parity.get('unproven') or 'it has no parity set'}"
    shapes = _fields(parity.get("shapes"))
    if not shapes:
        return f"{PARITY}; asked where it is served, and not before"
    return (
        f"{PARITY}; largest difference {_figure(shapes.get('largest_difference'))} over "
        f"{shapes.get('calls')} shapes at {shapes.get('lengths')} lengths"
    )


def _fields(found: Any) -> dict[str, Any]:
    """A manifest's parity is for people, and nobody has checked what it holds."""
    return found if isinstance(found, dict) else {}


def _figure(found: Any) -> str:
    return f"{found:.2e}" if isinstance(found, int | float) else "unknown"


def _tensors(bundle: Bundle) -> Table:
    from transformer_serving.desk.bundle.triton_config import triton_tensors

    table = whole_table("tensor", "name", "type", "dims after the batch")
    for kind, tensors in zip(("input", "output"), triton_tensors(bundle.endpoint), strict=True):
        for tensor in tensors:
            table.add_row(kind, tensor.name, tensor.dtype, str(list(tensor.dims)))
    return table


def _files(bundle: Bundle) -> Table:
    table = whole_table("file", "bytes", "sha256", right=("bytes",))
    for entry in bundle.manifest.files:
        table.add_row(entry.path, f"{entry.size:,}", entry.sha256[:16])
    return table


def _call_size(limits: Limits) -> str:
    tokens = limits.max_call_tokens
    return f"at most {limits.max_batch_size}" + (f", of {tokens} tokens together" if tokens else "")


COMMANDS = (show,)
