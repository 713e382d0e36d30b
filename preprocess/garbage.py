"""Full garbage collections of a worker, kept short.

The host, ClearML's SDK and other endpoints' libraries are some 100,000 to 500,000 objects that
live as long as the worker. A full collection walks all of them, up to 0.3 s in which nobody is
answered, and under load there was one in about every 1,700 requests. So what a long collection has
found alive is left out of the next ones (gc.freeze). Every ten minutes one looks at everything
again, and frees what of it has become garbage meanwhile. Under load Python begins it; in a worker
that is seldom asked the gateway does, when nobody waits (gateway/idle_collection.py).
"""

from __future__ import annotations

import gc
import time
from typing import Any

from transformer_serving.contract.worker.process_wide import process_wide

# A full collection that takes longer has seen too much.
LONG_S = 0.02
EVERYTHING_S = 600.0


class Collections:
    """Listens to the collector; `everything_at` is when all is looked at again, which the gateway
    reads too.
    """

    def __init__(self, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._began = 0.0
        self.everything_at = time.monotonic() + EVERYTHING_S

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < 2:
            return
        now = time.monotonic()
        if phase == "start":
            self._began = now
            if now >= self.everything_at:
                # The collector calls this before it gathers what to look at.
                gc.unfreeze()
                self.everything_at = now + EVERYTHING_S
        elif now - self._began > self._long_s:
            gc.freeze()


def keep_collections_short() -> None:
    """Once a worker, whichever endpoint comes first."""
    process_wide("collections", _listening)


def _listening() -> bool:
    # The first bundle's: it has no state that a later version would read.
    gc.callbacks.append(Collections())
    return True
