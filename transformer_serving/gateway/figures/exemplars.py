"""The last traced request of each bucket of request_duration_seconds, of all workers.

prometheus_client keeps exemplars of one process alone, so each worker writes its own into the
figures' folder.

Tested by tests/gateway/test_exemplars.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left
from collections.abc import Collection
from pathlib import Path

import orjson
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from transformer_serving.contract.replacement import replace_file
from transformer_serving.contract.worker.deferred import Deferred
from transformer_serving.contract.worker.durations import BOUNDS
from transformer_serving.contract.worker.process_figures import process_runs
from transformer_serving.gateway.figures.folder import VARIABLE

# Scrapes are further apart, and a file costs as much as some requests.
_WITHIN_S = 2.0
_PREFIX = "exemplars_"
# The buckets' bounds, as they are labels.
LIMITS = (*map(floatToGoString, BOUNDS), "+Inf")
# Endpoint, status, code and upper bound, as they are labels.
Bucket = tuple[str, str, str, str]


class Exemplars:
    """Of one worker."""

    def __init__(self) -> None:
        self._rows: dict[Bucket, Exemplar] = {}
        self._soon = Deferred(self.write, _WITHIN_S).soon

    def note(self, endpoint: str, code: str, status: int, seconds: float, trace_id: str) -> None:
        if VARIABLE not in os.environ:
            return
        bucket = endpoint, str(status), code, LIMITS[bisect_left(BOUNDS, seconds)]
        self._rows[bucket] = Exemplar({"trace_id": trace_id}, seconds, time.time())
        self._soon()

    def forget(self, endpoints: Collection[str]) -> None:
        self._rows = {row: one for row, one in self._rows.items() if row[0] not in endpoints}

    def write(self) -> None:
        rows = [
            (bucket, row.labels, row.value, row.timestamp) for bucket, row in self._rows.items()
        ]
        file = Path(os.environ.get(VARIABLE, "")) / f"{_PREFIX}{os.getpid()}.json"
        # A cleaner of temporary files may have taken the folder.
        with contextlib.suppress(OSError):
            replace_file(file, orjson.dumps(rows))


def newest_exemplars(folder: Path) -> dict[Bucket, Exemplar]:
    """Of each bucket what the workers that run wrote last."""
    drop_ended(folder)
    found: dict[Bucket, Exemplar] = {}
    for file in folder.glob(f"{_PREFIX}*.json"):
        # One that ends takes its file along, and one that writes replaces it whole.
        with contextlib.suppress(OSError):
            for bucket, *row in orjson.loads(file.read_bytes()):
                exemplar = Exemplar(*row)
                other = found.setdefault(tuple(bucket), exemplar)
                if _at(other) < _at(exemplar):
                    found[tuple(bucket)] = exemplar
    return found


def drop_ended(folder: Path) -> None:
    """What workers that are gone wrote."""
    for file in folder.glob(f"{_PREFIX}*.json"):
        if not process_runs(file.stem.removeprefix(_PREFIX)):
            file.unlink(missing_ok=True)


def _at(exemplar: Exemplar) -> float:
    return float(exemplar.timestamp or 0)
