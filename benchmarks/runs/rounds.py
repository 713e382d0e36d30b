"""Interleaved rounds: every round measures every peer under every load, in turning order.

What disturbs the machine for a while thereby disturbs all peers alike, and ratios are taken inside
a round.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.runs.fixed_loop import loop_ms
from benchmarks.runs.loads import Load
from benchmarks.runs.runners import Measurement, Runner
from benchmarks.servers.peers import Peer
from benchmarks.servers.process import Unusable
from benchmarks.servers.running import Running
from benchmarks.servers.site import Site
from benchmarks.servers.table import SERVERS
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport

# A peer that breaks off this often under one load is left out of it.
_PATIENCE = 2

Pair = tuple[str, str]


@dataclass
class Outcome:
    """Figures by peer and load, one a round (None where it broke off), and why peers failed.

    `loop_ms` are the fixed loop's milliseconds before each measurement, by round.
    """

    figures: dict[Pair, list[Measurement | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    broken: dict[Pair, int] = field(default_factory=dict)
    loop_ms: list[list[float]] = field(default_factory=list)


@contextlib.contextmanager
def running_servers(
    site: Site, peers: Sequence[Peer], failed: dict[str, str], report: StepReport
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
    runner: Runner, peers: Sequence[Peer], loads: Sequence[Load], report: StepReport,
    after_round: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:  # fmt: skip
    """All rounds. `after_round` is given what there is so far, for whoever wants to keep it."""
    outcome = Outcome()
    clock = _Clock(report)
    rounds = [_round(peers, loads, number) for number in range(runner.plan.rounds)]
    left = [pair for pairs in rounds for pair in pairs]
    for number, pairs in enumerate(rounds):
        if pairs:
            outcome.loop_ms.append([])
        for peer, load in pairs:
            outcome.loop_ms[-1].append(loop_ms())
            title = f"round {number + 1} of {len(rounds)}: {load.name}, {peer.name}"
            with clock.times(title, (peer.name, load.name), left):
                _measure(runner, peer, load, outcome)
            left.pop(0)
        after_round(outcome)
    return outcome


def _round(peers: Sequence[Peer], loads: Sequence[Load], number: int) -> list[tuple[Peer, Load]]:
    """Every pair of one round; who begins under a load changes from round to round."""
    pairs: list[tuple[Peer, Load]] = []
    for load in loads:
        takers = [peer for peer in peers if load.takes(peer)]
        at = number % len(takers) if takers else 0
        pairs += [(peer, load) for peer in [*takers[at:], *takers[:at]]]
    return pairs


def _measure(runner: Runner, peer: Peer, load: Load, outcome: Outcome) -> None:
    key = (peer.name, load.name)
    found = None
    if outcome.broken.get(key, 0) < _PATIENCE:
        try:
            found = runner.measure(peer, load)
        except Exception as error:
            # Whatever one peer or its tool does, the figures of the others must outlive it.
            outcome.broken[key] = outcome.broken.get(key, 0) + 1
            outcome.failed[f"{peer.name} ({load.name})"] = reason(error)
    outcome.figures.setdefault(key, []).append(found)


def reason(error: Exception) -> str:
    """Why something was not measured; an error that we did not expect is named with its type."""
    if isinstance(error, Unusable | Failure):
        return str(error)
    return f"{type(error).__name__}: {error}"


@dataclass
class _Clock:
    """Says what is measured, and from how long each pair took before, how long the rest will."""

    report: StepReport
    took: dict[Pair, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def times(self, title: str, key: Pair, left: Sequence[tuple[Peer, Load]]) -> Iterator[None]:
        self.report(f"{title}{self._rest(left)}")
        began = time.monotonic()
        yield
        self.took[key] = time.monotonic() - began

    def _rest(self, left: Sequence[tuple[Peer, Load]]) -> str:
        if not self.took:
            return ""
        usual = sum(self.took.values()) / len(self.took)
        rest = sum(self.took.get((peer.name, load.name), usual) for peer, load in left)
        return f"; about {minutes(rest)} left"


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
