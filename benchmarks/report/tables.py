"""Tables in Markdown from a stored run."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report import curve_points, overload_tables as overload_report
from benchmarks.report.markdown import table as table
from benchmarks.runs.loads import LEAST_TURNS
from benchmarks.runs.results import MOST_FAILED, Results, Row
from transformer_serving.contract.error_line import one_line
from transformer_serving.desk.bench import bounds
from transformer_serving.desk.bench.bounds import Spread

# The peer that the ratios are of, and the same before the engine that answers zeros.
OURS, OURS_NULL = "gateway", "null-gateway"
SHORT = " (short)"
_ABOUT_SHORT = (
    "short: of rounds of less than half the time that is said, or of fewer than "
    f"{LEAST_TURNS} requests of each client; too few to count on."
)
# README's five: what one engine does in three ways, and what a recipe of PyTorch does.
_SHORT = ("gateway", "stock", "raw", "queue", "gunicorn")


def performance_text(results: Results) -> str:
    """All tables of docs/performance.md."""
    parts = [results.provenance()]
    for load, title in results.loads.items():
        if results.measured(load):
            parts.append(f"### {title[0].upper()}{title[1:]}\n\n{load_tables(results, load)}")
    parts += [stage_table(results), cpu_table(results)]
    parts += [class_table(results, peer) for peer in ("gateway", "app") if results.classes(peer)]
    parts.append(_failed(results))
    return "\n\n".join(part for part in parts if part)


def everything_text(results: Results) -> str:
    """The part of docs/performance.md that `make bench-all` makes."""
    parts = [results.provenance()]
    for load, title in results.loads.items():
        if results.measured(load):
            parts.append(f"### All peers: {title}\n\n{load_tables(results, load)}")
    parts += [_overload(results), _two_endpoints(results)]
    for name, curve in results.values.get("curves", {}).items():
        if curve_points.drawn(curve):
            parts.append(f"![{curve['title']}](../benchmarks/results/plots/curve-{name}.png)")
        parts.append(curve_points.left_out(curve))
    parts.append(_failed(results))
    return "\n\n".join(part for part in parts if part)


def _overload(results: Results) -> str:
    found = results.values.get("overload")
    return overload_report.text(found, _renewed(results, "overload")) if found else ""


def _two_endpoints(results: Results) -> str:
    found = results.values.get("two_endpoints")
    if not found:
        return ""
    rows = [
        (name, _median(bounds.spread(found[key])))
        for key, name in (("one", "one, 64 clients"), ("two", "two, 32 clients each"))
    ]
    about = f"The same model twice, medians of the rounds.{_renewed(results, 'two_endpoints')}"
    return f"### Two endpoints, gateway\n\n{about}\n\n{table(('endpoints', 'texts/s'), rows)}"


def _renewed(results: Results, part: str) -> str:
    """When a part is of a later run than the rest."""
    found = results.values.get("renewed", {}).get(part)
    return f" Measured {found['date']}, commit {found['commit']}." if found else ""


def readme_text(results: Results) -> str:
    """The short table: five rows, and the date."""
    head = ("", "engine", "texts/s, `ab -c 128`", "one at a time, ms", "texts/s, 32 a request",
            "our gateway does at least")  # fmt: skip
    rows = []
    for row in results.measured("seed", computes=True):
        if row.name not in _SHORT:
            continue
        rows.append(
            (
                row.title,
                row.engine,
                _figure(results, row, "seed"),
                _figure(results, row, "single", "p50", digits=1),
                _figure(results, row, "batch"),
                _over(results, row, "seed"),
            )
        )
    return f"{_explained(table(head, rows))}\n\n{results.provenance()}"


def _figure(results: Results, row: Row, load: str, key: str = "texts", digits: int = 0) -> str:
    return _median(results.spread(row.name, load, key), digits) + marked(results, load, row.name)


def marked(results: Results, load: str, *peers: str) -> str:
    """What follows a figure of these peers where rounds of one of them were short."""
    return SHORT if any(results.short(peer, load) for peer in peers) else ""


def _explained(made: str) -> str:
    """A table, and below it what a mark in it means."""
    return f"{made}\n\n{_ABOUT_SHORT}" if SHORT in made else made


def load_tables(results: Results, load: str) -> str:
    """Who has a real engine, and below who answers without one."""
    parts = []
    engines, others = (results.measured(load, computes=one) for one in (True, False))
    if engines:
        parts.append(load_table(results, load, engines, OURS))
    if others:
        parts += ["Without an engine:", load_table(results, load, others, OURS_NULL)]
    return "\n\n".join(parts)


def load_table(results: Results, load: str, measured: Sequence[Row], ours: str) -> str:
    """Peers under one load: texts a second with their spread, the share of requests that failed,
    latencies, the ratio of `ours`."""
    head = (
        "", "engine", "texts/s", "spread", "failed", "p50 ms", "p99 ms", "ours does", "at least",
    )  # fmt: skip
    rows = []
    for row in measured:
        found = results.spread(row.name, load)
        assert found is not None
        ratio = None if row.name == ours else results.ratio(ours, row.name, load)
        short = marked(results, load, ours, row.name)
        rows.append(
            (
                row.title,
                row.engine,
                _figure(results, row, load),
                f"± {found.share:.0%}",
                _percent(results.failed_share(row.name, load)),
                _median(results.spread(row.name, load, "p50"), digits=1),
                _median(results.spread(row.name, load, "p99"), digits=1),
                f"{ratio.median:.2f} times{short}" if ratio else "",
                f"{ratio.lower:.2f} times{short}" if ratio else "",
            )
        )
    return _explained(table(head, rows))


def _percent(share: float) -> str:
    percent = 100 * share
    digits = f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
    return f"{digits} %" if share else "-"


def stage_table(results: Results) -> str:
    """Where a request's time goes inside preprocess, by the gateway's own figures."""
    rows = []
    for load, title in results.loads.items():
        for row in results.measured(load):
            stages = results.stages(row.name, load)
            if stages:
                calls = results.spread(row.name, load, "texts_a_call")
                times = [f"{stages[stage]:.2f}" if stage in stages else "-" for stage in _STAGES]
                name = f"{row.title} ({row.engine}){marked(results, load, row.name)}"
                rows.append((title, name, *times, _median(calls, 1)))
    if not rows:
        return ""
    head = ("load", "", *(f"{stage}, ms" for stage in _STAGES), "texts a call")
    made = _explained(table(head, rows))
    return f"### Stages of a request\n\nMeans of /metrics.\n\n{made}"


_STAGES = ("tokenize", "queue", "infer", "post")


def class_table(results: Results, peer: str) -> str:
    """Latency by length class, on the idle server and in the mixed load."""
    head = (
        "length",
        "answers",
        "p50 idle, ms",
        "p50 mixed",
        "p99 idle",
        "p99 mixed",
        "times (at most)",
    )
    rows = [
        (
            label,
            f"{row['answers']:.0f}",
            f"{row['idle_p50']:.1f}",
            f"{row['loaded_p50']:.1f}",
            f"{row['idle_p99']:.1f}",
            f"{row['loaded_p99']:.1f}",
            _times(bounds.spread(row["times"])),
        )
        for label, row in results.classes(peer).items()
    ]
    title = results.rows[peer].title
    return f"Mixed lengths by class, {title}{_padding(results, peer)}:\n\n{table(head, rows)}"


def _times(found: Spread) -> str:
    """The median, and the bound on the sure side."""
    return f"{found.median:.2f} ({found.upper:.2f})"


_PARTS = ("cpu_us", "triton_us", "engine_us", "load_us")


def cpu_table(results: Results) -> str:
    """Processor time of everything that runs for a request of one text."""
    rows = []
    for name, row in results.rows.items():
        seed = [results.spread(name, "seed", part) for part in _PARTS]
        single = results.spread(name, "single", "cpu_us")
        if any(seed):
            # The engine alone has no other part.
            whole = f"{sum(part.median for part in seed if part):.0f}"
            title = row.title + marked(results, "seed", name)
            rows.append((title, row.engine, *map(_median, seed), whole, _median(single)))
    if not rows:
        return ""
    head = (
        "",
        "engine",
        "server, µs",
        "Triton, µs",
        "engine, µs",
        "ab, µs",
        "together, µs",
        "server, one at a time, µs",
    )
    note = (
        "Of a request among 128 clients, and of one at a time. The server: the processes that take "
        "the requests; with PyTorch the engine is among them. Two cores have 2,000,000 µs a second."
        f" Measurements in which more than {MOST_FAILED:.0%} of the requests failed are left out."
    )
    return f"### Processor time of a request\n\n{note}\n\n{_explained(table(head, rows))}"


def _padding(results: Results, peer: str) -> str:
    found = results.spread(peer, "mixed", "padding")
    return f"; {found.median:.0%} of what went to the engine was padding" if found else ""


def _failed(results: Results) -> str:
    if not results.failed:
        return ""
    lines = [f"- {name}: {_one_line(error)}" for name, error in results.failed.items()]
    return "Could not be measured here:\n\n" + "\n".join(lines)


def _one_line(error: str) -> str:
    return one_line(error).replace("|", "\\|")


def _over(results: Results, row: Row, load: str) -> str:
    if row.name == OURS:
        return ""
    ratio = results.ratio(OURS, row.name, load)
    return f"{ratio.lower:.1f} times{marked(results, load, OURS, row.name)}" if ratio else "-"


def _median(found: Spread | None, digits: int = 0) -> str:
    return "-" if found is None else f"{found.median:.{digits}f}"
