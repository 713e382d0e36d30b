"""Write the index of docs/decisions/README.md from the pages beside it: `make docs`.

A page is a subject. A decision is its heading of the second level; the line below says its date and
its status: in force, or superseded by which other one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.generated_part import take_no_options
from transformer_serving.contract.replacement import replace_file

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "decisions"
PAGE = FOLDER / "README.md"
_DECISION = re.compile(r"^## (.+)\n\n(\d{4}-\d\d-\d\d), (.+)$", re.MULTILINE)

_HEAD = """# Decisions

Each with its reason, and with the measurement where one was made; a page a subject, newest last.
The line below a title is its date and status. A decision that no longer holds stays, and says by
what it was superseded. This index is made by `make docs`.
"""


@dataclass(frozen=True)
class Decision:
    title: str
    date: str
    status: str


def page() -> str:
    return _HEAD + "".join(_subject(path) for path in subjects())


def subjects() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.md") if path != PAGE)


def decisions(text: str) -> list[Decision]:
    """Raises ValueError where a title has no date and status below it."""
    found = [Decision(*row) for row in _DECISION.findall(text)]
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if undated := set(titles) - {one.title for one in found}:
        raise ValueError(f"'{min(undated)}' has no line 'YYYY-MM-DD, in force' below it")
    return found


def anchor(title: str) -> str:
    """The part behind # that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _subject(path: Path) -> str:
    text = path.read_text("utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    rows = "".join(_rows(path.name, decisions(text)))
    return f"\n## [{title}]({path.name})\n\n| decision | date | status |\n|---|---|---|\n{rows}"


def _rows(name: str, found: list[Decision]) -> Iterator[str]:
    for one in found:
        status = one.status.replace("](#", f"]({name}#")
        yield f"| [{one.title}]({name}#{anchor(one.title)}) | {one.date} | {status} |\n"


def main() -> None:
    take_no_options(__doc__)
    try:
        made = page()
    except ValueError as error:
        sys.exit(f"error: {error}")
    replace_file(PAGE, made)


if __name__ == "__main__":
    main()
