"""Flame graphs under the seed's load: where a worker's time goes, and the backend's."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.runs.runners import Plan
from benchmarks.runs.session import Session, session
from benchmarks.servers.peers import PEERS
from benchmarks.servers.process import Unusable, tree
from benchmarks.servers.site import BUILD, OURS
from benchmarks.servers.texts import SEED, json_text
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.step_report import StepReport
from transformer_serving.gateway.server.worker_process import MODULE

_CLIENTS = 128
_RATE = "200"


@dataclass(frozen=True)
class Flame:
    """A picture: the process that is looked at while a peer is loaded."""

    name: str
    peer: str
    process: psutil.Process
    native: bool


def draw(seconds: float, report: StepReport, folder: Path) -> list[Path]:
    """One SVG a process below `folder`. Raises Unusable when py-spy cannot look at it."""
    folder.mkdir(parents=True, exist_ok=True)
    peers = [PEERS["gateway"], PEERS["null-gateway"]]
    with session(peers, Plan(), report, BUILD / "flames") as opened:
        return [_record(flame, opened, seconds, report, folder) for flame in _flames(opened)]


def _flames(opened: Session) -> Iterator[Flame]:
    for name in ("gateway", "null-gateway"):
        server = opened.servers[str(PEERS[name].server)]
        yield Flame(f"worker-{name}", name, worker(server.processes()), native=False)
    stub = next(
        process for process in tree(opened.site.triton_pid()) if f"{OURS}_0_0" in process.cmdline()
    )
    yield Flame("backend", "gateway", stub, native=True)


def worker(processes: Sequence[psutil.Process]) -> psutil.Process:
    """The first that takes requests: their supervisor does nothing under load."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if MODULE in process.cmdline():
                return process
    raise Unusable("the gateway has no worker to look at")


def _record(
    flame: Flame, opened: Session, seconds: float, report: StepReport, folder: Path
) -> Path:
    """py-spy for `seconds` while the load runs a little longer on both sides."""
    report(f"flame graph of {flame.name}")
    address = Address.of(opened.runner.url(PEERS[flame.peer]))
    payload = generator.Payload("text", json_text([SEED]))
    kind = generator.Closed(_CLIENTS, seconds + 2)
    loading = threading.Thread(target=generator.run, args=(address, [payload], kind))
    loading.start()
    path = folder / f"{flame.name}.svg"
    try:
        look(flame.process.pid, seconds, flame.native, path)
    finally:
        loading.join()
    path.write_text(titled(path.read_text(), f"{flame.name}, {_CLIENTS} clients"))
    return path


def look(pid: int, seconds: float, native: bool, path: Path) -> None:
    """Where a process spends `seconds`, as an SVG. Raises Unusable when py-spy cannot look at it.

    --idle would show the waiting loop; what is wanted is where the processor is. The process is
    stopped for each look: stacks read while it runs on come out torn.
    """
    # Of a process that it has seen nothing of, py-spy writes a picture all the same.
    drawn = path.with_suffix(".part")
    command = [
        _py_spy(), "record", "--pid", str(pid), "--output", str(drawn),
        "--duration", str(max(int(seconds), 1)), "--rate", _RATE, "--native" if native else "--gil",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unusable(f"py-spy: {_cause(done.stderr)}")
        drawn.replace(path)
    finally:
        drawn.unlink(missing_ok=True)


def _cause(stderr: str) -> str:
    """Its own words: below them may stand the places of a backtrace."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    words = [line for line in lines if line.startswith(("Error:", "Reason:"))]
    return " ".join(words or lines[:1] or ["failed"])


def titled(svg: str, title: str) -> str:
    """py-spy's picture, whose title is its whole command line with this machine's paths."""
    return re.sub(r'(<text id="title"[^>]*>)[^<]*', lambda found: found[1] + title, svg, count=1)


def _py_spy() -> str:
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        raise Unusable(f"flame graphs need py-spy: {pip_line('-r requirements/dev.lock')}")
    return found
