"""Write the table of docs/kubernetes.md from the chart's values.yaml: `make docs`.

Each value's sentence is the comment above it; one without a comment goes by its name. A map's is
written above one of its values, as a map has no row.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.generated_part import take_no_options, write_part  # noqa: E402

VALUES = ROOT / "kubernetes" / "chart" / "values.yaml"
PAGE = ROOT / "docs" / "kubernetes.md"
PART = "docs"
_LINE = re.compile(r"^( *)([A-Za-z_]+):(?: (.+))?$")


@dataclass(frozen=True)
class Value:
    """One line of the table; `default` is as it stands in the file."""

    path: str
    default: str
    sentence: str


def main() -> None:
    take_no_options(__doc__)
    write_part(PART, table(VALUES.read_text("utf-8")), PAGE)


def table(text: str) -> str:
    rows = ["| value | default | |", "|---|---|---|"]
    for value in values(text):
        default = f"`{value.default}`" if value.default else ""
        rows.append(f"| `{value.path}` | {default} | {value.sentence} |")
    return "\n".join(rows)


def values(text: str) -> Iterator[Value]:
    """Every value that has a default; a map of others is a part of their names.

    Raises ValueError for a map with a comment, which no row would show.
    """
    path: list[str] = []
    said: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            said.append(line.strip().removeprefix("#").strip())
            continue
        found = _LINE.match(line)
        if found is None:
            # What stands alone at the head of the file is no value's.
            said = []
            continue
        indent, name, default = found.groups()
        path = [*path[: len(indent) // 2], name]
        if default is not None:
            shown = "" if default == '""' else default
            yield Value(".".join(path), shown, " ".join(said))
        elif said:
            raise ValueError(f"{'.'.join(path)} is a map: its comment goes above one of its values")
        said = []


if __name__ == "__main__":
    main()
