"""Tables that show their cells whole: over more lines where the terminal is narrow, a line a row in
a pipe.

Tested by tests/cli/test_status.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# More than any row has.
_PIPE_COLUMNS = 1000


def table_console() -> Console:
    """rich gives a pipe 80 columns, in which a name is on two lines, and no search finds it."""
    from rich.console import Console

    console = Console(markup=False)
    if console.is_terminal or os.environ.get("COLUMNS"):
        return console
    return Console(markup=False, width=_PIPE_COLUMNS)


def whole_table(*headers: str, right: Collection[str] = (), **options: Any) -> Table:
    """rich's own cuts what has no room. `right` are the columns of numbers."""
    from rich.table import Table

    table = Table(**options)
    for header in headers:
        justify: Literal["right", "left"] = "right" if header in right else "left"
        table.add_column(header, overflow="fold", justify=justify)
    return table
