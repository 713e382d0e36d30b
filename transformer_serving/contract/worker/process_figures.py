"""The folder of all workers' figures: its files, and the processor time, memory and files of each
worker, of which prometheus_client shows those of one process.

Tested by tests/gateway/test_metrics.py and tests/preprocess/test_metrics_port.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any


class WorkerProcesses:
    """The standard figures of processes, with the label `pid`: of all that have files in `folder`.

    A worker has one from its first figure on, and none that has ended is shown.
    """

    def __init__(self, folder: str, collector: Callable[..., Any]) -> None:
        """`collector` is prometheus_client's of one process."""
        self._folder = Path(folder)
        self._collector = collector

    def collect(self) -> Iterable[Any]:
        found: dict[str, Any] = {}
        for number in sorted(workers_in(self._folder), key=int):
            for figure in self._collector(pid=partial(str, number), registry=None).collect():
                kept = found.setdefault(figure.name, figure)
                samples = [
                    row._replace(labels={**row.labels, "pid": number}) for row in figure.samples
                ]
                kept.samples = samples if kept is figure else kept.samples + samples
        return found.values()


@contextlib.contextmanager
def figures_held(folder: Path) -> Iterator[None]:
    """One process folds or reads at a time, or a file could be counted twice."""
    # A cleaner of temporary files may have taken it.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def begun_files(folder: Path) -> list[Path]:
    """Those with something in them: a worker's are empty for a moment when it starts, and stay so
    when it is killed in that moment.
    """
    return [path for path in folder.glob("*.db") if has_begun(path)]


def has_begun(path: Path) -> bool:
    """False also where somebody has just taken it."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


def workers_in(folder: Path) -> set[str]:
    """The numbers of all processes that have or had figures there."""
    ends = {path.stem.rsplit("_", 1)[-1] for path in folder.glob("*.db")}
    return {end for end in ends if end.isdigit()}


def process_runs(number: str) -> bool:
    """Whether a process has this number; what is no number is nobody's."""
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
