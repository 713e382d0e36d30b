"""The options that `bundle` and `adopt` share: what must be said of an engine that is brought.

Tested by tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from transformer_serving.contract.heads import HEADS, TASK_HEADS, TASKS
from transformer_serving.contract.manifest import PRECISIONS
from transformer_serving.contract.meanings import POOLINGS
from transformer_serving.desk.cli.options import TaskName

# Their heads have inputs beside the tokens, which nobody's graph but ours has.
_CONVERTED_ALONE = [
    task for task in TASKS if all(HEADS[head].extra_roles for head in TASK_HEADS[task])
]


class _BroughtTask(TaskName):
    """One that an engine of others can answer."""

    def __init__(self) -> None:
        super().__init__([task for task in TASKS if task not in _CONVERTED_ALONE])

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        if value in _CONVERTED_ALONE:
            self.fail(f"{value}'s graph is made by 'convert' alone", param, context)
        return super().convert(value, param, context)


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_OPTIONS = (
    click.option("--output", required=True, type=click.Path(path_type=Path), metavar="BUNDLE",
                 help="Folder of the new bundle; an older bundle there is replaced."),
    click.option("--tokenizer", required=True, metavar="DIR", type=_FOLDER,
                 help="Folder with the model's tokenizer, its config.json, modules.json if any."),
    click.option("--task", required=True, type=_BroughtTask(),
                 help="What the endpoint answers."),
    click.option("--text", required=True, metavar="GOLDEN",
                 help="The golden request: a text, or a whole body as JSON."),
    click.option("--answer", metavar="JSON", help="What the golden request must answer.  "
                 "[default: what the engine answers here]"),
    click.option("--labels", metavar="A,B,...",
                 help="Names of the output's columns.  [default: config.json's id2label]"),
    click.option("--role", multiple=True, metavar="NAME=ROLE",
                 help="What an input is whose name does not tell, such as x=input_ids."),
    click.option("--pooling", type=click.Choice(POOLINGS[1:]),
                 help="For an engine that gives a vector a token.  [default: what modules.json in "
                 "DIR says, else mean]"),
    click.option("--normalize/--no-normalize", default=None,
                 help="Scale pooled vectors to length 1.  [default: where modules.json in DIR "
                 "says so, or is not there]"),
    click.option("--precision", type=click.Choice(PRECISIONS), default="fp32",
                 show_default=True, help="What the engine computes in."),
)  # fmt: skip


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options, in their order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
