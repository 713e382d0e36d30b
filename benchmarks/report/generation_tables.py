"""What `python -m benchmarks generation` found, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.report.markdown import table
from benchmarks.runs import stamp
from benchmarks.runs.results import Results
from benchmarks.servers.language_models import (
    NEW_TOKENS,
    PRECISIONS,
    PROMPT_TOKENS,
    RECIPE,
    SIZES,
    STREAMS,
)
from transformer_serving.contract.error_line import one_line
from transformer_serving.desk.bench import bounds

# What was reached by hand on 2026-11-21, by streams: the recipe's tokens a second that many times.
_WANTED = {
    "fp32": {1: 0.9, 8: 4.5, 32: 10.0},
    "bf16": {1: 1.6, 8: 11.0, 32: 20.0},
    "int8": {1: 2.5, 8: 9.5, 32: 19.0},
}
_OF_ALONE = {8: 0.8, 32: 0.7}
_HEAD = (
    "ours", "streams", "tokens/s", "the recipe's", "times the recipe's", "wanted",
    "of the engine alone", "wanted", "first token, ms (p50 / p99)", "engine alone, ms",
    "between events, ms (p50 / p99)",
)  # fmt: skip
# What each size keeps of the run that measured it; older ones have stored no environments.
_RUN = ("date", "commit", "machine", "versions", "environments", "triton", "plan")


def joined(found: Results, stored: Results | None) -> Results:
    """A run beside the stored ones, each with its own date.

    It takes the place of what was stored of the same size on such a processor: what one without
    bf16 found says nothing of one that has it.
    """
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    for run in (found,) if stored is None else (stored, found):
        own = {name: run.values[name] for name in _RUN if name in run.values}
        for name, size in run.values.get("generation", {}).items():
            for one in size if isinstance(size, list) else [{"run": own, **size}]:
                kept[name, stamp.processor(one["run"]["machine"])] = one
    if not kept:
        return found
    sizes = {
        size.name: [one for (name, _), one in sorted(kept.items()) if name == size.name]
        for size in SIZES
    }
    return Results(
        {**found.values, "generation": {name: runs for name, runs in sizes.items() if runs}}
    )


def text(results: Results) -> str:
    """The part of docs/performance.md."""
    found = results.values.get("generation")
    if not found:
        return results.provenance()
    about = (
        f"Random weights, {PROMPT_TOKENS} tokens in, {NEW_TOKENS} out, greedy, no prefix "
        "cache; each caller asks again as soon as its answer ended. The recipe is FastAPI with "
        "transformers' generate in fp32 and one worker; ours streams through the gateway. The "
        "engine alone runs after all of them, in no round of theirs: its share is of the medians, "
        "and has no bounds."
    )
    parts = [about]
    for runs in found.values():
        parts.append(f"### {runs[0]['title']}")
        for one in runs:
            rows = [_row(one["loads"], *which) for which in product(PRECISIONS, STREAMS)]
            held = ", ".join(f"{name} {mib:.0f}" for name, mib in one["memory_mib"].items())
            parts += [
                Results({**results.values, "environments": {}, **one["run"]}).provenance(),
                table(_HEAD, rows),
                f"MiB resident of the model's process afterwards: {held}.",
                *(f"Could not be measured here: {name}: {one_line(error)}"
                  for name, error in one.get("failed", {}).items()),
            ]  # fmt: skip
    return "\n\n".join(parts)


def _row(loads: Mapping[str, Any], precision: str, count: int) -> tuple[str, ...]:
    own, recipe = loads[f"{precision} {count}"], loads[f"{RECIPE} {count}"]
    alone = loads.get(f"alone {precision} {count}")
    of_alone = _OF_ALONE.get(count)
    return (
        precision,
        str(count),
        _median(own["tokens"]),
        _median(recipe["tokens"]),
        _ratio(own["tokens"], recipe["tokens"]),
        f"≥ {_WANTED[precision][count]:g}",
        _of_medians(own["tokens"], alone["tokens"]) if alone else "-",
        "-" if of_alone is None else f"≥ {of_alone:g}",
        f"{_median(own['first_p50'])} / {_median(own['first_p99'])}",
        _median(alone["first_p50"]) if alone else "-",
        f"{_median(own['gap_p50'])} / {_median(own['gap_p99'])}",
    )


def _median(values: Sequence[float]) -> str:
    return f"{bounds.spread(values).median:.0f}"


def _of_medians(over: Sequence[float], under: Sequence[float]) -> str:
    """Of rounds that were not measured together."""
    return f"{bounds.spread(over).median / bounds.spread(under).median:.2f}"


def _ratio(over: Sequence[float], under: Sequence[float]) -> str:
    by_round = [first / second for first, second in zip(over, under, strict=True)]
    found = bounds.spread(by_round)
    return f"{found.median:.2f} ({found.lower:.2f} to {found.upper:.2f})"
