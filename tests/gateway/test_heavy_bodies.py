"""Bodies that weigh more than they seem: their answers, and what the worker holds meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from gateway.settings import read_settings
from tests.gateway.heavy_bodies import MIB, attacks, default_gateway, idle_mib, watched


@pytest.mark.long
def test_heavy_bodies_cost_what_they_weigh() -> None:
    total = read_settings({}).body_memory_bytes / MIB
    with default_gateway(TRANSFORMER_SERVING_BODY_STALL_SECONDS="3") as server:

        async def attack() -> None:
            idle = await idle_mib(server)
            for name, (send, expected) in attacks().items():
                statuses, watch = await watched(server, send)
                assert set(statuses) <= expected, (name, statuses)
                assert not watch.failed, name
                assert watch.memory < 1.2 * idle + total, (name, idle, watch.memory)

        asyncio.run(attack())
