"""Many endpoints and many changes of them, and what that leaves behind."""

from __future__ import annotations

import json
import random
import urllib.request
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


# Against the look before: allocators keep some memory, and a connection or thread may just be open.
_MORE_MB = 32.0
_MORE_SHARE = 1.05


@dataclass(frozen=True)
class Grown:
    """The stack's footprint with every endpoint in use, and again after the changes."""

    before: Footprint
    after: Footprint

    def check(self) -> None:
        """Raise AssertionError where changes have left something behind."""
        before, after = self.before, self.after
        assert after.shared == before.shared, self
        for name in ("threads", "descriptors"):
            assert getattr(after, name) <= _MORE_SHARE * getattr(before, name), self
        for name in ("worker_mb", "triton_mb", "controller_mb"):
            most = max(_MORE_SHARE * getattr(before, name), getattr(before, name) + _MORE_MB)
            assert getattr(after, name) <= most, self


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
    _settle(stack, now)
    before = _used(stack, now)
    for _ in range(changes):
        _turn(stack, edit, dice, now, bundles)
    # As at the first look: every endpoint on its first bundle, no old version in its grace.
    changed = {name: 0 for name, at in now.items() if at}
    edit.add_all(changed, bundles[0].bundle, bundles[0].model_id)
    _wait(stack, changed, bundles)
    _settle(stack, now)
    # The process of the last unloaded version may still be on its way out.
    stack.until(lambda: footprint(stack).shared <= before.shared, "old engines are gone", _LOAD_S)
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
            lambda name=name, at=at: _serves(stack, name, bundles[at].version),  # type: ignore[misc]
            f"{name} is served",
            _LOAD_S,
        )


def _serves(stack: Stack, name: str, version: int) -> bool:
    seen = stack.seen(name, BODY)
    return seen.status == 200 and seen.version == version


def _settle(stack: Stack, now: dict[str, int]) -> None:
    """Until every endpoint has its one version and no old one is in its grace."""
    stack.until(lambda: _one_version_each(stack, now), "every grace is over", _LOAD_S)


def _one_version_each(stack: Stack, now: dict[str, int]) -> bool:
    rows = stack.rows()
    return all(name in rows and len(rows[name]["versions_loaded"]) == 1 for name in now)


def _used(stack: Stack, now: dict[str, int]) -> Footprint:
    """After requests to each, and after the worker's own to all at once, which open connections."""
    for name in now:
        ask_many(stack.base, name, [BODY] * 20, clients=8)
    stack.until(lambda: set(now) <= _golden(stack), "every golden request is answered")
    return footprint(stack)


def _golden(stack: Stack) -> set[str]:
    """The endpoints whose golden request was answered in the last round."""
    address = f"http://127.0.0.1:{stack.base}/health/endpoints"
    with urllib.request.urlopen(address, timeout=30) as answer:
        rows = json.load(answer)["endpoints"]
    return {row["endpoint"] for row in rows if row["state"] == "ok"}
