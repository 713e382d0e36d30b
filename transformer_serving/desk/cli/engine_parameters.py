"""The options of `convert` that are parameters of a language model's engine: one a declared row.

Tested by tests/cli/test_engine_parameters.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from transformer_serving.contract.engine_parameters import ENGINE_PARAMETERS, EngineParameter


def engine_parameter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options, in the rows' order."""
    for row in reversed(ENGINE_PARAMETERS):
        command = _option(row)(command)
    return command


def _option(row: EngineParameter) -> Callable[..., Any]:
    return click.option(
        row.flag,
        row.name,
        type=_kind(row),
        metavar=None if row.choices else "N",
        help=f"text-generation, {row.engine}: {row.help}  [default: {row.usual}]",
    )


def _kind(row: EngineParameter) -> Any:
    if row.choices:
        return click.Choice(row.choices)
    # What a fraction may be is checked with the row, as for all that are given in Python.
    return click.STRING if row.fraction else click.IntRange(1, row.high)


def taken_parameters(choices: dict[str, Any]) -> dict[str, str]:
    """Those that were given, as config.pbtxt has them; all of them are taken out of `choices`."""
    found = {row.name: choices.pop(row.name) for row in ENGINE_PARAMETERS}
    return {name: str(value) for name, value in found.items() if value is not None}
