"""Interleaved rounds: every round measures every peer under every load, in turning order.

What disturbs the machine for a while thereby disturbs all peers alike, and ratios are taken inside
a round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.loads import Load
from benchmarks.peers import Peer
from benchmarks.process import Unusable
from benchmarks.runners import Figures, Runner
from benchmarks.servers import SERVERS, Running
from benchmarks.site import Report, Site
from transformer_serving.failure import Failure

# A peer that breaks off this often under one load is left out of it.
_PATIENCE = 2


@dataclass
class Outcome:
    """Figures by peer and load, one a round (None where it broke off), and why peers failed."""

    figures: dict[tuple[str, str], list[Figures | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def running_servers(
    site: Site, peers: Sequence[Peer], failed: dict[str, str], report: Report
) -> Iterator[dict[str, Running]]:
    """Start each server that the peers need; one that cannot run is named in `failed`."""
    with contextlib.ExitStack() as stack:
        started: dict[str, Running] = {}
        for name in dict.fromkeys(peer.server for peer in peers if peer.server):
            report(f"starting {name}")
            try:
                started[name] = SERVERS[name](site, report)
            except (Unusable, Failure) as error:
                failed |= {peer.name: str(error) for peer in peers if peer.server == name}
                report(f"{name} cannot be measured: {error}")
                continue
            stack.callback(started[name].stop)
        yield started


def measure_rounds(
    runner: Runner, peers: Sequence[Peer], loads: Sequence[Load], report: Callable[[str], None]
) -> Outcome:
    """All rounds."""
    outcome = Outcome()
    pairs = [(peer, load) for load in loads for peer in peers if load.takes(peer)]
    broken: dict[tuple[str, str], int] = {}
    for number in range(runner.plan.rounds):
        for load in loads:
            of_load = [peer for peer, other in pairs if other is load]
            turned = _turned(of_load, number)
            for peer in turned:
                key = (peer.name, load.name)
                found = None
                if broken.get(key, 0) < _PATIENCE:
                    report(f"round {number + 1} of {runner.plan.rounds}: {load.name}, {peer.name}")
                    try:
                        found = runner.measure(peer, load)
                    except Unusable as error:
                        broken[key] = broken.get(key, 0) + 1
                        outcome.failed[f"{peer.name} ({load.name})"] = str(error)
                outcome.figures.setdefault(key, []).append(found)
    return outcome


def _turned(peers: Sequence[Peer], number: int) -> list[Peer]:
    if not peers:
        return []
    at = number % len(peers)
    return [*peers[at:], *peers[:at]]
