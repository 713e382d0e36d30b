"""Many endpoints and many changes of them, and what that leaves behind."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.stack.desk import Registered
from tests.stack.editor import Editor
from tests.stack.faults import BODY
from tests.stack.footprint import Footprint, footprint
from tests.stack.load import ask_many

if TYPE_CHECKING:
    from tests.stack.conftest import Stack

_LOAD_S = 300.0


@dataclass(frozen=True)
class Grown:
    """The stack's footprint with every endpoint in use, and again after the changes."""

    before: Footprint
    after: Footprint


def many_endpoints(
    stack: Stack,
    edit: Editor,
    bundles: list[Registered],
    seed: int,
    *,
    endpoints: int,
    changes: int,
) -> Grown:
    """Serve that many endpoints, use them all, change them at random, and use them all again."""
    dice = random.Random(seed)
    now = {f"many{at}": 0 for at in range(endpoints)}
    edit.add_all(now, bundles[0].bundle, bundles[0].model_id)
    _wait(stack, now, bundles)
    before = _used(stack, now)
    for _ in range(changes):
        _turn(stack, edit, dice, now, bundles)
    # As at the first look: every endpoint on its first bundle, no old version in its grace.
    changed = {name: 0 for name, at in now.items() if at}
    edit.add_all(changed, bundles[0].bundle, bundles[0].model_id)
    _wait(stack, changed, bundles)
    stack.until(lambda: _one_version_each(stack, now), "every grace is over", _LOAD_S)
    return Grown(before, _used(stack, now))


def _turn(
    stack: Stack,
    edit: Editor,
    dice: random.Random,
    now: dict[str, int],
    bundles: list[Registered],
) -> None:
    """One endpoint gets its other bundle."""
    name = dice.choice(sorted(now))
    now[name] = 1 - now[name]
    row = bundles[now[name]]
    edit.add(name, row.bundle, row.model_id)
    _wait(stack, {name: now[name]}, bundles)


def _wait(stack: Stack, now: dict[str, int], bundles: list[Registered]) -> None:
    """Until each endpoint answers from its bundle."""
    for name, at in now.items():
        stack.until(
            lambda name=name, at=at: stack.seen(name, BODY).version == bundles[at].version,  # type: ignore[misc]
            f"{name} is served",
            _LOAD_S,
        )


def _one_version_each(stack: Stack, now: dict[str, int]) -> bool:
    rows = stack.rows()
    return all(len(rows[name]["versions_loaded"]) == 1 for name in now if name in rows)


def _used(stack: Stack, now: dict[str, int]) -> Footprint:
    for name in now:
        ask_many(stack.base, name, [BODY] * 20, clients=8)
    return footprint(stack)
