"""ApacheBench, the seed's own load tool: one run, its figures."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers.process import Unusable

_LIMIT_S = 300
# ab 2.3 rounds the place of a percentile up past its last request when there are so few: its table
# then holds what lies behind them in memory. The 99th of so few is the longest one anyway.
_PERCENTILES_FROM = 50
# From here on the table's 50th and 90th are requests.
LEAST = 6


@dataclass(frozen=True)
class ToolRun:
    """What a load tool found: requests a second, milliseconds, requests without a 2xx answer."""

    rate: float
    mean: float
    p50: float
    p90: float
    p99: float
    failed: int
    requests: int


def available() -> bool:
    return shutil.which("ab") is not None


def ab(
    url: str, body: Path, *, requests: int, clients: int, scratch: Path, content_type: str
) -> ToolRun:
    """Run `ab -l`, with a new connection for each request. Raises Unusable when it breaks off.

    It speaks HTTP/1.0, whose connections some servers keep at its -k and others close.
    """
    table = scratch / "ab.csv"
    table.unlink(missing_ok=True)
    count = str(max(requests, clients, LEAST))
    command = [
        "ab", "-l", "-q", "-r", "-s", "60", "-n", count, "-c", str(clients),
        "-T", content_type, "-p", str(body), "-e", str(table), url,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"ab did not end within {_LIMIT_S} s") from None
    if done.returncode or not table.is_file():
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Unusable(f"ab: {lines[-1]}")
    return parse(done.stdout, table.read_text("utf-8"))


def parse(output: str, table: str) -> ToolRun:
    """The figures in ab's report and in its table of percentiles (-e)."""
    rows = {row[0]: float(row[1]) for row in list(csv.reader(table.splitlines()))[1:]}
    requests = int(_number(output, r"Complete requests:\s+(\d+)"))
    if requests < LEAST:
        raise Unusable(f"ab needs {LEAST} requests for its percentiles, it made {requests}")
    longest = _number(output, r"100%\s+(\d+) \(longest request\)")
    return ToolRun(
        rate=_number(output, r"Requests per second:\s+([\d.]+)"),
        mean=_number(output, r"Time per request:\s+([\d.]+) \[ms\] \(mean\)"),
        p50=rows["50"],
        p90=rows["90"],
        p99=rows["99"] if requests > _PERCENTILES_FROM else longest,
        failed=int(
            _number(output, r"Failed requests:\s+(\d+)")
            + _number(output, r"Non-2xx responses:\s+(\d+)", 0.0)
        ),
        requests=requests,
    )


def _number(output: str, pattern: str, default: float | None = None) -> float:
    found = re.search(pattern, output)
    if found is None:
        if default is None:
            raise Unusable(f"ab did not print {pattern.split(':')[0]}")
        return default
    return float(found.group(1))
