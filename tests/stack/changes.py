"""Random changes of a serving service with random faults, and what must be true afterwards."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from tests.stack.desk import Registered
from tests.stack.editor import Editor
from tests.stack.faults import BODY, SINGLE, Fault, check, pid_of
from tests.stack.load import load
from transformer_serving.desk.local.record import require_record
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.log import TritonLog
from transformer_serving.engine.controller.triton.server import Triton, TritonAway

if TYPE_CHECKING:
    from tests.stack.conftest import Stack

_TRIES = 20


@dataclass(frozen=True)
class Changed:
    """What a run of changes did and saw."""

    changes: int
    faults: Counter[str]
    answers: Counter[int]
    served: dict[str, int]


def random_changes(
    stack: Stack,
    edit: Editor,
    bundles: list[Registered],
    seed: int,
    *,
    changes: int,
    faults: int,
    exactly: bool,
) -> Changed:
    """Change after change, each fault between two of them, under a light load on another endpoint.

    In the end Triton serves what the serving service says: `exactly` that and nothing else, or
    also versions whose grace is not over.
    """
    dice = random.Random(seed)
    names = [f"changing{at}" for at in range(6)]
    at_change = set(dice.sample(range(changes), faults))
    struck: list[Fault] = []
    _persist(lambda: edit.add("steady", bundles[0].bundle, bundles[0].model_id))
    stack.until(lambda: stack.seen("steady", BODY).status == 200, "steady is served")
    good = stack.seen("steady", BODY)
    with load(stack.base, "steady", BODY, clients=2, pause_s=0.0) as log:
        for at in range(changes):
            if at in at_change:
                struck += _strike(stack, dice)
            _persist(_change(dice, edit, names, bundles))
        wanted = edit.endpoints()
        versions = {row.model_id: row.version for row in bundles}
        served = {name: versions[wanted[name]] for name in [*names, "steady"] if name in wanted}
        wait_served(stack, served, exactly=exactly)
    check(log, good, struck)
    for name, version in served.items():
        assert stack.seen(name, BODY).version == version
    return Changed(changes, Counter(map(str, struck)), log.statuses(), served)


def _change(
    dice: random.Random, edit: Editor, names: list[str], bundles: list[Registered]
) -> Callable[[], None]:
    name, row = dice.choice(names), dice.choice(bundles)
    if dice.random() < 0.3:
        return lambda: edit.remove_all([name])
    return lambda: edit.add(name, row.bundle, row.model_id)


def _strike(stack: Stack, dice: random.Random) -> Iterator[Fault]:
    """A random fault; a part that is just coming back from the last one is let off."""
    fault = dice.choice(SINGLE)
    with contextlib.suppress(ProcessLookupError, TypeError, StopIteration, psutil.NoSuchProcess):
        os.kill(pid_of(stack, fault.part), fault.how)
        yield fault


def _persist(change: Callable[[], None]) -> None:
    """Make the change, again where the control plane was away meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            change()
            return
        except AssertionError:
            if not left:
                raise


def wait_served(stack: Stack, served: dict[str, int], *, exactly: bool) -> None:
    """Until Triton has ready what `served` says (version by endpoint) and clients get it."""
    address = require_record(stack.state).triton.grpc
    processes = BackendProcesses(stack.state / "triton" / "models")
    log = TritonLog(stack.state / "logs" / "triton.log")
    triton = Triton(address, log, processes)

    def equal() -> bool:
        try:
            loaded = triton.loaded()
        except TritonAway:
            return False
        if loaded.keys() != served.keys():
            return False
        fine = all(version in loaded[name] for name, version in served.items())
        return fine and (not exactly or all(len(versions) == 1 for versions in loaded.values()))

    def answered() -> bool:
        return all(stack.seen(name, BODY).version == served[name] for name in served)

    try:
        stack.until(lambda: equal() and answered(), f"Triton serves {served}", 300)
    finally:
        triton.close()
