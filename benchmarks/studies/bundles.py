"""Bundles of one model beside each other in one stack: `python -m benchmarks bundles`.

Another precision, other lengths: what differs is the bundle alone. Each answers on an endpoint of
its own, behind the same gateway and Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs.loads import Load
from benchmarks.runs.session import Session
from benchmarks.servers.peers import OPENVINO, Peer
from benchmarks.servers.site import deploy, wait_for
from benchmarks.servers.table import gateway
from transformer_serving.desk.bench.bounds import Spread, ratios, spread
from transformer_serving.desk.step_report import StepReport

_SERVER = "bundles"


@dataclass(frozen=True)
class Bundles:
    """Rounds in turns; the first of `folders`, by endpoint, is what others are compared with."""

    folders: Mapping[str, Path]
    loads: Sequence[Load]
    rounds: int = 15

    def __call__(self, session: Session, report: StepReport) -> dict[str, Any]:
        for name, folder in self.folders.items():
            report(f"deploying {name}")
            deploy(session.site, folder, name)
        # Started when all are there: one that runs finds a new one by and by.
        first, *others = self.folders
        server = gateway(first=first, name=_SERVER)(session.site, report)
        session.servers[_SERVER] = server
        try:
            for name in others:
                wait_for(f"{server.base}/serve/{name}")
            return {load: _compared(rows) for load, rows in self._rounds(session, report).items()}
        finally:
            del session.servers[_SERVER]
            server.stop()

    def _rounds(self, session: Session, report: StepReport) -> dict[str, dict[str, list[float]]]:
        """Texts a second by load and endpoint; who is first goes round."""
        peers = [
            Peer(name, name, OPENVINO, "ours", _SERVER, f"/serve/{name}") for name in self.folders
        ]
        found: dict[str, dict[str, list[float]]] = {
            load.name: {peer.name: [] for peer in peers} for load in self.loads
        }
        for number in range(self.rounds):
            for load in self.loads:
                at = number % len(peers)
                for peer in (*peers[at:], *peers[:at]):
                    texts = session.runner.measure(peer, load)["texts"]
                    found[load.name][peer.name].append(texts)
                report(f"round {number + 1} of {self.rounds}: {load.name}")
        return found


def _compared(rows: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Texts a second of each, and how many times the first one's, inside each round."""
    first = next(iter(rows.values()))
    return {
        name: {
            "texts": _figures(spread(values)),
            "times": _figures(spread(ratios(values, first))),
        }
        for name, values in rows.items()
    }


def _figures(found: Spread) -> dict[str, float]:
    return {
        "median": round(found.median, 3),
        "lower": round(found.lower, 3),
        "upper": round(found.upper, 3),
    }
