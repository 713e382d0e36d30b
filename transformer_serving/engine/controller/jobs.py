"""What changes models in Triton, in threads of its own: of each model one job at a time.

An update waits for its turn and is proven first, which changes nothing. Until it is let in, the
version in service may be loaded again beside it.

Tested by tests/engine/test_rounds.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

_UPDATES, _OTHERS = 32, 4

# A job, and the fingerprint of what it is to bring about.
_Job = tuple[Future[None], str]


class Jobs:
    """Of one loop, which alone starts and ends them; `alone` is for an update's own thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # Most of its threads only wait, until the workers know of a new version.
        self._for_updates = ThreadPoolExecutor(_UPDATES, "take")
        self._for_others = ThreadPoolExecutor(_OTHERS, "load")
        self._updates: dict[str, _Job] = {}
        self._others: dict[str, _Job] = {}
        self._locks: dict[str, threading.Lock] = {}
        # When the last job of a model ended, on time.monotonic's clock.
        self._ended: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._updates) + len(self._others)

    def alone(self, model: str) -> threading.Lock:
        """Held by whoever changes the model."""
        return self._locks.setdefault(model, threading.Lock())

    def seen(self, asked_at: float) -> None:
        """A look at Triton that was asked for then knows what the jobs before have done."""
        self._ended = {model: at for model, at in self._ended.items() if at >= asked_at}

    def is_free(self, model: str, *, reload: bool) -> bool:
        """Whether a job may begin, by what is known here and was seen of Triton."""
        updates = model in self._updates and not reload
        return not updates and model not in self._others and model not in self._ended

    def claim(self, model: str, *, update: bool) -> bool:
        """Whether the job may be started; not where an update has just been let in."""
        return update or self.alone(model).acquire(blocking=False)

    def start(
        self, model: str, fingerprint: str, step: Callable[[], None], *, update: bool
    ) -> None:
        """What was claimed is given back when the job ends."""
        pool, jobs = (
            (self._for_updates, self._updates) if update else (self._for_others, self._others)
        )
        future = pool.submit(step)
        jobs[model] = future, fingerprint
        if not update:
            future.add_done_callback(lambda _: self.alone(model).release())
        future.add_done_callback(lambda _: self._wake())

    def finished(self) -> Iterator[tuple[str, str, BaseException | None]]:
        """Those that have ended since the last call: model, fingerprint, and what they raised."""
        for jobs in (self._others, self._updates):
            for model, (future, fingerprint) in list(jobs.items()):
                if future.done():
                    del jobs[model]
                    self._ended[model] = time.monotonic()
                    yield model, fingerprint, future.exception()
