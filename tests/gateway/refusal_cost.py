"""A crowd's refusals, before the event loop and in it: `python -m tests.gateway.refusal_cost`.

An engine that stands still, and 64 callers without the time to wait for it. In turns with bodies
that are refused again before the loop, and with a header for which each goes the whole way;
processor time of the gateway's processes a refusal, and refusals a second. wrk shares the cores.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil

from tests.engine.triton_server import stopped, wait_until
from tests.gateway.conftest import Server, running_session
from tests.gateway.test_leaving import SLOW, busy, figure
from tests.gateway.text_serving import running_text_serving

ROUNDS, CLIENTS, SECONDS = 5, 64, 4
WAYS = {"before the loop": {}, "the whole way": {"traceparent": "00-0-0-00"}}
LABELS = {"endpoint": "texts", "status": "503"}


def script(headers: dict[str, str]) -> str:
    rows = {"content-type": "application/json", **headers}
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in rows.items()]
    body = """wrk.body = '{"text": "tea", "timeout_ms": 100}'"""
    return "\n".join(['wrk.method = "POST"', body, *lines])


def processor_s(pid: int) -> float:
    root = psutil.Process(pid)
    processes = (root, *root.children(recursive=True))
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def load(server: Server, lua: Path) -> tuple[float, float]:
    """Microseconds of processor time a refusal, and refusals a second."""
    assert server.process is not None
    count, before = figure(server, "requests_total", **LABELS), processor_s(server.process.pid)
    url = f"http://127.0.0.1:{server.port}/serve/texts"
    told = subprocess.run(
        ["wrk", "-t1", f"-c{CLIENTS}", f"-d{SECONDS}", "-s", str(lua), url],
        capture_output=True, text=True, check=True, timeout=60 + SECONDS,
    ).stdout  # fmt: skip
    spent = processor_s(server.process.pid) - before
    rate = float(re.findall(r"Requests/sec:\s+([\d.]+)", told)[0])
    refused = figure(server, "requests_total", **LABELS) - count
    # All of them are refusals; wrk stops reading before the last ones come.
    assert refused >= 0.9 * rate * SECONDS
    return 1e6 * spent / refused, rate


def shown(values: Iterable[float]) -> str:
    rows = sorted(values)
    return f"{statistics.median(rows):.0f} ({rows[0]:.0f} to {rows[-1]:.0f})"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("session", "texts"):
            (Path(folder) / name).mkdir()
        with (
            running_session(Path(folder) / "session") as session,
            running_text_serving(session, Path(folder) / "texts") as serving,
        ):
            server = serving.gateway(TRANSFORMER_SERVING_CALLS_IN_FLIGHT="1").start()
            try:
                server.wait_for("/health/ready")
                wait_until(lambda: server.post("texts", {"text": "tea"}).status == 200, 60)
                with busy(server, SLOW), stopped(serving.triton):
                    measure(server, Path(folder))
            finally:
                server.stop()


def measure(server: Server, folder: Path) -> None:
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(ROUNDS):
        for way, headers in WAYS.items():
            lua = folder / "load.lua"
            lua.write_text(script(headers))
            found[way].append(load(server, lua))
            sys.stderr.write(f"round {number + 1}, {way}\n")
    for way, rows in found.items():
        times, rates = zip(*rows, strict=True)
        sys.stdout.write(f"{way}: {shown(times)} us a refusal, {shown(rates)} a second\n")


if __name__ == "__main__":
    main()
