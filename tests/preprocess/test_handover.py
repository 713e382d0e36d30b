from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from preprocess import handover
from preprocess.handover import Handover


@pytest.fixture(autouse=True)
def _empty_registry() -> Iterator[None]:
    handover._registry().clear()
    yield
    handover._registry().clear()


class Engine:
    """Whether the new version is loaded, and how often it was asked."""

    def __init__(self) -> None:
        self.ready = False
        self.asked = 0

    async def is_ready(self) -> bool:
        self.asked += 1
        return self.ready


def bundle(version: int) -> Any:
    return SimpleNamespace(endpoint=SimpleNamespace(bundle_version=version))


def test_the_first_bundle_serves_at_once() -> None:
    assert Handover("e", bundle(1), Engine().is_ready).server() is None


async def test_the_old_bundle_serves_until_the_new_engine_is_there() -> None:
    old, new, engine = bundle(1), bundle(2), Engine()
    Handover("e", old, engine.is_ready)
    change = Handover("e", new, engine.is_ready)
    assert change.server() is old
    await change.probe()
    assert change.server() is old
    engine.ready = True
    await change.probe()  # too soon: the engine is asked a few times a second at most
    assert (change.server(), engine.asked) == (old, 1)
    change._next_probe = 0
    await change.probe()
    assert change.server() is None


async def test_after_a_bad_bundle_the_last_good_one_still_serves() -> None:
    good, bad, better, engine = bundle(1), bundle(2), bundle(3), Engine()
    Handover("e", good, engine.is_ready)
    Handover("e", bad, engine.is_ready)
    change = Handover("e", better, engine.is_ready)
    assert change.server() is good


def test_a_rebuild_of_the_same_bundle_serves_at_once() -> None:
    Handover("e", bundle(1), Engine().is_ready)
    assert Handover("e", bundle(1), Engine().is_ready).server() is None


def test_endpoints_do_not_meet() -> None:
    Handover("one", bundle(1), Engine().is_ready)
    assert Handover("other", bundle(2), Engine().is_ready).server() is None


def test_an_endpoint_that_nobody_asks_is_forgotten() -> None:
    Handover("gone", bundle(1), Engine().is_ready)
    handover._registry()["gone"].asked -= 2 * handover._KEEP_S
    Handover("e", bundle(1), Engine().is_ready)
    assert set(handover._registry()) == {"e"}
