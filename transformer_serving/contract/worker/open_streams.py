"""Streams of engines that a worker has open, which it does not leave before they have ended.

One that is cut off as it ends may end Triton 2.51 for everybody (docs/decisions/language-models.md,
"A caller that leaves").

Tested by tests/preprocess/test_stream.py.
"""

from __future__ import annotations

import asyncio

from transformer_serving.contract.worker.process_wide import process_wide

Streams = set["asyncio.Task[None]"]


def open_streams() -> Streams:
    """A task for each, of whichever version of the code that reads them."""
    kept: Streams = process_wide("open_streams", set)
    return kept


async def streams_ended(limit_s: float) -> bool:
    """Wait for those of the running loop; False where some were still open after `limit_s`."""
    loop = asyncio.get_running_loop()
    open_ = [task for task in open_streams() if task.get_loop() is loop]
    if not open_:
        return True
    _, left = await asyncio.wait(open_, timeout=limit_s)
    return not left
