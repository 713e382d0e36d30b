"""The table of `convert --compare`, as wide as its reader's terminal allows.

Tested by tests/cli/test_latency_table.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer_serving.desk.parity.latency import facts, parity_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from transformer_serving.desk.parity.latency import Latency

_ALL = ("mean", "sd", "min", "median", "p95", "p99", "max")
# What a narrow terminal has room for.
_FEWER = ("mean", "median", "p95", "p99")
_ANY_WIDTH = 10_000


def print_latencies(console: Console, rows: Sequence[Latency]) -> None:
    """Milliseconds of one call, a line a row where there is room."""
    table = latency_table(rows, _ALL)
    unbounded = console.options.update(width=_ANY_WIDTH)
    if console.measure(table, options=unbounded).maximum > console.width:
        table = latency_table(rows, _FEWER)
    console.print(table)
    measured = ", ".join(f"{name} {value}" for name, value in facts().items())
    console.print(f"milliseconds of one call of texts x tokens; {measured}", soft_wrap=True)


def latency_table(rows: Sequence[Latency], figures: Sequence[str]) -> Table:
    from transformer_serving.desk.cli.tables import whole_table

    table = whole_table(
        "call", "engine", *figures, "parity", right=figures, box=None, header_style="bold"
    )
    # A number on two lines is another one.
    for column in table.columns:
        column.no_wrap = column.header != "engine"
    for row in rows:
        engine = f"{row.name} {row.precision} ({row.device})"
        cells = [f"{getattr(row, name):.2f}" for name in figures]
        table.add_row(f"{row.texts}x{row.tokens}", engine, *cells, parity_cell(row))
    return table
