"""A port of its own for a worker's figures, where TRANSFORMER_SERVING_METRICS_PORT names one."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from transformer_serving.contract.keys import VARIABLE as KEYS
from transformer_serving.contract.worker.process_figures import (
    WorkerProcesses,
    begun_files,
    figures_held,
    process_runs,
    workers_in,
)
from transformer_serving.contract.worker.process_wide import process_wide

log = logging.getLogger("transformer_serving.preprocess")

_AGAIN_S = 5.0


def open_metrics_port(host: str, port: int) -> None:
    """Show the figures at /metrics, once a worker, whichever endpoint starts first.

    Of several workers one gets the port; in the others a thread waits for that one's end. Nobody
    gets it where there are keys: it asks for none, and its figures name them and all endpoints.
    """
    if not port or find_spec("prometheus_client") is None:
        return
    # inf once somebody asked: bundles of other code in this process ask by the same.
    state: dict[str, float] = process_wide("metrics_port", lambda: {"again": 0.0})
    if state["again"] == inf:
        return
    state["again"] = inf
    if os.environ.get(KEYS):
        log.warning(
            "port %s stays closed, as %s is set and it asks for no key: the gateway has the same "
            "figures at /metrics, for a key of keys add NAME --metrics", port, KEYS,
        )  # fmt: skip
        return
    if _opened(host, port):
        return
    waiting = threading.Thread(target=_wait, args=(host, port), name="metrics-port")
    waiting.daemon = True
    try:
        waiting.start()
    except RuntimeError as error:
        state["again"] = 0.0
        log.warning("the figures' port is not tried until the next endpoint is built: %s", error)


def _wait(host: str, port: int) -> None:
    while not _opened(host, port):
        time.sleep(_AGAIN_S)


def _opened(host: str, port: int) -> bool:
    from prometheus_client import start_http_server

    try:
        start_http_server(port, host, _registry())
    except (OSError, RuntimeError):
        # Taken, the figures' folder has gone, or the process may have no more threads: no endpoint
        # fails for want of its figures.
        return False
    log.info("figures are at http://%s:%s/metrics", host, port)
    return True


def _registry() -> Any:
    """Raises OSError where the figures' folder is not there."""
    from prometheus_client import REGISTRY, CollectorRegistry

    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    from prometheus_client import ProcessCollector

    registry = CollectorRegistry()
    named = os.environ["PROMETHEUS_MULTIPROC_DIR"]
    folder = Path(named)
    if not named or not folder.is_dir():
        raise FileNotFoundError(folder)
    registry.register(_AllWorkers(folder))
    registry.register(WorkerProcesses(named, ProcessCollector))
    return registry


class _AllWorkers:
    """The figures of all workers together.

    Of one that was killed the counts stay, for they would fall; what it held when it was is no
    more, and nobody else takes it out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Any]:
        from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

        # A gateway in this process or another folds files of workers that ended.
        with figures_held(self._folder):
            for number in workers_in(self._folder):
                if not process_runs(number):
                    with contextlib.suppress(FileNotFoundError):
                        mark_process_dead(number, str(self._folder))
            while True:
                # Whoever tidies the folder does not ask; each time there are fewer.
                with contextlib.suppress(FileNotFoundError):
                    files = [str(path) for path in begun_files(self._folder)]
                    collected: Iterable[Any] = MultiProcessCollector.merge(files)
                    return collected
