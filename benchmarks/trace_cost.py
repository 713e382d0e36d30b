"""What traces cost a short request, in processor time: `python -m benchmarks.trace_cost`.

As benchmarks.request_cost asks, with the gateway's part around it and a receiver of OTLP in another
process. The three ways take turns, and what is sent is counted with the requests that are traced.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import uvloop

from benchmarks.request_cost import BUNDLE, FIGURES, write_model
from benchmarks.runs.results import write_json
from benchmarks.servers import tritons
from benchmarks.servers.machine import machine, today, versions
from benchmarks.servers.site import BUILD
from benchmarks.servers.texts import SEED as TEXT

RESULT = BUILD / "trace_cost.json"
# What a request costs beside others, of which one at most is traced: calls are not shared by traces
# where one request of a hundred is.
_CALLERS = 16
_RATIO = 0.01
OFF, NONE, ONE = "off", "on, none traced", f"on, one of {_CALLERS} traced"
RECEIVER = """
import http.server
class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


class Site:
    """One endpoint, asked as the gateway asks it."""

    def __init__(self) -> None:
        from preprocess import Preprocess
        from transformer_serving.contract.worker.spans import open_queue
        from transformer_serving.contract.worker.tracing import Tracing
        from transformer_serving.gateway.short_way import RequestedEndpoint
        from transformer_serving.gateway.traffic import Traffic

        self.made: Any = Preprocess(
            (BUNDLE / "endpoint.json").read_bytes(), (BUNDLE / "tokenizer.json").read_bytes
        )
        self.made.model_endpoint = SimpleNamespace(serving_url="null", version=None)
        named: Any = SimpleNamespace(name_of=lambda target: "null")
        self.traffic = Traffic(named)
        self.target = RequestedEndpoint("null", None)
        self.queue = open_queue()
        assert self.queue is not None, "pip install transformer-serving[tracing]"
        never, always = (Tracing(self.queue, ratio, 0) for ratio in (0.0, 1.0))
        rest = _CALLERS - 1
        self.ways: dict[str, list[Any]] = {
            OFF: [None] * _CALLERS, NONE: [never] * _CALLERS, ONE: [always] + [never] * rest
        }  # fmt: skip

    async def ask(self, tracing: Any) -> None:
        from transformer_serving.gateway.exchange import Exchange
        from transformer_serving.gateway.request_trace import trace_of
        from transformer_serving.gateway.routes import Call

        scope: Any = {"method": "POST", "path": "/serve/null", "headers": [(b"host", b"null")]}
        nothing: Any = None
        exchange = Exchange.of(scope, nothing, nothing)
        exchange.enter(None)
        with self.traffic.visit(self.target, exchange.arrived) as visit:
            if tracing is not None:
                visit.trace = trace_of(tracing, exchange, Call(self.target, None))
            state: dict[str, Any] = {}
            outcome = await self.made.process(self.made.preprocess({"text": TEXT}, state), state)
            answer = self.made.postprocess(outcome, state)
            assert answer.status_code == 200, answer.body
            visit.answered(answer.code, answer.status_code)

    async def cost(self, way: str, count: int) -> float:
        """Microseconds of one request, until nothing of it is left to be sent."""
        asked = self.ways[way]
        self.made.tracing = asked[-1]
        began = time.process_time()
        for _ in range(count // _CALLERS):
            # A task each, as a server has it: what one sets in its context is its own.
            await asyncio.gather(*(asyncio.create_task(self.ask(one)) for one in asked))
        rows = self.queue._shared.rows  # type: ignore[union-attr]
        # Of each way a look or two: looking costs too.
        await asyncio.sleep(1.5)
        while rows:
            await asyncio.sleep(0.5)
        return (time.process_time() - began) / count * 1e6


async def measured(count: int, rounds: int) -> dict[str, list[float]]:
    site = Site()
    await site.cost(ONE, count // 4)
    found: dict[str, list[float]] = {way: [] for way in site.ways}
    for at in range(rounds):
        for way in site.ways if at % 2 else reversed(site.ways):
            found[way].append(await site.cost(way, count))
    return found


def run(count: int, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, receiver() as address:
        write_model(Path(folder))
        triton = tritons.start_triton("null Triton", Path(folder), null=True)
        try:
            os.environ |= {
                "TRANSFORMER_SERVING_TRITON_HTTP": triton.http,
                "TOKENIZERS_PARALLELISM": "false",
                "OTEL_EXPORTER_OTLP_ENDPOINT": address,
                # So that all that is measured is sent.
                "OTEL_BSP_MAX_QUEUE_SIZE": "1000000",
                "OTEL_BSP_SCHEDULE_DELAY": "1000",
            }
            return uvloop.run(measured(count, rounds))
        finally:
            triton.child.stop()


def told(found: dict[str, list[float]]) -> dict[str, float]:
    """What a request pays more than without traces: medians of the differences of each round."""
    none = median(on - off for on, off in zip(found[NONE], found[OFF], strict=True))
    traced = _CALLERS * median(on - off for on, off in zip(found[ONE], found[NONE], strict=True))
    return {
        "more, of one not traced": none,
        "more, of one traced": none + traced,
        f"more, at {_RATIO:.0%}": none + _RATIO * traced,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if FIGURES not in os.environ:
        # As in a worker: prometheus_client decides by it when it is imported.
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.trace_cost", *sys.argv[1:]]
            sys.exit(
                subprocess.run(command, env={**os.environ, FIGURES: folder}, check=False).returncode
            )
    before = {**machine(), **versions(), "date": today()}
    found = run(options.count, options.rounds)
    rows = [*((way, median(row)) for way, row in found.items()), *told(found).items()]
    lines = [f"{name:25} {value:8.2f}" for name, value in rows]
    sys.stdout.write("\n".join(["microseconds of processor time of one request", *lines, ""]))
    write_json(RESULT, {"machine": before, "microseconds": found, "told": dict(rows)})


if __name__ == "__main__":
    main()
