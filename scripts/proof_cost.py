"""What a proof costs: `python -m scripts.proof_cost BUNDLE...` (folders that `convert` wrote).

Each bundle is served by a Triton of its own as the controller does it: first with nothing before
it, then as an update of itself under another version. Printed are the seconds of load, questions
and unload, Triton's processor time, and the most memory that Triton and its model processes had,
in MiB of their own (PSS).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.engine.triton_server import free_addresses
from transformer_serving.desk.parity.latency import processor
from transformer_serving.engine.backend_directory import assemble, pytriton_tritonserver
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.proving.machine import read_machine
from transformer_serving.engine.controller.proving.proofs import Proofs
from transformer_serving.engine.controller.proving.prover import Prover, subject_of
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.log import TritonLog
from transformer_serving.engine.controller.triton.server import Triton, TritonAway
from transformer_serving.engine.endpoint_config import backend_of
from transformer_serving.engine.model_config import FILE_NAME, from_text, to_text, with_versions
from transformer_serving.engine.triton_process import (
    triton_command,
    triton_environment,
)

_ROUNDS = 3
_PATIENCE_S = 60.0
# Reading a process's memory holds it up.
_LOOK_S = 0.1


@dataclass(frozen=True)
class Used:
    """What Triton and its model processes use."""

    process: psutil.Process

    @contextmanager
    def most(self) -> Iterator[list[float]]:
        """A list whose only element is the most that was seen, when the block has ended."""
        seen, stop = [0.0], threading.Event()

        def look() -> None:
            while not stop.wait(_LOOK_S):
                seen[0] = max(seen[0], self.now())

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()

    def cpu_s(self) -> float:
        """Of Triton and of all model processes that it ever had."""
        own = self.process.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for process in self.process.children(recursive=True):
            try:
                used = process.cpu_times()
            except psutil.Error:
                continue
            total += used.user + used.system
        return float(total)

    def now(self) -> float:
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        return total / 2**20


@contextmanager
def running(folder: Path) -> Iterator[tuple[Triton, Repository, psutil.Process]]:
    ports = free_addresses()
    repository = Repository(folder / "models")
    command = triton_command(
        pytriton_tritonserver() / "bin" / "tritonserver",
        repository=repository.root,
        backend_directory=assemble(folder / "backends", pytriton=pytriton_tritonserver()),
        addresses=ports,
        log_file=folder / "triton.log",
        extra=["--exit-timeout-secs=1"],
    )
    server = psutil.Popen(command, env=triton_environment())
    triton = Triton(
        f"127.0.0.1:{ports.grpc_port}", TritonLog(None), BackendProcesses(repository.root)
    )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                triton.version()
                break
            except TritonAway:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield triton, repository, psutil.Process(server.pid)
    finally:
        triton.close()
        server.terminate()
        server.wait(_PATIENCE_S)


def version_of(repository: Repository, token: str, number: int) -> Version:
    files = repository.files("m", token)
    config = with_versions(from_text((files / FILE_NAME).read_text()), "m", [number])
    subject = subject_of(files, config)
    if not subject:
        sys.exit("error: the bundle has no parity set; convert it with this kit")
    return Version(
        number, token, to_text(config), backend_of(config), number, True, "", "", 0.0,
        subject=subject,
    )  # fmt: skip


def serve(triton: Triton, repository: Repository, versions: tuple[Version, ...]) -> None:
    numbers = [version.number for version in versions]
    config = to_text(with_versions(from_text(versions[0].config), "m", numbers))
    record = ModelRecord("m", "m", "", versions, config)
    repository.install("m", {v.number: v.token for v in versions}, record.served_config)
    triton.load("m", numbers[0])


def measure(bundle: Path, folder: Path) -> None:
    with running(folder) as (triton, repository, process):
        memory = Used(process)
        token = repository.stage("m", bundle / "model", "")
        first = version_of(repository, token, 2)
        second = replace(first, number=3, subject=f"{first.subject} again")
        prover = Prover(triton, repository, Proofs(folder / "proofs.json"))
        prover.on(read_machine(triton.version(), repository.root))
        empty = memory.now()
        seconds: list[float] = []
        processor: list[float] = []
        for number in range(_ROUNDS):
            with memory.most() as proof_alone:
                begun, used = time.monotonic(), memory.cpu_s()
                prover.require("m", replace(first, subject=f"{first.subject} {number}"))
                seconds.append(time.monotonic() - begun)
                processor.append(memory.cpu_s() - used)
        with memory.most() as load_alone:
            serve(triton, repository, (first,))
        served = memory.now()
        with memory.most() as proof_beside:
            prover.require("m", second)
        with memory.most() as load_beside:
            serve(triton, repository, (second, first))
        sys.stdout.write(
            f"{bundle.name}: proof {statistics.median(seconds):.2f} s (median of {len(seconds)}: "
            f"{', '.join(f'{one:.2f}' for one in seconds)}), "
            f"{statistics.median(processor):.2f} s of processor time\n"
            f"  Triton empty {empty:.0f} MiB; first: at most {proof_alone[0]:.0f} in the proof, "
            f"{load_alone[0]:.0f} in the load; serving {served:.0f}\n"
            f"  update: at most {proof_beside[0]:.0f} in the proof, {load_beside[0]:.0f} in the "
            "load, when both versions serve\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path, help="folders that convert wrote")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    for bundle in options.bundles:
        with tempfile.TemporaryDirectory() as scratch:
            measure(bundle, Path(scratch))
        load = psutil.getloadavg()[0]
        sys.stdout.write(f"  {processor()}, {psutil.cpu_count()} cores; load {load:.1f} after\n")


if __name__ == "__main__":
    main()
