"""An event loop whose clock jumps to what comes next: hours pass in seconds, the same each time."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any

import pytest


class _Selector(selectors.SelectSelector):
    """Nothing comes from outside, so waiting is only the clock's going on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits for somebody else"
        self.now += max(timeout, 0.0)
        return []


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine's result; time.monotonic is the loop's clock meanwhile."""
    selector = _Selector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: selector.now)
        loop = asyncio.SelectorEventLoop(selector)
        loop._clock_resolution = 1e-9  # type: ignore[attr-defined]
        try:
            return loop.run_until_complete(_to_the_end(main))
        finally:
            loop.close()


def stand_still(seconds: float) -> None:
    """As a loop does whose code computes for so long."""
    loop: Any = asyncio.get_running_loop()
    loop._selector.now += seconds


async def _to_the_end(main: Coroutine[Any, Any, Any]) -> Any:
    result = await main
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return result
