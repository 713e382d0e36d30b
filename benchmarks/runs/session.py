"""A whole run: open the site, start the servers, measure the rounds, store, draw, write tables."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.runs import ab, results as stored, wrk
from benchmarks.runs.busy_cores import look, wait_until_idle
from benchmarks.runs.fixed_loop import loop_ms
from benchmarks.runs.loads import MAIN as MAIN_LOADS, Load
from benchmarks.runs.results import Results
from benchmarks.runs.rounds import Outcome, measure_rounds, reason, running_servers
from benchmarks.runs.runners import Plan, Runner
from benchmarks.servers import environments, machine
from benchmarks.servers.models import Models
from benchmarks.servers.peers import MAIN as MAIN_PEERS, Peer
from benchmarks.servers.process import tree, use
from benchmarks.servers.running import Running
from benchmarks.servers.site import BUILD, ROOT, Site, close_site, open_site
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.demo import CLASSIFIER, build_demo_models
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport
from transformer_serving.desk.versions.lock import read_lock


def _around() -> dict[str, Any]:
    """As machine.provenance() has it, and the versions of each environment that a peer runs in."""
    return {**machine.provenance(), "environments": {}}


@dataclass
class Session:
    """An open site with its servers, ready to be measured."""

    site: Site
    servers: dict[str, Running]
    runner: Runner
    peers: Sequence[Peer]
    failed: dict[str, str]
    around: dict[str, Any] = field(default_factory=_around)
    # Given a part's value so far, which stays also where the part fails later.
    so_far: Callable[[Any], None] = lambda value: None

    def time_loop(self) -> None:
        """To be called before each round of a part: the run's `machine` has the loop's times."""
        self.around["machine"].setdefault("loop_ms", []).append([loop_ms()])


# What only one kind of run measures: a value to be stored.
Part = Callable[[Session, StepReport], Any]
# Keeps what there is of a run that is not finished yet.
Keep = Callable[[Results], None]


@contextlib.contextmanager
def session(
    peers: Sequence[Peer], plan: Plan, report: StepReport, work: Path = BUILD / "run",
    models: Models | None = None, *, by_ab: bool = True,
) -> Iterator[Session]:  # fmt: skip
    """Everything started and answering; everything stopped at the end.

    Raises Failure (exit code 2) where a tool is missing; `by_ab` where loads are sent by ab, to
    other endpoints too.
    """
    if by_ab:
        check_tools()
    around = _around()
    null = any((peer.server or "").endswith("-null") for peer in peers)
    site = open_site(work, report, null=null, models=models, others=by_ab)
    try:
        failed: dict[str, str] = {}
        with (
            running_servers(site, peers, failed, report) as servers,
            tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        ):
            own = {server.environment for server in servers.values() if server.environment}
            around["environments"].update({name: environments.versions(name) for name in own})
            if plan.idle_within_s:
                looked = functools.partial(look, functools.partial(_named, site, servers))
                found = wait_until_idle(looked, report, plan.idle_within_s)
                around["machine"]["busy_before"] = found.stored()
            runner = Runner(site.models, servers, Path(scratch), plan)
            there = [peer for peer in peers if peer.server is None or peer.server in servers]
            try:
                yield Session(site, servers, runner, there, failed, around)
            finally:
                runner.close()
    finally:
        close_site(site)


def _named(site: Site, servers: Mapping[str, Running]) -> dict[str, list[psutil.Process]]:
    """All processes of the run by the names that it says; who has several has the last."""
    found = {"the benchmark itself": tree(os.getpid())}
    # A supervisor that does not answer is told by whoever needs its stack.
    with contextlib.suppress(Failure):
        found |= site.processes()
    return found | {name: server.processes() for name, server in servers.items()}


def check_tools() -> None:
    """Raises Failure (exit code 2) where what sends the loads is missing."""
    if not (ab.available() and wrk.available()):
        raise Failure(
            "the benchmarks need ab and wrk: apt-get install apache2-utils wrk", exit_code=2
        )


def bench(
    plan: Plan, report: StepReport, peers: Sequence[Peer] = MAIN_PEERS,
    loads: Sequence[Load] = MAIN_LOADS, *, kind: str = "bench", work: Path = BUILD / "run",
    parts: Mapping[str, Part] | None = None, keep: Keep = lambda results: None,
    models: Models | None = None,
) -> Results:  # fmt: skip
    """Measure the peers under the loads, then the parts.

    `keep` is given what there is after every round and every part: whatever ends the run early,
    that is not lost, nor is what a part has stored so far. One that fails is named with its error.
    Raises Failure where nothing was measured at all: that must not take a stored run's place.
    """
    by_ab = bool(loads or peers)
    with session(peers, plan, report, work, models, by_ab=by_ab) as opened:
        found = measure(opened, peers, loads, report, kind=kind, keep=keep)
        for name, part in (parts or {}).items():
            opened.so_far = functools.partial(_stored, found, name, keep)
            opened.time_loop()
            try:
                found.values[name] = part(opened, report)
            except Exception as error:
                # As with the peers: the other parts must outlive it.
                found.values["failed"][name] = reason(error)
                report(f"{name} cannot be measured: {reason(error)}")
            keep(found)
    if not _has_figures(found, parts or {}):
        reasons = [f"{name}: {why}" for name, why in found.failed.items()]
        raise Failure(
            f"nothing was measured, and what is stored stays as it is; {'; '.join(reasons)}"
        )
    return found


def _stored(found: Results, name: str, keep: Keep, value: Any) -> None:
    found.values[name] = value
    keep(found)


def _has_figures(found: Results, parts: Iterable[str]) -> bool:
    """Whether one of the parts, or one round of a load, could be measured."""
    rounds = (one for row in found.values["figures"] for one in row["rounds"])
    return any(name in found.values for name in parts) or any(one is not None for one in rounds)


def measure(
    opened: Session, peers: Sequence[Peer], loads: Sequence[Load], report: StepReport, *, kind: str,
    keep: Keep = lambda results: None,
) -> Results:  # fmt: skip
    """All rounds of an open session, as they are stored."""

    def results(outcome: Outcome) -> Results:
        outcome.failed = {**opened.failed, **outcome.failed}
        if outcome.loop_ms:
            # The parts' follow in the same list.
            opened.around["machine"]["loop_ms"] = outcome.loop_ms
        memory = {name: memory_mib(server) for name, server in opened.servers.items()}
        return stored.make(
            kind, outcome, peers=peers, loads=loads, plan=opened.runner.plan,
            models=opened.site.models, memory=memory, triton=triton_version(),
            around=opened.around,
        )  # fmt: skip

    outcome = measure_rounds(
        opened.runner, opened.peers, loads, report, lambda so_far: keep(results(so_far))
    )
    return results(outcome)


def memory_mib(server: Running) -> float:
    """MiB resident of a server's processes now, after it has worked."""
    return round(use(server.processes()).memory / 2**20, 1)


def demo_models(report: StepReport) -> Models:
    """The demo's own classifier, for measurements to which the model does not matter."""
    target = ROOT / "build" / "demo"
    build_demo_models(target, precision=None, report=report)
    return Models(target, {"openvino": open_bundle(target / CLASSIFIER)})


def triton_version() -> str:
    return read_lock().embedded.triton
