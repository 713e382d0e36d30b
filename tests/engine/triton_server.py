"""A real tritonserver for the tests: started on free ports, with its log at hand."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import tritonclient.grpc as triton

from tests.free_ports import free_ports
from transformer_serving.contract.worker.tracing import ENDPOINT
from transformer_serving.engine.backend_directory import assemble, pytriton_tritonserver
from transformer_serving.engine.orphans import end_orphans
from transformer_serving.engine.triton_process import (
    TritonAddresses,
    triton_command,
    triton_environment,
)
from transformer_serving.engine.triton_traces import trace_options


def free_addresses() -> TritonAddresses:
    http, grpc, metrics = free_ports(3)
    return TritonAddresses(http, grpc, metrics)


@dataclass
class TritonServer:
    """One server over one repository; `restart` keeps the ports."""

    repository: Path
    backends: Path
    log: Path
    addresses: TritonAddresses
    complete_configurations: bool = False
    key: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    # Of the receiver of its traces; None: it traces nothing.
    traces: str | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def grpc(self) -> str:
        return self.addresses.grpc

    def client(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.grpc)

    def start(self) -> None:
        self.addresses.remove_sockets()
        command = triton_command(
            pytriton_tritonserver() / "bin" / "tritonserver",
            repository=self.repository,
            backend_directory=self.backends,
            addresses=self.addresses,
            key=self.key,
            extra=self._trace_options(),
        )
        if self.complete_configurations:
            command.remove("--disable-auto-complete-config")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**triton_environment(), **self.variables},
                cwd=self.repository,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self.live, 120, lambda: self.log.read_text()[-3000:])

    def _trace_options(self) -> list[str]:
        on = {ENDPOINT.name: self.traces} if self.traces else {}
        program = pytriton_tritonserver() / "bin" / "tritonserver"
        return trace_options(program, on, triton_environment())

    def live(self) -> bool:
        client = self.client()
        with contextlib.suppress(triton.InferenceServerException):
            return bool(client.is_server_live())
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def wait_until(condition, seconds: float, context=lambda: "") -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {context()}")
        time.sleep(0.05)


@contextlib.contextmanager
def running_triton(
    folder: Path,
    *,
    complete: bool = False,
    addresses: TritonAddresses | None = None,
    key: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
    traces: str | None = None,
) -> Iterator[TritonServer]:
    folder.mkdir(parents=True, exist_ok=True)
    repository = folder / "models"
    repository.mkdir(exist_ok=True)
    backends = assemble(folder / "backends", pytriton=pytriton_tritonserver())
    server = TritonServer(
        repository,
        backends,
        folder / "triton.log",
        addresses or free_addresses(),
        complete_configurations=complete,
        key=key,
        variables=variables,
        traces=traces,
    )
    try:
        server.start()
        yield server
    finally:
        # Told to leave, it waits for its models and for the clients that are still connected.
        if server.process is not None:
            server.kill()
        # Of a killed one some stay for good, and its shared memory.
        end_orphans(repository)


@contextlib.contextmanager
def stopped(triton: TritonServer) -> Iterator[None]:
    """Triton accepts connections and does nothing."""
    assert triton.process is not None
    pid = triton.process.pid
    triton.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: set(thread_states(pid)) == {"T"}, 60)
        yield
    finally:
        triton.process.send_signal(signal.SIGCONT)


def shared_memory(pid: int) -> set[Path]:
    """What a process has of it, by the files; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
        return {Path(line.split()[-1]) for line in lines if "/dev/shm/triton_" in line}
    return set()


def thread_states(pid: int) -> list[str]:
    """Of each thread: of a process that counts as stopped some still run."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            # The name, in brackets, may hold anything.
            states.append(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[0])
    return states
