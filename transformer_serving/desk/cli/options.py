"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transformer_serving.contract.naming import DEPLOYED, name_fault
from transformer_serving.desk.builders.table import ENGINES
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import KEY_VARIABLE
from transformer_serving.desk.number import Number

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    # Of click 8.1 it takes no type.
    _Choice = click.Choice

# More than any upload takes, and less than an alarm can be set for.
WEEK_S = 7 * 24 * 3600


def name_of(bundle: Path, given: str | None, option: str) -> str:
    """As given, or else the folder's. Raises Failure (exit code 2) naming the option for a folder
    that nothing can be served as."""
    if given is not None:
        return given
    name = bundle.resolve().name
    if fault := name_fault(name, DEPLOYED):
        raise Failure(
            f"{fault}; its folder's is {repr(name)[:80]}, so give {option} NAME", exit_code=2
        )
    return name


def key_was_typed(key: str | None) -> bool:
    """Whether it was given by --key, and no variable has it."""
    return bool(key) and os.environ.get(KEY_VARIABLE) != key


state_option = click.option(
    "--state",
    envvar="TRANSFORMER_SERVING_STATE",
    show_envvar=True,
    metavar="DIR",
    help="Folder that holds the stack's data, logs and ports.  [default: .stack]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
key_option = click.option(
    "--key",
    envvar=KEY_VARIABLE,
    show_envvar=True,
    metavar="KEY",
    help="Key for a gateway that has keys; others see a command line, so rather the variable.",
)
deploy_timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=Number(0, WEEK_S, min_open=True),
    default=120.0,
    envvar="TRANSFORMER_SERVING_DEPLOY_TIMEOUT_S",
    show_default=True,
    show_envvar=True,
    metavar="SECONDS",
    help="How long all of it may take, uploads and golden answer included; 600 where containers or "
    "pods look for changes once a minute.",
)
keep_option = click.option(
    "--keep",
    type=click.IntRange(2),
    default=5,
    show_default=True,
    metavar="N",
    help="How many of the endpoint's bundles stay in the model registry, this one included.",
)


# Other names of the same tasks: transformers' own, and transformer-deploy's.
TASK_ALIASES = {
    "ner": "token-classification",
    "sentiment-analysis": "text-classification",
    "classification": "text-classification",
    "embedding": "sentence-embedding",
}


class TaskName(_Choice):
    """One of the tasks, also by a name of TASK_ALIASES."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        return super().convert(TASK_ALIASES.get(value, value), param, context)


_OF_THREE = {"--seq-len": "16 128 384", "--batch": "1 8 64"}


def _three(option: str) -> str:
    return f"{option} takes three numbers, MIN OPT MAX, such as {option} {_OF_THREE[option]}"


class _Size(click.IntRange):
    """One of MIN OPT MAX."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        if param is not None and not str(value).lstrip("-").isdigit():
            self.fail(f"'{value}' is no number; {_three(param.opts[0])}", param, context)
        return int(super().convert(value, param, context))


class ConvertingCommand(click.Command):
    """Says of an option with three numbers that it has three, where fewer end the line."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.BadOptionUsage as error:
            if error.option_name in _OF_THREE:
                said = _three(error.option_name)
                raise click.BadOptionUsage(error.option_name, said, context) from error
            raise


engine_choice = click.Choice(list(ENGINES))
seq_len_option = click.option(
    "--seq-len", type=_Size(1), nargs=3, metavar="MIN OPT MAX",
    help="Token lengths that calls are padded to: these and the usual steps between them. MAX is "
    "the longest text.  [default: 4, for TensorRT and torch 16, to the model's longest]",
)  # fmt: skip
batch_option = click.option(
    "--batch", type=_Size(1), nargs=3, metavar="MIN OPT MAX",
    help="Texts of one engine call; MIN is 1, and MAX what Triton joins.  [default: 1 8 64]",
)  # fmt: skip
max_length_option = click.option(
    "--max-length", type=click.IntRange(1), metavar="TOKENS",
    help="Longest text.  [default: the model's, but at most 8192]",
)  # fmt: skip
sign_option = click.option(
    "--sign", "sign_key", type=click.Path(path_type=Path), metavar="KEY",
    help="Sign the bundle with this key of 'signing-key new'.",
)  # fmt: skip
