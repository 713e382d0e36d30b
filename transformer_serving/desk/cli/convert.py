"""`convert`: a model becomes a bundle whose answers equal the reference's."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transformer_serving.contract.heads import ENDPOINT_TASKS, GENERATION
from transformer_serving.contract.meanings import POOLINGS
from transformer_serving.desk.cli.engine_parameters import (
    engine_parameter_options,
    taken_parameters,
)
from transformer_serving.desk.cli.options import (
    ConvertingCommand,
    TaskName,
    batch_option,
    engine_choice,
    json_option,
    max_length_option,
    seq_len_option,
    sign_option,
)
from transformer_serving.desk.cli.signing import key_of
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.convert_packages import INSTALL
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import interruptible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from transformer_serving.desk.builders.call_sizes import Range
    from transformer_serving.desk.conversion.encoder import Converted, ConvertRequest


def _no_backend(_context: click.Context, _option: click.Parameter, given: str | None) -> None:
    """transformer-deploy's name of --engine, whose values have other names too."""
    if given is not None:
        named = {"onnx": "onnxruntime", "pytorch": "torch"}.get(given, given)
        engine = named if named in engine_choice.choices else "openvino"
        raise click.UsageError(
            f"what runs the model is named by --engine, such as --engine {engine}; several, "
            "each with an --engine of its own, are compared by --compare"
        )


_MODEL = "the model is named without an option: convert MODEL --output BUNDLE"
_NAME = "a name is given where it is served: --endpoint NAME of deploy, --name NAME of repository"
_VERBOSE = "each step is told without an option; --json prints all that came of it"
_OUTPUT = "the bundle's folder is named by --output BUNDLE"
_TEXTS = "the texts of a call are named by --batch MIN OPT MAX, such as --batch 1 8 64"
_LENGTHS = "the lengths are named by --seq-len MIN OPT MAX, such as --seq-len 16 128 384"
# transformer-deploy's options that are none here, and what is typed instead.
_ELSEWHERE = {
    **dict.fromkeys(("-m", "--model"), _MODEL),
    **dict.fromkeys(("-n", "--name"), _NAME),
    **dict.fromkeys(("-v", "--verbose"), _VERBOSE),
    **dict.fromkeys(("-b", "--batch-size"), _TEXTS),
    **{"-o": _OUTPUT, "-s": _LENGTHS},
}


class _Command(ConvertingCommand):
    """Says what is typed here for an option of transformer-deploy."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            if instead := _ELSEWHERE.get(error.option_name):
                said = f"no such option: {error.option_name}; {instead}"
                raise click.UsageError(said, context) from error
            raise


@click.command(cls=_Command,
              epilog="A Hub id is downloaded with the Hub's own settings: HF_TOKEN for private "
              "models, HF_HOME or HF_HUB_CACHE for the cache, HF_HUB_OFFLINE=1 to use only that, "
              "HF_ENDPOINT for a mirror, and HTTPS_PROXY and NO_PROXY.")  # fmt: skip
@click.argument("model")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="BUNDLE",
              help="Folder of the new bundle; an older bundle there is replaced.")  # fmt: skip
@click.option("--task", type=TaskName(["auto", *ENDPOINT_TASKS]), default="auto",
              show_default=True, help="What the endpoint answers; auto: as the model's files "
              f"say, {GENERATION} never.")  # fmt: skip
@click.option("--engine", "engines", type=engine_choice, multiple=True, default=["openvino"],
              show_default=True, help="What runs the model in Triton; further ones are only "
              "compared.")  # fmt: skip
@click.option("--precision", type=click.Choice(["auto", "fp32", "fp16", "bf16", "int8"]),
              default="auto", show_default=True,
              help="auto: the fastest that answers as the reference; int8 only with "
              "--allow.")  # fmt: skip
@click.option("--allow", type=click.Choice(["int8"]),
              help="Let auto take int8 where it passes parity and is measured the faster one on "
              "this processor.")  # fmt: skip
@click.option("--revision", help="Branch, tag or commit of a Hub model.")
@seq_len_option
@batch_option
@max_length_option
@click.option("--pooling", type=click.Choice(POOLINGS[1:]),
              help="How a text's vector is made of its tokens', for a model without "
              "modules.json.  [default: mean; of a …ForCausalLM lasttoken]")  # fmt: skip
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE",
              help="Texts, one a line (or bodies as JSON), for int8 and fp16 "
              "(not of torch).  [default: built-in ones]")  # fmt: skip
@click.option("--compare", is_flag=True,
              help="Measure PyTorch, ONNX Runtime and the engines, in all precisions or in "
              "--precision.")  # fmt: skip
@click.option("--allow-pickle", is_flag=True,
              help="Read weights that are pickles (.bin, .pt, .ckpt): that runs their writer's "
              "code.")  # fmt: skip
@engine_parameter_options
@click.option("--backend", hidden=True, expose_value=False, callback=_no_backend)
@sign_option
@json_option
def convert(
    model: str, output: Path, engines: tuple[str, ...], compare: bool, as_json: bool,
    sign_key: Path | None, seq_len: Range | None, batch: Range | None, max_length: int | None,
    **choices: Any,
) -> None:  # fmt: skip
    """Turn MODEL, a folder or Hub id, into a bundle whose answers equal the reference's."""
    with interruptible():
        try:
            from transformer_serving.desk.conversion.encoder import ConvertRequest
        except ModuleNotFoundError as error:
            raise Failure(
                f"convert needs {error.name}; install it {INSTALL}", exit_code=2
            ) from error
        if len(engines) > 1 and not compare:
            raise Failure(
                "several --engine are for --compare; a bundle has one engine", exit_code=2
            )
        from transformer_serving.desk.builders.call_sizes import call_sizes
        from transformer_serving.desk.builders.table import ladder_of

        sizes = call_sizes(ladder_of(engines[0]), seq_len, batch, max_length)
        request = ConvertRequest(
            model,
            engine=engines[0],
            buckets=sizes.buckets,
            max_length=sizes.max_length,
            seq_len=seq_len,
            batch=batch,
            compare=engines if compare else (),
            engine_parameters=taken_parameters(choices),
            key=key_of(sign_key),
            **choices,
        )
        done = _convert(request, output, as_json=as_json)
    if done.compared.interrupted:
        # The bundle is whole, and signed; what was asked for is not.
        raise click.Abort


def _convert(request: ConvertRequest, output: Path, *, as_json: bool) -> Converted:
    """Convert and say what came of it."""
    from transformer_serving.desk.cli.progress import plain_console

    console = plain_console(stderr=as_json)
    done = _with_progress(console, request, output)
    if as_json:
        click.echo(json.dumps(_values(done, output), indent=2))
    else:
        _say(console, done, output)
    return done


def _with_progress(console: Console, request: ConvertRequest, output: Path) -> Converted:
    from transformer_serving.desk.conversion.encoder import STEPS, convert as convert_model

    with _bars(console) as bars:
        steps = bars.add_task("convert", total=len(STEPS))
        rounds = bars.add_task("measure", total=None, visible=False)
        # A line a shape, where there is no bar that moves.
        told = set[str]()

        def progress(step: str, detail: str) -> None:
            bars.update(steps, description=f"{step}: {detail}", completed=STEPS.index(step))
            if not console.is_interactive:
                console.print(f"{step}: {detail}", highlight=False, soft_wrap=True)

        def measuring(shape: str, done: int, total: int) -> None:
            bars.update(
                rounds, description=f"measure: {shape}", completed=done, total=total, visible=True
            )
            if done == 0:
                # What --allow measured may have been of the same shapes as the table.
                told.clear()
            if not console.is_interactive and shape not in told:
                told.add(shape)
                progress("parity", f"measuring {shape}, {done} of {total} rounds")

        return convert_model(request, output, progress, measuring)


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_interactive
    ) as bars:
        yield bars


def _values(done: Converted, output: Path) -> dict[str, Any]:
    from transformer_serving.desk.parity.latency import facts

    manifest = done.bundle.manifest
    values = {
        "bundle": str(output),
        "bundle_version": manifest.bundle_version,
        "task": manifest.task,
        "engine": manifest.engine,
        "precision": manifest.precision,
        "parity": asdict(done.parity),
        "refused": list(done.refused),
        "remarks": list(_remarks(done)),
    }
    if done.gain:
        values["gain"] = {**asdict(done.gain), "taken": done.gain.is_taken}
    if done.compared.rows:
        values["measured"] = facts()
        values["latencies_ms"] = [asdict(row) for row in done.compared.rows]
    if done.compared.not_made:
        values["not_made"] = [asdict(row) for row in done.compared.not_made]
    if done.compared.why_not:
        values["not_measured"] = done.compared.why_not
    return values


def _say(console: Console, done: Converted, output: Path) -> None:
    from transformer_serving.desk.cli.latency_table import print_latencies
    from transformer_serving.desk.cli.tables import table_console

    if done.compared.rows:
        print_latencies(table_console(), done.compared.rows)
    # Where it moves, a bar has shown the others for a moment only.
    said = [
        *(done.refused if console.is_interactive else ()),
        *([str(done.gain)] if done.gain else ()),
        *map(str, done.compared.not_made),
        *(
            [f"nothing was measured: {done.compared.why_not}; the bundle is made all the same"]
            if done.compared.why_not
            else ()
        ),
        *_remarks(done),
    ]
    for line in said:
        console.print(line, soft_wrap=True, highlight=False)
    manifest = done.bundle.manifest
    console.print(
        f"bundle {manifest.bundle_version} for {manifest.task} in {output} "
        f"({manifest.engine}, {manifest.precision}); {_found(done)}",
        soft_wrap=True,
    )
    deploy = command_line(f"deploy {shlex.quote(str(output))} --endpoint NAME")
    console.print(f"serve it: {deploy}", soft_wrap=True)


def _remarks(done: Converted) -> Iterator[str]:
    yield from done.remarks
    tokens = done.bundle.endpoint.tokens
    if tokens.known_ids is not None:
        yield (
            f"the tokenizer has tokens beyond the {tokens.known_ids} rows of the model's "
            "embeddings; a request with one of them is answered 422"
        )


def _found(done: Converted) -> str:
    from transformer_serving.desk.conversion.vllm_model import NotRun

    parity = done.parity
    if isinstance(parity, NotRun):
        return parity.unverified
    worst = parity.worst
    return (
        f"largest difference from the reference {parity.largest_difference:.2e}, in text "
        f"{worst.text} with {worst.tokens} tokens in a batch of {worst.batch}"
    )


COMMANDS = (convert,)
