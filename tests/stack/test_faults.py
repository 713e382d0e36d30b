"""Parts that are killed or stopped under load come back; answers are right or say "not now"."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.free_ports import free_port_base
from tests.stack.conftest import Stack
from tests.stack.faults import (
    BODY,
    BOUND_S,
    NOT_NOW,
    PAIRS,
    SINGLE,
    Fault,
    is_engine,
    strike,
)
from tests.stack.load import load
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.desk.local.leftovers import leftovers, lives
from transformer_serving.gateway.server.worker_process import MODULE

pytestmark = pytest.mark.long

SEED = 3


@pytest.fixture(scope="module")
def struck(plain: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with the endpoint 'struck'."""
    bundle = write_small(tmp_path_factory.mktemp("struck") / "bundle", Parts())
    plain.run("deploy", str(bundle.folder), "--endpoint", "struck")
    yield plain
    plain.run("remove", "struck")


@pytest.mark.parametrize("fault", SINGLE, ids=str)
def test_a_fault_under_load(struck: Stack, fault: Fault) -> None:
    outcome = strike(struck, "struck", [fault])
    assert outcome.answers[200]
    if fault.part in ("control-plane", "controller"):
        assert set(outcome.answers) == {200}, outcome  # requests do not need them


@pytest.mark.parametrize("pair", random.Random(SEED).sample(PAIRS, 2), ids=str)
def test_two_faults_at_once(struck: Stack, pair: tuple[Fault, Fault]) -> None:
    assert strike(struck, "struck", pair).answers[200]


def test_what_was_ended_leaves_no_process_behind(struck: Stack) -> None:
    """After all of the above the stack has the processes of a fresh one: parts, the gateway's
    worker and one engine."""

    def engines_alone() -> bool:
        mains = {part["pid"] for part in struck.parts().values()}
        alive = {process.pid: process for process in leftovers(struck.state)}
        supervisor = int((struck.state / "supervisor.pid").read_text())
        others = [process for pid, process in alive.items() if pid not in {*mains, supervisor}]
        workers = [process for process in others if is_worker(process)]
        engines = [process for process in others if process not in workers]
        return (
            len(workers) == 1
            and all(map(is_engine, engines))
            and len(engines) == len(struck.rows())
        )

    # A part may have a child of a moment.
    struck.until(engines_alone, "one engine an endpoint, and nothing else")


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return MODULE in process.cmdline()
    return False


def test_an_engine_that_is_killed_while_it_loads_is_loaded_again(
    struck: Stack, tmp_path: Path
) -> None:
    """In its first moments Triton itself never notices; the answers stay those of one bundle."""
    good = struck.seen("struck", BODY)
    bundle = write_small(tmp_path / "bundle", Parts(scale=-2.0))
    triton = psutil.Process(struck.parts()["triton"]["pid"])
    older = set(triton.children(recursive=True))
    with load(struck.base, "struck", BODY, 4) as log, ThreadPoolExecutor() as pool:
        # Triton is started anew meanwhile, for which a busy machine takes its time.
        arguments = ("deploy", str(bundle.folder), "--endpoint", "struck", "--timeout", "800")
        deployed = pool.submit(struck.run, *arguments)
        first_engine_beside(triton, older).kill()
        deployed.result()
        number = bundle.manifest.bundle_version
        struck.until(lambda: struck.seen("struck", BODY).version == number, "it is loaded")
        last = struck.seen("struck", BODY)
        assert (last.status, last.version) == (200, number)
    for seen in log.except_(good):
        assert seen == last or (seen.status, seen.text) in NOT_NOW, log.counts
    assert not log.hung


def first_engine_beside(triton: psutil.Process, older: set[psutil.Process]) -> psutil.Process:
    """A new engine's process, at once."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        for process in triton.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process not in older and is_engine(process):
                    return process
    raise AssertionError("no engine's process was started")


def test_down_after_the_supervisor_crashed_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path, free_port_base())
    stack.run("up", "--port-base", str(stack.base))
    supervisor = int((tmp_path / "supervisor.pid").read_text())
    parts = [psutil.Process(row["pid"]) for row in stack.json("status")["parts"]]
    os.kill(supervisor, signal.SIGKILL)
    stack.run("down")
    assert not list(leftovers(tmp_path))
    assert not any(lives(part) for part in parts)
