"""A table that shows its cells whole, over more lines where the terminal is narrow.

Tested by tests/cli/test_status.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def whole_table(*headers: str, **options: Any) -> Table:
    """rich's own cuts what has no room, also in a pipe, which has the width of 80."""
    from rich.table import Table

    table = Table(**options)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table
