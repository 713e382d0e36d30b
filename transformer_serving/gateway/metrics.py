"""/metrics: the figures of all workers, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import prometheus_client as prometheus
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from transformer_serving.contract.replacement import replacing
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.gateway.asgi import Send
from transformer_serving.gateway.figures_folder import VARIABLE, process_runs

PATH = "/metrics"
MEDIA_TYPE = prometheus.CONTENT_TYPE_LATEST

_ENDED = "ended"


class Metrics:
    """What /metrics answers; counts requests by key, and those that the gateway refuses itself."""

    def __init__(self) -> None:
        self._refused = process_wide("gateway_refused", _refused)
        self._golden = process_wide("gateway_golden", _golden)
        self._round = process_wide("gateway_golden_round", _round)
        self._requests = process_wide("gateway_requests", _requests)
        self._of_key: dict[str, prometheus.Counter] = {}
        self._told: set[str] = set()

    def asked(self, key: str) -> None:
        """A request that came with this key, by its name."""
        counter = self._of_key.get(key)
        if counter is None:
            counter = self._of_key[key] = self._requests.labels(key)
        counter.inc()

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def goldens(self, well: Mapping[str, bool]) -> None:
        """A round of golden requests: by endpoint, whether it was answered as it should."""
        for endpoint in self._told - well.keys():
            # A worker's file keeps every endpoint that was ever in it: such a row is left out.
            self._golden.labels(endpoint).set(math.nan)
        for endpoint, is_well in well.items():
            self._golden.labels(endpoint).set(is_well)
        self._told |= well.keys()
        self._round.set_to_current_time()

    async def text(self) -> bytes:
        # Many workers make many files to read.
        return await asyncio.to_thread(_text)

    async def answer(self, send: Send) -> None:
        body = await self.text()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _refused() -> prometheus.Counter:
    return prometheus.Counter(
        "transformer_serving_gateway_refused", "Requests that the gateway refused.", ("code",)
    )


def _requests() -> prometheus.Counter:
    return prometheus.Counter(
        "transformer_serving_gateway_requests",
        "Requests by the name of the key that they came with, refused ones included.",
        ("key",),
    )


def _golden() -> prometheus.Gauge:
    return prometheus.Gauge(
        "transformer_serving_gateway_golden_ok",
        "Whether the endpoint's last golden request was answered as it should.",
        ("endpoint",),
        multiprocess_mode="liveall",
    )


def _round() -> prometheus.Gauge:
    return prometheus.Gauge(
        "transformer_serving_gateway_golden_round_timestamp_seconds",
        "When the last round of golden requests ended, in Unix time.",
        multiprocess_mode="liveall",
    )


def _text() -> bytes:
    folder = os.environ.get(VARIABLE)
    if not folder:
        return prometheus.generate_latest()
    registry = prometheus.CollectorRegistry()
    # A cleaner of temporary files may have taken it.
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    with Path(folder, "lock").open("w") as lock:
        # One worker folds and reads at a time, or a file could be counted twice.
        fcntl.flock(lock, fcntl.LOCK_EX)
        fold_ended(Path(folder))
        registry.register(_Begun(folder))
        return prometheus.generate_latest(registry)


class _Begun:
    """Collects what files hold that were begun: a worker's are empty for a moment when it starts,
    and stay so when it is killed in that moment.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[prometheus.Metric]:
        files = [str(path) for path in self._folder.glob("*.db") if _size(path)]
        found: Iterable[prometheus.Metric] = MultiProcessCollector.merge(files)
        for metric in found:
            metric.samples = [row for row in metric.samples if not math.isnan(row.value)]
            yield metric


def fold_ended(folder: Path) -> None:
    """Put the counts of workers that are gone into one file a kind, and drop their own files.

    Dropping alone would make counters fall, which Prometheus reads as a restart of all workers.
    """
    for path in [path for path in folder.glob("*.db") if _has_ended(path)]:
        kind = path.name.split("_")[0]
        if kind != "gauge" and _size(path):
            ended = folder / f"{kind}_{_ENDED}.db"
            _write(ended, _sums(one for one in (ended, path) if one.is_file()))
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    """0 also where somebody has just taken it."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _has_ended(path: Path) -> bool:
    worker = path.stem.rsplit("_", 1)[-1]
    if not worker.isdigit():
        return False
    return not process_runs(worker)


def _sums(paths: Iterable[Path]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for path in paths:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(path)):
            sums[key.rstrip()] += value
    return sums


def _write(path: Path, values: dict[str, float]) -> None:
    with replacing(path) as new:
        file = MmapedDict(str(new))
        for key, value in values.items():
            file.write_value(key, value, 0.0)
        file.close()
