"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns of figures are set to the right."""
    numeric = [
        bool(rows) and all(not row[at] or row[at][0] in "0123456789±≥≤-" for row in rows)
        for at in range(len(head))
    ]
    lines = [head, ["---:" if right else "---" for right in numeric], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
