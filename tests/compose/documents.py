"""The command lines that the documents show: found here, so that none goes untested."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.compose.machine import ROOT

DOCUMENT = ROOT / "docs" / "compose.md"
# Files whose comments show commands of Docker.
_COMMENTED = ("compose/*.yaml", "docker/*/Dockerfile", "docker/example.env")
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks() -> dict[str, str]:
    """The shell blocks of docs/compose.md by their heading; a heading has one at most."""
    found = {}
    for section in DOCUMENT.read_text("utf-8").split("\n## ")[1:]:
        scripts = _BLOCK.findall(section)
        assert len(scripts) < 2, section.splitlines()[0]
        if scripts:
            found[section.splitlines()[0]] = scripts[0]
    return found


def variables_of(heading: str) -> dict[str, str]:
    """What a section has put into my.env: its block of NAME=VALUE lines."""
    section = DOCUMENT.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (found,) = re.findall(r"^```\n((?:[A-Z_]+=.*\n)+)```", section, re.MULTILINE)
    return dict(row.split("=", 1) for row in found.splitlines())


def lines_of(script: str) -> list[str]:
    """Its commands, each on one line."""
    return [" ".join(line.split()) for line in script.replace("\\\n", " ").splitlines() if line]


def elsewhere() -> Iterator[str]:
    """Docker's command lines outside docs/compose.md: other pages' blocks, and comments."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if page != DOCUMENT:
            for script in _BLOCK.findall(page.read_text("utf-8")):
                yield from (
                    line for line in lines_of(script) if re.match(r"docker |compose/", line)
                )
    for pattern in _COMMENTED:
        for path in sorted(ROOT.glob(pattern)):
            yield from re.findall(
                r"(docker compose .+?)\s*$", _comments(path.read_text("utf-8")), re.M
            )


def _comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))
