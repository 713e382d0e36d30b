"""The terminal: text as it stands, phases of long work, and a table of times at the end.

Tested by tests/cli/test_progress.py and tests/stack/test_commands.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from transformer_serving.desk.step_report import StepReport


def plain_console(*, stderr: bool = False) -> Console:
    """Without rich's markup: paths, names and what others say may hold its signs."""
    return Console(stderr=stderr, markup=False)


def step_line(status: Status) -> StepReport:
    """Shows each step there, as it stands: a status reads markup on any console. Where none moves,
    as in a pipe and on a dumb terminal, each has a line of its own."""

    def show(step: str) -> None:
        status.update(Text(step))
        if not status.console.is_interactive:
            status.console.print(f"{step} ...", highlight=False, markup=False, soft_wrap=True)

    return show


@dataclass
class Phases:
    """Shows one line a phase on `console`, with a spinner where it is a terminal that moves."""

    console: Console
    times: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[Phases]:
        """Time one phase; `report` changes the line while it runs."""
        begun = time.monotonic()
        self._name = name
        with self.console.status(Text(name)) as status:
            self._status = status
            if not self.console.is_interactive:
                self.console.print(f"{name} ...", markup=False)
            yield self
        self.times.append((name, time.monotonic() - begun))
        seconds = f"{self.times[-1][1]:.1f} s"
        self.console.print(Text.assemble(("done", "green"), f" {name} ", (seconds, "dim")))

    def report(self, step: str) -> None:
        """A step inside the running phase."""
        self._status.update(Text(f"{self._name}: {step}"))
        if not self.console.is_interactive:
            self.console.print(f"  {step}", highlight=False, markup=False)

    def table(self) -> Table:
        """Every phase with its seconds, and the sum."""
        table = Table("phase", "seconds", title="where the time went")
        table.columns[1].justify = "right"
        for name, seconds in self.times:
            table.add_row(name, f"{seconds:.1f}")
        table.add_section()
        table.add_row("all", f"{sum(seconds for _, seconds in self.times):.1f}")
        return table
