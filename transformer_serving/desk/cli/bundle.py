"""`bundle` and `adopt`: the bundle of an engine that was brought.

Tested by tests/own_engine/test_writer.py and tests/cli/test_ended.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transformer_serving.contract.heads import TOKEN_ROLES
from transformer_serving.desk.cli.engine_options import engine_options
from transformer_serving.desk.cli.options import (
    ConvertingCommand,
    batch_option,
    json_option,
    max_length_option,
    seq_len_option,
    sign_option,
    state_option,
)
from transformer_serving.desk.cli.signing import key_of
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.interruption import interruptible

if TYPE_CHECKING:
    from transformer_serving.desk.builders.call_sizes import Range


@click.command(cls=ConvertingCommand)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="model.onnx, or model.plan of TensorRT.",
)
@engine_options
@click.option(
    "--input-tensor",
    multiple=True,
    metavar="NAME:TYPE",
    help="An input of a plan, such as input_ids:INT32.",
)
@click.option(
    "--output-tensor",
    multiple=True,
    metavar="NAME:TYPE:DIMS",
    help="An output of a plan, dims after the batch, such as output:FP32:2.",
)
@click.option(
    "--output-name",
    "output_",
    metavar="NAME",
    help="Which of several outputs.  [default: the first that fits the task]",
)
@seq_len_option
@batch_option
@max_length_option
@sign_option
@json_option
def bundle(source: Path, output: Path, output_: str | None, sign_key: Path | None, as_json: bool,
           **given: Any) -> None:  # fmt: skip
    """Make a bundle of an engine that you already have."""
    from transformer_serving.desk.own_engine.writer import write_own_bundle

    with interruptible():
        remarks: list[str] = []
        key = key_of(sign_key)
        own = own_engine(source, wanted=output_, **given)
        done = write_own_bundle(own, output, remarks.append, key)
        _say(done, remarks, output, as_json=as_json)


@click.command(cls=ConvertingCommand)
@click.argument("endpoint")
@engine_options
@seq_len_option
@batch_option
@max_length_option
@sign_option
@state_option
@json_option
def adopt(endpoint: str, output: Path, sign_key: Path | None, state: str | None, as_json: bool,
          **given: Any) -> None:  # fmt: skip
    """Make a bundle of the model behind ENDPOINT, which was added by hand."""
    from transformer_serving.desk.local.record import state_directory
    from transformer_serving.desk.own_engine.adoption import served_model
    from transformer_serving.desk.own_engine.writer import write_own_bundle

    with interruptible():
        remarks: list[str] = []
        key = key_of(sign_key)
        with served_model(endpoint, state_directory(state)) as model:
            own = own_engine(model.file, tensors=model.tensors, name=endpoint, **given)
            done = write_own_bundle(own, output, remarks.append, key)
        _say(done, remarks, output, as_json=as_json)


def _say(done: Any, remarks: Sequence[str], output: Path, *, as_json: bool) -> None:
    manifest = done.manifest
    values = {
        "bundle": str(output),
        "bundle_version": manifest.bundle_version,
        "task": manifest.task,
        "engine": manifest.engine,
        "precision": manifest.precision,
        "golden": {"request": manifest.golden.request, "answer": manifest.golden.answer},
        "remarks": list(remarks),
    }
    if as_json:
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    for remark in remarks:
        click.echo(remark)
    click.echo(
        f"bundle {manifest.bundle_version} for {manifest.task} in {output} ({manifest.engine}, "
        f"{manifest.precision}); {manifest.parity['unverified']}\n"
        f"its golden answer: {json.dumps(manifest.golden.answer, ensure_ascii=False)[:300]}\n"
        f"serve it: {command_line(f'deploy {shlex.quote(str(output))} --endpoint NAME')}"
    )


def own_engine(
    file: Path,
    *,
    text: str,
    labels: str | None,
    answer: str | None,
    role: Sequence[str],
    input_tensor: Sequence[str] = (),
    output_tensor: Sequence[str] = (),
    seq_len: Range | None,
    batch: Range | None,
    max_length: int | None,
    tensors: Any = None,
    wanted: str | None = None,
    **others: Any,
) -> Any:
    """The options as an OwnEngine. Raises ConversionRefused."""
    from transformer_serving.desk.builders.call_sizes import call_sizes
    from transformer_serving.desk.builders.table import ladder_of
    from transformer_serving.desk.own_engine.engine import engine_of
    from transformer_serving.desk.own_engine.tensors import EngineTensors, parse_tensor
    from transformer_serving.desk.own_engine.writer import OwnEngine

    if input_tensor or output_tensor:
        tensors = EngineTensors(
            tuple(parse_tensor("--input-tensor", one, (-1,)) for one in input_tensor),
            tuple(parse_tensor("--output-tensor", one, ()) for one in output_tensor),
        )
    return OwnEngine(
        file=file,
        body=_json("--text", text) if text.lstrip().startswith("{") else {"text": text},
        answer=None if answer is None else _json("--answer", answer),
        labels=tuple(name.strip() for name in (labels or "").split(",") if name.strip()),
        roles=dict(map(_role, role)),
        sizes=call_sizes(ladder_of(engine_of(file)), seq_len, batch, max_length),
        tensors=tensors,
        output=wanted,
        **others,
    )


def _role(text: str) -> tuple[str, str]:
    name, _, role = text.rpartition("=")
    if not name or role not in TOKEN_ROLES:
        raise ConversionRefused(
            f"--role must be NAME=ROLE, such as x=input_ids, with one of {', '.join(TOKEN_ROLES)}"
        )
    return name, role


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConversionRefused(f"{option} is not valid JSON") from error


COMMANDS = (bundle, adopt)
