"""The commands that make bundles and show them; a part of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from transformer_serving.engine_options import engine_options
from transformer_serving.options import (
    batch_option,
    engine_choice,
    json_option,
    max_length_option,
    seq_len_option,
    sign_option,
    state_option,
)
from transformer_serving.signing_command import sign, signing_key


@click.command(epilog="A Hub id is downloaded with the Hub's own settings: HF_TOKEN for private "
              "models, HF_HOME or HF_HUB_CACHE for the cache, HF_HUB_OFFLINE=1 to use only that, "
              "HF_ENDPOINT for a mirror, and HTTPS_PROXY and NO_PROXY.")  # fmt: skip
@click.argument("model")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="BUNDLE",
              help="Folder of the new bundle; an older bundle there is replaced.")  # fmt: skip
@click.option("--task", default="auto", show_default=True, help="What the endpoint answers.")
@click.option("--engine", type=engine_choice, multiple=True, default=["openvino"],
              show_default=True, help="What runs the model in Triton; further ones are only "
              "compared.")  # fmt: skip
@click.option("--precision", type=click.Choice(["auto", "fp32", "fp16", "bf16", "int8"]),
              default="auto", show_default=True,
              help="auto: the fastest that answers as the reference, never int8.")  # fmt: skip
@click.option("--revision", help="Branch, tag or commit of a Hub model.")
@seq_len_option
@batch_option
@max_length_option
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE",
              help="Texts, one a line (or bodies as JSON), for int8 and fp16.  "
              "[default: built-in ones]")  # fmt: skip
@click.option("--compare", is_flag=True, help="Measure PyTorch, ONNX Runtime and the engines.")
@click.option("--allow-pickle", is_flag=True,
              help="Read weights that are pickles (.bin, .pt, .ckpt): that runs their writer's "
              "code.")  # fmt: skip
@sign_option
@json_option
def convert(
    model: str, output: Path, engine: tuple[str, ...], compare: bool, as_json: bool,
    sign_key: Path | None, **choices: Any,
) -> None:  # fmt: skip
    """Turn MODEL, a folder or Hub id, into a bundle whose answers equal the reference's."""
    from transformer_serving import convert_command

    with _signing(output, sign_key):
        convert_command.convert(
            model, output, engines=engine, compare=compare, as_json=as_json, **choices
        )


@contextmanager
def _signing(bundle: Path, key: Path | None) -> Iterator[None]:
    """Sign what the block makes; a key that cannot be used is refused before anything is made."""
    if key is None:
        yield
        return
    from transformer_serving.signing import read_key, sign_bundle

    private = read_key(key)
    yield
    sign_bundle(bundle, private)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--endpoint", metavar="NAME", help="Name in the printed lines.  [default: the folder's]"
)
@json_option
def show(bundle: Path, endpoint: str | None, as_json: bool) -> None:
    """Print BUNDLE and the clearml-serving commands that upload and add it."""
    from transformer_serving import show_command

    show_command.show(bundle, endpoint, as_json=as_json)


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
    from transformer_serving import repository_command

    repository_command.repository(
        bundle, output, name, ensemble=ensemble, environment=environment, as_json=as_json
    )


@click.command()
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
    from transformer_serving import own_engine_command

    with _signing(output, sign_key):
        own_engine_command.bundle(source, output, as_json=as_json, wanted=output_, **given)


@click.command()
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
    from transformer_serving import own_engine_command
    from transformer_serving.desk.local.record import state_directory

    with _signing(output, sign_key):
        own_engine_command.adopt(endpoint, state_directory(state), output, as_json=as_json, **given)


BUNDLE_COMMANDS = (convert, show, repository, bundle, adopt, signing_key, sign)
