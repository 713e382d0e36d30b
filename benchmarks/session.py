"""A whole run: open the site, start the servers, measure the rounds, store, draw, write tables."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine, results as stored
from benchmarks.ab import available
from benchmarks.loads import MAIN as MAIN_LOADS, Load
from benchmarks.peers import MAIN as MAIN_PEERS, Peer
from benchmarks.process import use
from benchmarks.results import Results
from benchmarks.rounds import measure_rounds, running_servers
from benchmarks.runners import Plan, Runner
from benchmarks.servers import Running
from benchmarks.site import BUILD, Report, Site, close_site, open_site
from transformer_serving.failure import Failure
from transformer_serving.versions.lock import read_lock


@dataclass
class Session:
    """An open site with its servers, ready to be measured."""

    site: Site
    servers: dict[str, Running]
    runner: Runner
    peers: Sequence[Peer]
    failed: dict[str, str]
    around: dict[str, Any] = field(default_factory=machine.machine)


@contextlib.contextmanager
def session(
    peers: Sequence[Peer], plan: Plan, report: Report, work: Path = BUILD / "run"
) -> Iterator[Session]:
    """Everything started and answering; everything stopped at the end.

    Raises Failure (exit code 2) where a tool is missing.
    """
    if not available():
        raise Failure("the benchmarks need ab: apt-get install apache2-utils", exit_code=2)
    around = machine.machine()
    null = any((peer.server or "").endswith("-null") for peer in peers)
    site = open_site(work, report, null=null)
    try:
        failed: dict[str, str] = {}
        with (
            running_servers(site, peers, failed, report) as servers,
            tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        ):
            bases = {name: server.base for name, server in servers.items()}
            runner = Runner(site.models, bases, Path(scratch), plan)
            there = [peer for peer in peers if peer.server is None or peer.server in servers]
            try:
                yield Session(site, servers, runner, there, failed, around)
            finally:
                runner.close()
    finally:
        close_site(site)


def bench(
    plan: Plan, report: Report, peers: Sequence[Peer] = MAIN_PEERS,
    loads: Sequence[Load] = MAIN_LOADS, *, kind: str = "bench", work: Path = BUILD / "run",
    more: Callable[[Session, Report], dict[str, Any]] | None = None,
) -> Results:  # fmt: skip
    """Measure the peers under the loads. `more` measures what only this kind of run has."""
    with session(peers, plan, report, work) as opened:
        outcome = measure_rounds(opened.runner, opened.peers, loads, report)
        outcome.failed = {**opened.failed, **outcome.failed}
        memory = {name: memory_mib(server) for name, server in opened.servers.items()}
        added = more(opened, report) if more else {}
        found = stored.make(
            kind, outcome, peers=peers, loads=loads, plan=plan, models=opened.site.models,
            memory=memory, triton=triton_version(), around=opened.around,
        )  # fmt: skip
    found.values |= added
    return found


def memory_mib(server: Running) -> float:
    """MiB resident of a server's processes now, after it has worked."""
    processes = [process for child in server.children for process in child.tree()]
    return round(use(processes).memory / 2**20, 1)


def triton_version() -> str:
    return read_lock().embedded.triton
