"""Phases of long work on the terminal: what runs now, and a table of times at the end.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Phases:
    """Shows one line a phase on `console`, with a spinner where it is a terminal."""

    console: Console
    times: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[Phases]:
        """Time one phase; `report` changes the line while it runs."""
        begun = time.monotonic()
        self._name = name
        with self.console.status(name) as self._status:
            if not self.console.is_terminal:
                self.console.print(f"{name} ...")
            yield self
        self.times.append((name, time.monotonic() - begun))
        self.console.print(f"[green]done[/] {name} [dim]{self.times[-1][1]:.1f} s[/]")

    def report(self, step: str) -> None:
        """A step inside the running phase."""
        self._status.update(f"{self._name}: {step}")
        if not self.console.is_terminal:
            self.console.print(f"  {step}", highlight=False)

    def table(self) -> Table:
        """Every phase with its seconds, and the sum."""
        table = Table("phase", "seconds", title="where the time went")
        table.columns[1].justify = "right"
        for name, seconds in self.times:
            table.add_row(name, f"{seconds:.1f}")
        table.add_section()
        table.add_row("all", f"{sum(seconds for _, seconds in self.times):.1f}")
        return table
