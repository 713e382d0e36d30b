"""MiB of one gateway worker that serves one endpoint of ours and nothing else, and its growth.

The measured gateways also hold the example's AutoTokenizer, because all endpoints of a run are of
one serving service.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.runs.session import Session, memory_mib
from benchmarks.servers.running import Running
from benchmarks.servers.site import OURS, ours_arguments, service_of_one
from benchmarks.servers.table import gateway
from benchmarks.servers.texts import SEED, json_text
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import figures
from transformer_serving.desk.step_report import StepReport

_CLIENTS = 32
_PAUSE_S = 1.0


@dataclass(frozen=True)
class WorkerMemory:
    """Under load for so long; the slope is a straight line through the second half."""

    seconds: float

    def __call__(self, session: Session, report: StepReport) -> dict[str, Any]:
        report(f"memory of a worker with one endpoint, {self.seconds:.0f} s under load")
        site = session.site
        service = service_of_one(site, "one endpoint", ours_arguments(site))
        server = gateway(environment=service, name="one-endpoint")(site, report)
        try:
            return self._measured(server, session)
        finally:
            server.stop()

    def _measured(self, server: Running, session: Session) -> dict[str, Any]:
        address = Address.of(f"{server.base}/serve/{OURS}")
        short = generator.Payload("short", json_text([SEED]))
        generator.run(address, [short], generator.Closed(8, session.runner.plan.seconds))
        warm = memory_mib(server)
        runs: list[generator.Run] = []
        load = generator.Closed(_CLIENTS, self.seconds)
        loading = threading.Thread(
            target=lambda: runs.append(generator.run(address, session.runner.mixed(), load))
        )
        loading.start()
        samples = []
        began = time.monotonic()
        while loading.is_alive():
            samples.append(((time.monotonic() - began) / 60, memory_mib(server)))
            loading.join(_PAUSE_S)
        return {
            "warm_mib": warm,
            "end_mib": memory_mib(server),
            "slope_mib_a_minute": slope(samples),
            "minutes": self.seconds / 60,
            "statuses": figures(runs[0]).statuses if runs else {},
        }


def slope(samples: list[tuple[float, float]]) -> float | None:
    """Of (minutes, MiB), MiB a minute in the second half: by then the allocators have theirs."""
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return None
    return statistics.linear_regression([at for at, _ in half], [mib for _, mib in half]).slope
