"""Where generated parts stand: README and docs/performance.md, by the kind of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.results import Results
from benchmarks.site import ROOT

PERFORMANCE = ROOT / "docs" / "performance.md"


@dataclass(frozen=True)
class Part:
    """One generated part: the run it is made from, the document, the markers' name, its maker."""

    kind: str
    document: Path
    name: str
    text: Callable[[Results], str]


PARTS = (
    Part("bench", ROOT / "README.md", "speed", report.readme_text),
    Part("bench", PERFORMANCE, "side by side", report.performance_text),
    Part("bench-all", PERFORMANCE, "everything", report.everything_text),
)


def write(results: Results) -> None:
    """Renew every part that is made from a run of this kind."""
    for part in PARTS:
        if part.kind == results.values["kind"]:
            report.write_section(part.document, part.name, part.text(results))
