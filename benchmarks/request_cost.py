"""Our own processor time of one short request, part by part: `python -m benchmarks.request_cost`.

In this process, on the gateway's event loop, one request after the other, before a Triton whose
engine answers zeros at once. Processor time, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import uvloop

from benchmarks.dialect_cost import dialects
from benchmarks.runs.results import write_json
from benchmarks.servers import tritons
from benchmarks.servers.machine import ROOT, machine, today, versions
from benchmarks.servers.site import BUILD
from benchmarks.servers.texts import SEED as TEXT
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.engine.model_config import FILE_NAME, from_text, to_text, with_versions

BUNDLE = ROOT / "build" / "demo" / "transformer_model"
RESULT = BUILD / "request_cost.json"
FIGURES = "PROMETHEUS_MULTIPROC_DIR"
# What a request costs beside others; one alone comes back from every wait to cold caches.
_CALLERS = 16


def cost(work: Callable[[], Any], count: int) -> float:
    """Microseconds of processor time of one call."""
    began = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began) / count * 1e6


async def cost_of(work: Callable[[], Awaitable[Any]], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        await work()
    return (time.process_time() - began) / count * 1e6


async def parts(count: int) -> dict[str, float]:
    from preprocess import Preprocess
    from preprocess.passage import Passage
    from preprocess.queue.coalesce import Coalescer
    from preprocess.request import read_body
    from preprocess.rows import pad

    made = Preprocess(
        (BUNDLE / "endpoint.json").read_bytes(), (BUNDLE / "tokenizer.json").read_bytes
    )
    made.model_endpoint = SimpleNamespace(serving_url="null", version=None)
    body, endpoint = {"text": TEXT}, made.endpoint
    request = read_body(body, made.task, endpoint.limits)
    work = made.task.encode(request, made.tokenizer)
    length = next(size for size in endpoint.tokens.buckets if size >= len(work.encoded[0].ids))
    tensors = pad(work.encoded, length, endpoint.inputs, endpoint.tokens)
    zeros = [np.zeros((1, *output.dims), np.float32) for output in endpoint.outputs]

    async def at_once(inputs: Any, deadline: float) -> Any:
        return zeros

    engine = made.engine
    queue = Coalescer(endpoint, at_once, _admission(made), lambda: 2, engine.departures.figures)
    client, deadline = engine._client, time.monotonic() + 600

    async def whole() -> Any:
        state: dict[str, Any] = {}
        outcome = await made.process(made.preprocess(body, state), state)
        answer = made.postprocess(outcome, state)
        assert answer.status_code == 200, answer.body

    async def crowd() -> None:
        await asyncio.gather(*(whole() for _ in range(_CALLERS)))

    row = (await queue.infer(work.encoded, deadline, Passage(body))).result()

    def answer() -> Any:
        state: dict[str, Any] = {"work": work}
        made.begin(body, state)
        passage = state["passage"]
        passage.tokenized = passage.left = passage.answered = passage.arrived
        return made.postprocess(row, state)

    await cost_of(whole, count // 4)
    return {
        "request": cost(lambda: read_body(body, made.task, endpoint.limits), count),
        "tokens": cost(lambda: made.task.encode(request, made.tokenizer), count),
        "coalesce": await cost_of(
            lambda: queue.infer(work.encoded, deadline, Passage(body)), count
        ),
        "client": await cost_of(
            lambda: client.infer(
                "null", endpoint.bundle_version, tensors, endpoint.outputs, deadline
            ),
            count,
        ),
        "answer": cost(answer, count),
        "whole": await cost_of(whole, count),
        "whole, 16 callers": await cost_of(crowd, count // _CALLERS) / _CALLERS,
    }


def _admission(made: Any) -> Any:
    from preprocess.engine import admission

    return admission(made.settings.max_waiting_tokens, made.settings.max_wait_s)


def profile(count: int, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        triton = tritons.start_triton("null Triton", Path(folder), null=True)
        try:
            os.environ["TRANSFORMER_SERVING_TRITON_HTTP"] = triton.http
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            found: dict[str, list[float]] = {}
            for _ in range(rounds):
                for measured in (parts(count), dialects(BUNDLE.parent, count)):
                    for name, value in uvloop.run(measured).items():
                        found.setdefault(name, []).append(value)
        finally:
            triton.child.stop()
    return found


def write_model(work: Path) -> None:
    """The demo bundle's model as `null`, for a Triton whose engine answers zeros."""
    version = read_endpoint((BUNDLE / "endpoint.json").read_text("utf-8")).bundle_version
    folder = work / "models" / "null"
    (folder / str(version)).mkdir(parents=True)
    config = from_text((BUNDLE / "model" / FILE_NAME).read_text("utf-8"))
    (folder / FILE_NAME).write_text(to_text(with_versions(config, "null", [version])), "utf-8")


def refuse_without_demo() -> None:
    """Raises SystemExit where the demo's bundles are not built."""
    if not (BUNDLE / "endpoint.json").is_file():
        sys.exit(f"error: there is no bundle {BUNDLE.relative_to(ROOT)}; 'make up' builds it")


def begin_with_figures(module: str) -> None:
    """Run the module in a process that has a folder for figures, as a worker has, and end with its
    status; nothing where this one has: prometheus_client decides by it when it is imported."""
    if FIGURES in os.environ:
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        environment = {**os.environ, FIGURES: folder}
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    refuse_without_demo()
    begin_with_figures("benchmarks.request_cost")
    before = {**machine(), **versions(), "date": today()}
    found = profile(options.count, options.rounds)
    head = f"{'part':37} {'least':>7} {'median':>7}  (microseconds of processor time)"
    lines = [
        f"{name:37} {min(row):7.1f} {sorted(row)[len(row) // 2]:7.1f}"
        for name, row in found.items()
    ]
    sys.stdout.write("\n".join([head, *lines, ""]))
    write_json(RESULT, {"machine": before, "microseconds": found})


if __name__ == "__main__":
    main()
