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
from benchmarks.models import Models
from benchmarks.peers import MAIN as MAIN_PEERS, Peer
from benchmarks.process import use
from benchmarks.results import Results
from benchmarks.rounds import measure_rounds, running_servers
from benchmarks.runners import Plan, Runner
from benchmarks.servers import Running, gateway
from benchmarks.site import BUILD, OURS, Report, Site, close_site, open_site
from benchmarks.texts import SEED, json_text
from transformer_serving.bench import load as generator
from transformer_serving.bench.connection import Address
from transformer_serving.clearml_cli import ClearmlCli
from transformer_serving.deploy import add_arguments
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
    peers: Sequence[Peer], plan: Plan, report: Report, work: Path = BUILD / "run",
    models: Models | None = None,
) -> Iterator[Session]:  # fmt: skip
    """Everything started and answering; everything stopped at the end.

    Raises Failure (exit code 2) where a tool is missing.
    """
    if not available():
        raise Failure("the benchmarks need ab: apt-get install apache2-utils", exit_code=2)
    around = machine.machine()
    null = any((peer.server or "").endswith("-null") for peer in peers)
    site = open_site(work, report, null=null, models=models)
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
        found = measure(opened, peers, loads, report, kind=kind)
        if more:
            found.values |= more(opened, report)
    return found


def measure(
    opened: Session, peers: Sequence[Peer], loads: Sequence[Load], report: Report, *, kind: str
) -> Results:
    """All rounds of an open session, as they are stored."""
    outcome = measure_rounds(opened.runner, opened.peers, loads, report)
    outcome.failed = {**opened.failed, **outcome.failed}
    memory = {name: memory_mib(server) for name, server in opened.servers.items()}
    memory["worker"] = worker_mib(opened, report)
    return stored.make(
        kind, outcome, peers=peers, loads=loads, plan=opened.runner.plan,
        models=opened.site.models, memory=memory, triton=triton_version(), around=opened.around,
    )  # fmt: skip


def worker_mib(opened: Session, report: Report) -> float:
    """MiB of one gateway worker that serves one endpoint of ours and nothing else.

    The measured gateways also hold the example's AutoTokenizer, because all endpoints are of one
    serving service.
    """
    report("memory of a worker with one endpoint")
    site = opened.site
    service = ClearmlCli(site.environment).create_service("one endpoint")
    bundle = site.models.bundles["openvino"]
    cli = ClearmlCli(site.environment, service)
    cli.run(*add_arguments(bundle, OURS, site.uploaded[OURS]))
    start = gateway(environment={"CLEARML_SERVING_TASK_ID": service}, name="one-endpoint")
    server = start(site, report)
    try:
        address = Address.of(f"{server.base}/serve/{OURS}")
        payload = generator.Payload("text", json_text([SEED]))
        generator.run(address, [payload], generator.Closed(8, opened.runner.plan.seconds))
        return memory_mib(server)
    finally:
        server.stop()


def memory_mib(server: Running) -> float:
    """MiB resident of a server's processes now, after it has worked."""
    processes = [process for child in server.children for process in child.tree()]
    return round(use(processes).memory / 2**20, 1)


def triton_version() -> str:
    return read_lock().embedded.triton
