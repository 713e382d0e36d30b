"""What a scrape of the gateway's page costs: `python -m benchmarks scrape`.

As many processes as workers keep figures in one folder as workers do: of each endpoint all that a
text endpoint has, after answers of four kinds. The last of them answers scrapes in a loop of its
own, whose turns are watched: a turn that comes late is a request that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.servers.machine import ROOT
from transformer_serving.desk.bench.figures import percentile

FIGURES = "PROMETHEUS_MULTIPROC_DIR"
ENDPOINTS, WORKERS, SCRAPES = (1, 10, 50), 4, 30
_TURN_S = 0.001
_ANSWERS = (("ok", 200), ("invalid_field", 400), ("overloaded", 503), ("deadline", 504))
_READY = "ready\n"


def measured(endpoints: int, workers: int = WORKERS, scrapes: int = SCRAPES) -> dict[str, float]:
    """Milliseconds, bytes and series of one scrape, and by how much turns of the loop came late."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        others = [
            stack.enter_context(_process(folder, "keep", endpoints)) for _ in range(workers - 1)
        ]
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == _READY
        last = stack.enter_context(_process(folder, "answer", endpoints, scrapes))
        said, _ = last.communicate()
        for other in others:
            other.communicate()
        found: dict[str, float] = json.loads(said)
    return found


def _process(folder: str, *order: str | int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, *map(str, order)]
    # prometheus_client decides by the folder when it is imported.
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, FIGURES: folder}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def _keep(endpoints: int) -> list[str]:
    """Count as a worker does after some requests to each endpoint; their names."""
    import prometheus_client as prometheus

    from preprocess.queue.admission import Admission
    from preprocess.stats import STAGES, EndpointFigures
    from transformer_serving.contract.worker.durations import Durations
    from transformer_serving.gateway.figures.metrics import Metrics
    from transformer_serving.gateway.golden_rounds import GoldenResult

    names = [f"endpoint-{number}" for number in range(endpoints)]
    durations = Durations(prometheus)
    Admission(400_000, 2.0)
    for name in names:
        figures = EndpointFigures(name)
        for code, status in _ANSWERS:
            figures.request(status, 1, 20, dict.fromkeys(STAGES, 0.004))
            durations.took(name, code, status, 0.016)
        figures.call(1, 20, 12)
    durations.tell()
    results = {name: GoldenResult(name, "ok", "", 0.0, True, None, "1", "rerank") for name in names}
    asyncio.run(Metrics().goldens(results))
    return names


async def _answer(names: Sequence[str], scrapes: int) -> dict[str, float]:
    from transformer_serving.gateway.figures.metrics import Metrics

    metrics, late = Metrics(lambda: set(names)), list[float]()
    ended = False

    async def turn() -> None:
        while not ended:
            begun = time.perf_counter()
            await asyncio.sleep(_TURN_S)
            late.append(time.perf_counter() - begun - _TURN_S)

    turning = asyncio.create_task(turn())
    page, took, spent = b"", list[float](), list[float]()
    for _ in range(scrapes):
        begun, cpu = time.perf_counter(), time.process_time()
        page = await metrics.text()
        took.append(time.perf_counter() - begun)
        spent.append(time.process_time() - cpu)
    ended = True
    await turning
    late.sort()
    return {
        "ms": round(1000 * median(took), 1),
        "cpu_ms": round(1000 * median(spent), 1),
        "kilobytes": round(len(page) / 1000, 1),
        "series": sum(not line.startswith(b"#") for line in page.splitlines()),
        "late_ms_p99": round(1000 * percentile(late, 99.0), 1),
        "late_ms_most": round(1000 * late[-1], 1),
    }


def main(arguments: Sequence[str]) -> None:
    names = _keep(int(arguments[1]))
    if arguments[0] == "keep":
        sys.stdout.write(_READY)
        sys.stdout.flush()
        sys.stdin.read()
        return
    import uvloop

    sys.stdout.write(json.dumps(uvloop.run(_answer(names, int(arguments[2])))))


if __name__ == "__main__":
    main(sys.argv[1:])
