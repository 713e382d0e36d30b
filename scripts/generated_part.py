"""The parts of a page that a make target writes, between two comments."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def take_no_options(about: str | None) -> None:
    """Ends what takes none with `about` for --help, and with 2 for anything else: neither is to
    begin its work, which writes a page."""
    argparse.ArgumentParser(description=(about or "").partition("\n")[0]).parse_args()


def markers(name: str, target: str | None = None) -> tuple[str, str]:
    """What stands before and after a part that `make TARGET` makes, its own name unless given."""
    return f"<!-- {name}: made by `make {target or name}` -->", f"<!-- end of {name} -->"


def write_part(name: str, content: str, page: Path = PAGE, target: str | None = None) -> None:
    """Put `content` between the comments of the part `name`. Raises SystemExit without them."""
    start, end = markers(name, target)
    text = page.read_text("utf-8")
    part = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    if not part.search(text):
        raise SystemExit(f"error: {page.name} has no part between '{start}' and '{end}'")
    aside = page.with_suffix(".new")
    aside.write_text(part.sub(lambda _: f"{start}\n{content}\n{end}", text, count=1), "utf-8")
    aside.replace(page)


def described(facts: Mapping[str, str], load: float) -> str:
    """One sentence about the machine; `load` is the load average before the measurement."""
    versions = ", ".join(
        f"{name} {value}"
        for name, value in facts.items()
        if name not in ("date", "processor", "cores")
    )
    return (
        f"{facts['date']}, {facts['processor']}, {facts['cores']} cores, load average {load:.1f} "
        f"before the first call; {versions}."
    )


def load_average() -> float:
    return os.getloadavg()[0]
