"""What `python -m benchmarks overload` found, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.report.markdown import table
from benchmarks.runs.results import Results

_HEAD = (
    "engine", "deadline", "offered/s", "capacity/s", "answered/s, least window", "of capacity",
    "wanted", "p50 of the answered, ms", "p99, ms", "503", "504", "503 after, ms (p99)",
    "done after the load, s", "one alone after it, ms", "a refusal, µs", "generator, of a core",
)  # fmt: skip


def alone_text(results: Results) -> str:
    """The part of docs/performance.md that `python -m benchmarks overload` makes."""
    found = results.values.get("overload")
    # Each of its loads is measured once.
    about = f"{results.surroundings()}."
    return f"{about}\n\n{text(found, '')}" if found else about


def text(found: Mapping[str, Any], renewed: str) -> str:
    """All tables; `renewed` says when they are of a later run than the rest."""
    if "rows" not in found:
        return ""
    about = (
        f"{found['times']:g} times the capacity for {found['seconds']:g} s, one text a request at "
        f"random moments. Windows are of 5 s, without the first.{renewed}"
    )
    parts = [
        f"### {found['times']:g} times more than it can do, gateway",
        about,
        table(_HEAD, [_row(row) for row in found["rows"]]),
    ]
    if leaving := found.get("leaving"):
        parts += [_leaving(leaving)]
    if abandoned := found.get("abandoned"):
        parts += [_abandoned(abandoned)]
    return "\n\n".join(parts)


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    counts = row["statuses"]
    return (
        row["engine"],
        row["deadline"],
        f"{row['offered']:.0f}",
        f"{row['capacity']:.0f}",
        f"{row['least'] * row['capacity']:.0f}",
        f"{row['least']:.2f}",
        f"≥ {row['wanted']:.2f}",
        *(_ms(row[key]) for key in ("p50", "p99")),
        str(counts.get("503", 0)),
        str(counts.get("504", 0)),
        _ms(row["refused_p99"]),
        f"{max(0.0, row['drained_s']):.1f}",
        _ms(row["after_ms"]),
        f"{row['refusal_us']:.0f}",
        f"{row['generator_cpu']:.2f}",
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _leaving(found: Mapping[str, Any]) -> str:
    rows = [(name, row) for name, row in found.items() if isinstance(row, Mapping)]
    alone = found["nobody"]["texts"]
    lines = [
        (name, f"{row['texts']:.0f}", f"{row['texts'] / alone:.2f}", str(row["refused"]))
        for name, row in rows
    ]
    head = ("who leaves after 20 ms", "texts/s of the 32 that stay", "of those alone", "their 503")
    about = (
        "32 callers that wait for their answers beside 32 that leave after 20 ms; the engine "
        f"sleeps, {found['capacity']:.0f} texts/s."
    )
    return f"{about}\n\n{table(head, lines)}"


def _abandoned(rows: Any) -> str:
    lines = [
        (
            f"{row['times']:g}",
            f"{row['seconds']:g}",
            str(row["statuses"].get("200", 0)),
            str(row["statuses"].get("503", 0)),
            str(row["statuses"].get("no answer", 0)),
            "-" if row["next_s"] is None else f"{row['next_s']:.2f}",
        )
        for row in rows
    ]
    head = ("times capacity", "for, s", "200", "503", "gave up", "the next caller waits, s")
    return f"Callers that give up after 1 s.\n\n{table(head, lines)}"
