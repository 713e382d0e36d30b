"""Where generated parts stand in README and docs/, by the kinds of the stored runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import (
    budget_tables as budget_report,
    generation_tables as generation_report,
    gpu_page,
    growth_tables as growth_report,
    overload_tables as overload_report,
    tables as report,
)
from benchmarks.report.budgets import ALL, BENCH, STARTS
from benchmarks.runs.results import Results
from benchmarks.servers.site import ROOT
from scripts.generated_part import write_part

PERFORMANCE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
GPU = ROOT / "docs" / "gpu.md"
GROWTH_PAGE = ROOT / "docs" / "growth.md"
OVERLOAD = "overload"
GENERATION = "generation"
GROWTH = growth_report.GROWTH
# Which make target renews them all.
TARGET = "bench-tables"
KINDS = (BENCH, ALL, STARTS, OVERLOAD, GENERATION, GROWTH)

Runs = Mapping[str, Results]


@dataclass(frozen=True)
class Part:
    """One generated part: the runs it is made from, the document, the markers' name, its maker."""

    kinds: tuple[str, ...]
    document: Path
    name: str
    text: Callable[[Runs], str]


def _of(kind: str, text: Callable[[Results], str]) -> Callable[[Runs], str]:
    return lambda runs: text(runs[kind])


PARTS = (
    Part((BENCH,), README, "speed", _of(BENCH, report.readme_text)),
    Part((BENCH,), PERFORMANCE, "side by side", _of(BENCH, report.performance_text)),
    Part((BENCH, STARTS, ALL), PERFORMANCE, "budgets", budget_report.budgets_text),
    Part((ALL,), PERFORMANCE, "everything", _of(ALL, report.everything_text)),
    Part((OVERLOAD,), PERFORMANCE, "overload", _of(OVERLOAD, overload_report.alone_text)),
    Part((GENERATION,), PERFORMANCE, "generation", _of(GENERATION, generation_report.text)),
    Part((GROWTH, BENCH, ALL), GROWTH_PAGE, "growth", growth_report.text),
)


def text_of(part: Part, folder: Path) -> str:
    """What stands there by the runs stored in a folder; nothing without a run."""
    runs = {kind: Results.read(path) for kind in part.kinds if (path := file_of(folder, kind))}
    return part.text(runs) if runs else ""


def file_of(folder: Path, kind: str) -> Path | None:
    path = folder / f"{kind}.json"
    return path if path.is_file() else None


def draw(results: Results, folder: Path) -> list[Path]:
    """Every picture that the run has figures for; the files written."""
    # matplotlib comes with them, which tables do without.
    from benchmarks.report import growth_plots, plots

    return [*plots.draw(results, folder), *growth_plots.draw(results, folder)]


def write_gpu(steps: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """docs/gpu.md's part, from the steps of check-gpu that were stored."""
    write_part("check-gpu", gpu_page.text(steps, names), GPU, TARGET)


def write(folder: Path) -> None:
    """Renew every part that a stored run says something for."""
    for part in PARTS:
        if text := text_of(part, folder):
            write_part(part.name, text, part.document, TARGET)
