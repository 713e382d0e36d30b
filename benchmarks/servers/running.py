"""A server that answers, started with a log of its own, and what is started so."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.servers.process import Child, Unusable, free_ports
from benchmarks.servers.site import Site
from transformer_serving.desk.step_report import StepReport


@dataclass(frozen=True)
class Running:
    """A server that answers; `base` is its address, `children` all that was started for it.

    `lent` where somebody else stops them. `environment` is the name of the one that it runs in,
    where that is not ours.
    """

    base: str
    children: tuple[Child, ...]
    lent: bool = False
    environment: str = ""

    def processes(self) -> list[psutil.Process]:
        return [process for child in self.children for process in child.tree()]

    def stop(self) -> None:
        for child in () if self.lent else self.children:
            child.stop()


Start = Callable[[Site, StepReport], Running]


def start_server(
    site: Site, name: str, command: Callable[[int], list[str]], variables: Mapping[str, str], *,
    ready: str, body: bytes | None, folder: Path | None = None, environment: str = "",
) -> Running:  # fmt: skip
    port = free_ports(1)[0]
    child = Child(name, command(port), site.work / "logs" / f"{name}.log", variables, folder)
    return when_ready(child, f"http://127.0.0.1:{port}", ready, body, environment=environment)


def when_ready(
    child: Child, base: str, path: str, body: bytes | None, *, limit_s: float = 120.0,
    environment: str = "",
) -> Running:  # fmt: skip
    try:
        child.start()
        child.wait_until(f"{base}{path}", body=body, limit_s=limit_s)
    except BaseException as error:
        child.stop()
        if isinstance(error, FileNotFoundError):
            raise Unusable(f"{child.name}: {shutil.which(child.command[0]) or error}") from None
        raise
    return Running(base, (child,), environment=environment)
