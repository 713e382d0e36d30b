"""What traces cost a short request, in processor time: `python -m benchmarks.trace_cost`.

As benchmarks.request_cost asks, with the gateway's part around it and a receiver of OTLP in another
process. The three ways take turns, 16 requests at a time; sending is measured after them.
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
from itertools import permutations
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import uvloop

from benchmarks.request_cost import BUNDLE, begin_with_figures, refuse_without_demo, write_model
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
SENDING = "more, its spans sent"
# Fewer spans than a batch, which would be sent beside the requests: ten of each that is traced.
_TURNS = 42
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
        from transformer_serving.gateway.figures.traffic import Traffic
        from transformer_serving.gateway.short_way import RequestedEndpoint

        self.made: Any = Preprocess(
            (BUNDLE / "endpoint.json").read_bytes(), (BUNDLE / "tokenizer.json").read_bytes
        )
        self.made.model_endpoint = SimpleNamespace(serving_url="null", version=None)
        named: Any = SimpleNamespace(name_of=lambda target: "null")
        self.traffic = Traffic(named)
        self.target = RequestedEndpoint("null", None)
        self.queue = open_queue()
        assert self.queue is not None, "install requirements/dev.lock: make test"
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
        exchange, call = Exchange.of(scope, nothing, nothing), Call(self.target, None)
        exchange.enter(None)
        with self.traffic.visit(self.target, exchange.arrived) as visit:
            if tracing is not None:
                visit.trace = trace_of(tracing, exchange, call)
            state: dict[str, Any] = {}
            outcome = await self.made.process(self.made.preprocess({"text": TEXT}, state), state)
            answer = self.made.postprocess(outcome, state)
            assert answer.status_code == 200, answer.body
            visit.answered(answer.code, answer.status_code)

    async def cost(self, way: str) -> float:
        """Seconds of processor time of one turn: a request of each caller."""
        asked = self.ways[way]
        self.made.tracing = asked[-1]
        began = time.process_time()
        # A task each, as a server has it: what one sets in its context is its own.
        await asyncio.gather(*(asyncio.create_task(self.ask(one)) for one in asked))
        return time.process_time() - began

    async def sending(self) -> float:
        """Seconds of processor time in which what is left in the queue is sent."""
        shared: Any = self.queue._shared  # type: ignore[union-attr]
        assert 0 < len(shared.rows) < shared.batch, "a batch was sent beside the requests"
        began = time.process_time()
        shared.wake.set()
        while shared.rows:
            await asyncio.sleep(0.05)
        # The last batch is out of the queue and on its way.
        await asyncio.sleep(0.2)
        return time.process_time() - began


async def measured(turns: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of a request, a figure a round; `turns` of the ways take turns within one."""
    site = Site()
    found: dict[str, list[float]] = {way: [] for way in (*site.ways, SENDING)}
    # Each follows each as often: it matters whose caches one finds.
    orders = list(permutations(site.ways))
    for at in range(-1, rounds):
        seconds = dict.fromkeys(site.ways, 0.0)
        for turn in range(turns):
            for way in orders[turn % len(orders)]:
                seconds[way] += await site.cost(way)
        sending = await site.sending()
        if at < 0:
            # The first round warms what the others meet.
            continue
        for way, spent in seconds.items():
            found[way].append(spent / turns / _CALLERS * 1e6)
        found[SENDING].append(sending / turns * 1e6)
    return found


def run(turns: int, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, receiver() as address:
        write_model(Path(folder))
        triton = tritons.start_triton("null Triton", Path(folder), null=True)
        try:
            os.environ |= {
                "TRANSFORMER_SERVING_TRITON_HTTP": triton.http,
                "TOKENIZERS_PARALLELISM": "false",
                "OTEL_EXPORTER_OTLP_ENDPOINT": address,
                # Sent when it is asked for, so that it is counted once and beside no request.
                "OTEL_BSP_SCHEDULE_DELAY": "600000",
            }
            return uvloop.run(measured(turns, rounds))
        finally:
            triton.child.stop()


def told(found: dict[str, list[float]]) -> dict[str, float]:
    """What a request pays more than without traces: medians of the differences of each round."""
    none = median(on - off for on, off in zip(found[NONE], found[OFF], strict=True))
    traced = _CALLERS * median(on - off for on, off in zip(found[ONE], found[NONE], strict=True))
    sending = median(found[SENDING])
    return {
        "more, of one not traced": none,
        "more, of one traced": none + traced,
        SENDING: sending,
        f"more, at {_RATIO:.0%}": none + _RATIO * (traced + sending),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    refuse_without_demo()
    begin_with_figures("benchmarks.trace_cost")
    before = {**machine(), **versions(), "date": today()}
    found = run(_TURNS, options.rounds)
    rows = [*((way, median(found[way])) for way in (OFF, NONE, ONE)), *told(found).items()]
    lines = [f"{name:25} {value:8.2f}" for name, value in rows]
    sys.stdout.write("\n".join(["microseconds of processor time of one request", *lines, ""]))
    write_json(RESULT, {"machine": before, "microseconds": found, "told": dict(rows)})


if __name__ == "__main__":
    main()
