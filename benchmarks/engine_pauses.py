"""What a pause costs the engine: `python -m benchmarks.engine_pauses`, stored and put in the docs.

The engine alone, one short text a call, in a process of its own: call after call, after pauses, and
after a pause in which other memory is read, as a web server between two calls would. Caches and
cores that have been idle, and neither Triton nor a server, are what the rows differ by.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import documents, report
from benchmarks.bounds import Spread, spread
from benchmarks.machine import commit, machine, today, versions
from benchmarks.models import build_models
from benchmarks.raw_engine import call_inputs, load
from benchmarks.results import RESULTS, write_json
from benchmarks.site import BUILD
from engine.backends.executor import Failure

RESULT = RESULTS / "engine_pauses.json"
# Tokens of the seed's text, padded as our endpoint pads it.
_TOKENS = 24
# More than the second-level cache of a core.
_OTHER_MEMORY = np.zeros(1_000_000)


@dataclass(frozen=True)
class Pause:
    title: str
    seconds: float
    reads: bool = False

    def wait(self) -> None:
        if self.seconds:
            time.sleep(self.seconds)
        if self.reads:
            _OTHER_MEMORY.sum()


PAUSES = (
    Pause("none: call after call", 0.0),
    Pause("0.5 ms", 0.0005),
    Pause("2 ms", 0.002),
    Pause("2 ms, then 8 MB of other memory read", 0.002, reads=True),
    Pause("10 ms", 0.01),
)


def profile(folder: Path, calls: int, rounds: int) -> dict[str, Spread]:
    """Median milliseconds of a call by pause, over rounds in turns."""
    runtime = load(folder)
    inputs = call_inputs(runtime, 1, _TOKENS)

    def call() -> None:
        answer = runtime.run([inputs])[0]
        if isinstance(answer, Failure):
            raise SystemExit(answer.reason)

    _medians(call, calls)
    found = [_medians(call, calls) for _ in range(rounds)]
    return {pause.title: spread([one[pause.title] for one in found]) for pause in PAUSES}


def _medians(call: Callable[[], None], calls: int) -> dict[str, float]:
    return {pause.title: _median(call, pause, calls) for pause in PAUSES}


def _median(call: Callable[[], None], pause: Pause, calls: int) -> float:
    times = []
    for _ in range(calls):
        pause.wait()
        begun = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begun))
    return sorted(times)[calls // 2]


def table(values: Mapping[str, Any]) -> str:
    """The stored medians as Markdown, for docs/performance.md."""
    rows = [
        (title, f"{one['median']:.2f}", f"{one['lower']:.2f} to {one['upper']:.2f}")
        for title, one in values["milliseconds"].items()
    ]
    note = (
        f"{report.origin(values)}; openvino {values['versions']['openvino']}; "
        f"medians of {values['rounds']} rounds of {values['calls']} calls."
    )
    return f"{note}\n\n{report.table(('pause before a call', 'ms', 'bounds'), rows)}"


def write_table(path: Path) -> None:
    """The table into docs/performance.md, from the stored medians."""
    values = json.loads(path.read_text("utf-8"))
    report.write_section(documents.PERFORMANCE, "pauses", table(values))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    values: dict[str, Any] = {
        "date": today(), "commit": commit(), "machine": machine(), "versions": versions(),
        "calls": options.calls, "rounds": options.rounds,
    }  # fmt: skip
    models = build_models(BUILD / "models", lambda step: print(step, file=sys.stderr))  # noqa: T201
    found = profile(models.bundles["openvino"].folder / "model", options.calls, options.rounds)
    values["milliseconds"] = {title: asdict(one) for title, one in found.items()}
    write_json(RESULT, values)
    sys.stdout.write(table(values) + "\n")
    write_table(RESULT)


if __name__ == "__main__":
    main()
