"""What an endpoint's callers feel while another endpoint of the same worker gets 1 MB batches."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.runs.session import Session
from benchmarks.servers.process import Unusable
from benchmarks.servers.site import OURS, OURS_ORT
from benchmarks.servers.texts import SEED, json_text
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import figures
from transformer_serving.desk.deploy.golden import ask
from transformer_serving.desk.step_report import StepReport

_CLIENTS = 8
_PATIENCE_S = 120.0
# 100 texts of 10 KB, cut by the model's own length. On two cores an engine computes for long at it.
_BIG = {
    "text": ["tea and cups " * 770] * 100,
    "truncate": True,
    "timeout_ms": int(1e3 * _PATIENCE_S),
}


@dataclass(frozen=True)
class Neighbour:
    """`other` is the endpoint that the batches go to; both are asked on each server in turns."""

    other: str = OURS_ORT
    servers: tuple[str, ...] = ("gateway-null", "gateway")

    def __call__(self, session: Session, report: StepReport) -> dict[str, list[dict[str, float]]]:
        """By server a row a round: milliseconds at p50 and p99, alone and beside the batches."""
        found: dict[str, list[dict[str, float]]] = {}
        plan = session.runner.plan
        for name in self.servers:
            base = session.servers[name].base
            reply = ask(f"{base}/serve/{self.other}", _BIG, _PATIENCE_S)
            if reply.status != 200:
                raise Unusable(f"a batch of 1 MB to {self.other} got {reply.status}")
            found[name] = []
            for number in range(plan.rounds):
                report(f"{name} beside batches of 1 MB, round {number + 1} of {plan.rounds}")
                found[name].append(self._round(base, session, first=bool(number % 2)))
        return found

    def _round(self, base: str, session: Session, *, first: bool) -> dict[str, float]:
        row: dict[str, float] = {}
        for crowded in (first, not first):
            with self._batches(base, session) if crowded else contextlib.nullcontext():
                row |= _asked(base, session.runner.plan.seconds, "beside" if crowded else "alone")
        return row

    @contextlib.contextmanager
    def _batches(self, base: str, session: Session) -> Iterator[None]:
        """One caller of big batches, in a process of its own: its JSON is not the callers' time."""
        body = session.runner.scratch / "big.body"
        body.write_bytes(json.dumps(_BIG).encode())
        command = [
            "ab", "-q", "-k", "-l", "-c", "1", "-t", "600", "-n", "1000000", "-s", "120",
            "-T", "application/json", "-p", str(body), f"{base}/serve/{self.other}",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
            if process.poll() is not None:
                raise Unusable(f"ab ended with {process.returncode} while it sent batches of 1 MB")
        finally:
            process.kill()
            process.wait()


def _asked(base: str, seconds: float, label: str) -> dict[str, Any]:
    payload = generator.Payload("text", json_text([SEED]))
    run = generator.run(
        Address.of(f"{base}/serve/{OURS}"), [payload], generator.Closed(_CLIENTS, seconds)
    )
    latency = figures(run).latency
    if latency is None:
        raise Unusable(f"{OURS} answered nothing with 200")
    return {f"{label}_p50": latency.p50, f"{label}_p99": latency.p99}
