"""One call of a Triton by each of its doors: `python -m benchmarks.triton_doors`.

HTTP and gRPC, over TCP and over a unix socket, in turn, one call after the other, before an engine
that answers zeros at once. Processor time is this process's own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import uvloop

from benchmarks.request_cost import BUNDLE, refuse_without_demo, write_model
from benchmarks.runs.results import write_json
from benchmarks.servers import tritons
from benchmarks.servers.machine import machine, today, versions
from benchmarks.servers.site import BUILD
from preprocess.tensors import Tensor
from preprocess.triton.client import TritonClient
from preprocess.triton.clients import TRANSPORTS
from transformer_serving.contract.endpoint import read_endpoint

RESULT = BUILD / "triton_doors.json"
_TOKENS = 32
_LIMIT_S = 600.0


async def cost(transport: str, address: str, count: int) -> tuple[float, float]:
    """Microseconds of one call: processor time, and as the clock has it."""
    endpoint = read_endpoint((BUNDLE / "endpoint.json").read_text("utf-8"))
    tensors = [
        Tensor(row.name, row.dtype, np.ones((1, _TOKENS), np.int32)) for row in endpoint.inputs
    ]
    client = TritonClient(address, TRANSPORTS[transport]())
    arguments = ("null", endpoint.bundle_version, tensors, endpoint.outputs)
    for _ in range(count // 4):
        await client.infer(*arguments, time.monotonic() + _LIMIT_S)
    spent, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        await client.infer(*arguments, time.monotonic() + _LIMIT_S)
    done = time.process_time() - spent, time.perf_counter() - began
    client.close()
    return done[0] / count * 1e6, done[1] / count * 1e6


def compare(count: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """By door, what each round found; the doors take turns, each round begins with another."""
    started = []
    # Short: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="doors-") as folder:
        try:
            for name, socket in (("TCP", False), ("socket", True)):
                work = Path(folder) / name
                write_model(work)
                one = tritons.start_triton(f"{name} Triton", work, null=True, socket=socket)
                started.append((name, one))
            doors = {
                f"{transport}, {name}": (transport, getattr(triton, transport))
                for name, triton in started
                for transport in TRANSPORTS
            }
            found: dict[str, list[tuple[float, float]]] = {door: [] for door in doors}
            names = list(doors)
            for number in range(rounds):
                at = number % len(names)
                for door in names[at:] + names[:at]:
                    found[door].append(uvloop.run(cost(*doors[door], count)))
        finally:
            for _, triton in started:
                triton.child.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    refuse_without_demo()
    before = {**machine(), **versions(), "date": today(), "load": os.getloadavg()[0]}
    found = compare(options.count, options.rounds)
    lines = ["door           processor µs, least and median    by the clock µs, least and median"]
    for door, rows in found.items():
        spent, took = zip(*rows, strict=True)
        lines.append(
            f"{door:14} {min(spent):8.0f} {median(spent):8.0f}      "
            f"{min(took):8.0f} {median(took):8.0f}"
        )
    sys.stdout.write("\n".join([*lines, ""]))
    write_json(RESULT, {"machine": before, "microseconds": found})


if __name__ == "__main__":
    main()
