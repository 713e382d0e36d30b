"""One gateway worker and several before an engine that sleeps: `python -m benchmarks workers`.

The engine takes none of the cores; what the load generator takes of the one that it can use stands
beside the figures.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.servers import texts
from benchmarks.servers.process import cpu_s
from benchmarks.servers.running import Running
from benchmarks.servers.site import OURS
from benchmarks.studies.overload import Opened, sleeping
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.bounds import spread
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import figures
from transformer_serving.desk.step_report import StepReport

# More than any number of workers does on few cores.
_TEXTS_A_SECOND = 20_000
_CLIENTS = 128
_TEXT = texts.json_text([texts.SEED])
# Of the time that its threads have: with more, a figure may be the sender's own end.
FULL_SENDER = 0.8


@dataclass(frozen=True)
class Workers:
    """Rounds over all counts in turns, on kept connections; raises Unusable."""

    counts: Sequence[int] = (1, 2, 4)
    rounds: int = 5
    seconds: float = 3.0

    def __call__(self, session: Opened, report: StepReport) -> dict[str, Any]:
        found: dict[int, list[dict[str, float]]] = {count: [] for count in self.counts}
        with contextlib.ExitStack() as stack:
            servers = {
                count: stack.enter_context(
                    sleeping(session.site, _TEXTS_A_SECOND, report, workers=count)
                )
                for count in self.counts
            }
            for number in range(self.rounds + 1):
                for count, server in servers.items():
                    row = measured(server, self.seconds)
                    # The first round warms up.
                    if number:
                        found[count].append(row)
                        report(f"{count} workers: {row}")
        medians = {str(count): _medians(rows) for count, rows in found.items()}
        for line in remarks(medians):
            report(line)
        return medians


def measured(server: Running, seconds: float) -> dict[str, float]:
    """Requests a second, and what the server had of all cores and this process of one, 0 to 1."""
    before = cpu_s(server.processes())
    address = Address.of(f"{server.base}/serve/{OURS}")
    run = generator.run(
        address, [generator.Payload("text", _TEXT)], generator.Closed(_CLIENTS, seconds)
    )
    spent = cpu_s(server.processes()) - before
    cores = run.elapsed_s * (os.cpu_count() or 1)
    return {
        "per_s": round(figures(run).goodput, 1),
        "server": round(spent / cores, 3),
        "generator": round(run.cpu_s / run.elapsed_s, 3),
    }


def remarks(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Of which counts of workers the figures are the sender's; `rows` are medians by count."""
    full = [count for count, row in rows.items() if row["generator"] > FULL_SENDER]
    if not full:
        return []
    return [
        f"before {', '.join(full)} workers what sends used more than {FULL_SENDER:.0%} of what it "
        "can: they may do more"
    ]


def _medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: spread([row[name] for row in rows]).median for name in rows[0]}
