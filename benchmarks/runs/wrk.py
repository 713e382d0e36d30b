"""wrk: clients that keep their connections.

ab asks with HTTP/1.0, whose connections uvicorn closes whatever is asked for: its -k would keep
those of some servers only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.runs.ab import ToolRun
from benchmarks.servers.process import Unusable
from transformer_serving.desk.bench.figures import percentile

_SCRIPT = Path(__file__).with_name("wrk.lua")
_TIMEOUT_S = 60


def available() -> bool:
    return shutil.which("wrk") is not None


def wrk(
    url: str, body: Path, *, seconds: float, clients: int, content_type: str, threads: int = 1
) -> ToolRun:
    """For `seconds`, rounded up to whole ones. Raises Unusable when it breaks off."""
    whole = max(1, -int(-seconds // 1))
    command = [
        "wrk", "-t", str(threads), "-c", str(clients), "-d", f"{whole}s",
        "--timeout", f"{_TIMEOUT_S}s", "-s", str(_SCRIPT), url, "--", str(body), content_type,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=whole + 2 * _TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"wrk did not end {2 * _TIMEOUT_S} s after its time") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Unusable(f"wrk: {lines[-1]}")
    return parse(done.stdout, clients)


def parse(output: str, clients: int) -> ToolRun:
    """The line that the script prints last."""
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    requests, microseconds = found["requests"], found["microseconds"]
    counts: dict[int, int] = dict(found["latencies"])
    if turns := requests // clients:
        counts = measured(counts, microseconds // turns)
    # What was answered after wrk's own limit is a request without a latency.
    times = [value / 1e3 for value in sorted(counts) for _ in range(counts[value])]
    if not times:
        raise Unusable("wrk had no answer")
    return ToolRun(
        rate=1e6 * requests / microseconds,
        mean=sum(times) / len(times),
        p50=percentile(times, 50.0), p90=percentile(times, 90.0), p99=percentile(times, 99.0),
        failed=found["failed"], requests=requests,
    )  # fmt: skip


def measured(corrected: Mapping[int, int], interval: int) -> dict[int, int]:
    """How often each latency was measured, of counts as wrk hands them to its script.

    Before that it has added for each one that is an interval shorter, one that is two and so on,
    while they are longer than an interval (stats_correct of wrk 4): what would have been sent
    meanwhile at a request an interval. A closed loop did not send it, and ab and our own generator,
    whose figures stand beside these, count nothing of the kind.
    """
    counts = dict(corrected)
    for latency in sorted(counts, reverse=True):
        for shorter in range(latency - interval, interval, -interval):
            # Of those below the shortest that was measured wrk shows none.
            if shorter in counts:
                counts[shorter] -= counts[latency]
    return counts
