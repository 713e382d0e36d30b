"""The table of budgets, and what starts, memory and neighbours cost, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.report.budgets import ALL, BENCH, PAUSE_S, STARTS, judge
from benchmarks.report.tables import table
from benchmarks.runs.results import Results
from transformer_serving.desk.bench import bounds

COMMANDS = {BENCH: "make bench", STARTS: "make budgets", ALL: "make bench-all"}


def budgets_text(runs: Mapping[str, Results]) -> str:
    """Every budget with its verdict, and the tables of the run of starts."""
    parts = [
        f"`{COMMANDS[kind]}`: {results.provenance()}" for kind, results in sorted(runs.items())
    ]
    parts.append(budget_table(runs))
    if STARTS in runs:
        parts += [_cold_starts(runs[STARTS]), _neighbours(runs[STARTS])]
        failed = runs[STARTS].failed
        parts += [f"Could not be measured here: {name}: {why}" for name, why in failed.items()]
    return "\n\n".join(part for part in parts if part)


def budget_table(runs: Mapping[str, Results]) -> str:
    head = ("budget", "wanted", "median", "bound", "", "from")
    rows = []
    for verdict in judge(runs):
        budget, found = verdict.budget, verdict.found
        wanted = f"{'≥' if budget.at_least else '≤'} {budget.wanted:g} {budget.unit}"
        figures = (f"{found.median:.2f}", f"{budget.bound(found):.2f}") if found else ("-", "-")
        command = f"`{COMMANDS[budget.kind]}`"
        rows.append((budget.text, wanted, *figures, verdict.word, command))
    return table(head, rows)


def _median(values: list[float], digits: int = 1) -> str:
    return f"{bounds.spread(values).median:.{digits}f}"


def _cold_starts(results: Results) -> str:
    found: dict[str, list[dict[str, float]]] = results.values.get("cold_start") or {}
    rows = [
        (
            way,
            _median([row["first_answer_s"] for row in rounds], 2),
            _median([row["first_ms"] for row in rounds]),
            _median([row["later_ms"] for row in rounds]),
        )
        for way, rounds in found.items()
    ]
    head = ("set-up, endpoint", "first answer after, s", "first answer, ms", "the next five, ms")
    note = (
        f"Each of the six requests comes after a pause of {PAUSE_S:g} s, which does not count: one "
        "after a pause takes longer than one of a series, whichever it is."
    )
    return f"### Cold start\n\n{note}\n\n{table(head, rows)}" if rows else ""


def _neighbours(results: Results) -> str:
    found: dict[str, list[dict[str, Any]]] = results.values.get("neighbour") or {}
    names = {"gateway-null": "none (zeros)", "gateway": "real"}
    rows = []
    for server, rounds in found.items():
        columns = [_median([row[key] for row in rounds]) for key in _NEIGHBOUR]
        times = bounds.spread([row["beside_p99"] / row["alone_p99"] for row in rounds])
        rows.append((names[server], *columns, f"{times.median:.1f} ({times.upper:.1f})"))
    head = ("engines", "p50 alone, ms", "p50 beside", "p99 alone", "p99 beside", "times (at most)")
    title = (
        "### Beside another endpoint's batches of 1 MB\n\n8 clients of one endpoint, one text a "
        "request, behind a gateway of one worker. One more client sends 100 texts of 10 KB a "
        "request to another endpoint there."
    )
    return f"{title}\n\n{table(head, rows)}" if rows else ""


_NEIGHBOUR = ("alone_p50", "beside_p50", "alone_p99", "beside_p99")
