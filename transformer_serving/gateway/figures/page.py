"""The text of /metrics: of all workers together, in Prometheus' own form.

Tested by tests/gateway/test_metrics_page.py and tests/gateway/test_figures_folder.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from prometheus_client.multiprocess import MultiProcessCollector

from transformer_serving.contract.replacement import replacing
from transformer_serving.contract.worker.process_figures import (
    WorkerProcesses,
    begun_files,
    figures_held,
    has_begun,
    process_runs,
)
from transformer_serving.gateway.figures.counted_rows import (
    COUNTER,
    HISTOGRAM,
    Known,
    counted_page,
    endpoints_of,
    is_shown,
    sums,
    without,
)
from transformer_serving.gateway.figures.exemplars import drop_ended, newest_exemplars
from transformer_serving.gateway.figures.file import FiguresFile
from transformer_serving.gateway.figures.folder import VARIABLE

Collected = Iterable[prometheus.Metric]
Write = Callable[[prometheus.CollectorRegistry], bytes]
# Of these endpoints those that are gone for good.
Departed = Callable[[Collection[str]], Collection[str]]

_ENDED = "ended"
# A file that its worker was killed at, or who folded, which one process does at a time.
_ASIDE = re.compile(rf"\.[a-z_]+_(\d+|{_ENDED})\.(?:db|json)\.[0-9a-f]{{16}}")
_ENDPOINT, _PID = "endpoint", "pid"


def page(
    known: Known = None, write: Write = prometheus.generate_latest,
    departed: Departed = lambda endpoints: (), *,
    is_openmetrics: bool = False, alone: bool = False,
) -> bytes:  # fmt: skip
    """As `write` writes what it is given; exemplars are in OpenMetrics alone.

    What ended workers counted of `departed` endpoints is forgotten. `alone`: rows of the known
    endpoints and no others, such as those of keys and workers.
    """
    folder = os.environ.get(VARIABLE)
    registry = prometheus.CollectorRegistry()
    if not folder:
        registry.register(_Shown(prometheus.REGISTRY.collect, known, alone=alone))
        return write(registry)
    with figures_held(Path(folder)):
        fold_ended(Path(folder))
        counters, histograms, others = _begun(Path(folder))
        registry.register(_Shown(lambda: MultiProcessCollector.merge(others), known, alone=alone))
        if not alone:
            registry.register(WorkerProcesses(folder, prometheus.ProcessCollector))
        exemplars = newest_exemplars(Path(folder)) if is_openmetrics else None
        numbers = sums(counters), sums(histograms)
        _forget_ended(Path(folder), departed(endpoints_of(*numbers)))
        counted = counted_page(*numbers, known, exemplars, alone=alone)
        return counted.encode() + write(registry)


def tidy() -> None:
    """What each page does before it is made, for where nobody asks for one: figures of workers that
    ended would fill the disk.
    """
    folder = Path(os.environ.get(VARIABLE, ""))
    if folder.name:
        drop_ended(folder)
        if any(map(_has_ended, folder.glob("*.db"))):
            with figures_held(folder):
                fold_ended(folder)


class _Shown:
    """Leaves out what a process still holds of endpoints that went: rows with their names, and
    values that are none.
    """

    def __init__(
        self, collected: Callable[[], Collected], known: Known, *, alone: bool = False
    ) -> None:
        self._collected = collected
        self._known = known
        self._alone = alone

    def collect(self) -> Iterator[prometheus.Metric]:
        for metric in self._collected():
            metric.samples = [
                row
                for row in metric.samples
                if not math.isnan(row.value)
                and not (self._alone and _PID in row.labels)
                and is_shown(row.labels.get(_ENDPOINT), self._known, alone=self._alone)
            ]
            if metric.samples or not self._alone:
                yield metric


def _begun(folder: Path) -> tuple[list[Path], list[Path], list[str]]:
    """Files of counters, of histograms and of all else."""
    files = begun_files(folder)
    counters, histograms = (
        [path for path in files if _kind(path) == kind] for kind in (COUNTER, HISTOGRAM)
    )
    counted = {*counters, *histograms}
    return counters, histograms, [str(path) for path in files if path not in counted]


def _kind(path: Path) -> str:
    return path.name.split("_")[0]


def fold_ended(folder: Path) -> None:
    """Put the counts of workers that are gone into one file a kind, and drop their own files.

    Dropping alone would make counters fall, which Prometheus reads as a restart of all workers.
    """
    for path in folder.iterdir():
        if (aside := _ASIDE.fullmatch(path.name)) and not process_runs(aside[1]):
            path.unlink(missing_ok=True)
    for path in [path for path in folder.glob("*.db") if _has_ended(path)]:
        kind = _kind(path)
        if kind != "gauge" and has_begun(path):
            ended = _ended(folder, kind)
            try:
                _write(ended, sums(one for one in (ended, path) if one.is_file()))
            except OSError:
                # Without room for that it stays a file of its own, which counts as well.
                continue
        path.unlink(missing_ok=True)


def _forget_ended(folder: Path, endpoints: Collection[str]) -> None:
    """Each worker forgets its own; what those that are gone counted, whoever makes a page."""
    for path in (_ended(folder, kind) for kind in (COUNTER, HISTOGRAM) if endpoints):
        if not has_begun(path):
            continue
        numbers = sums([path])
        kept = without(numbers, endpoints)
        if len(kept) < len(numbers):
            # Without room for a new one the old one stays.
            with contextlib.suppress(OSError):
                _write(path, kept)


def _ended(folder: Path, kind: str) -> Path:
    return folder / f"{kind}_{_ENDED}.db"


def _has_ended(path: Path) -> bool:
    worker = path.stem.rsplit("_", 1)[-1]
    if not worker.isdigit():
        return False
    return not process_runs(worker)


def _write(path: Path, values: Mapping[str, float]) -> None:
    with replacing(path) as new, contextlib.closing(FiguresFile(str(new))) as made:
        file: Any = made
        for key, value in values.items():
            file.write_value(key, value, 0.0)
