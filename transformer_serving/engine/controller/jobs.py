"""What changes models in Triton, in threads of its own: of each model one job at a time.

An update waits for its turn and is proven first, which changes nothing. Until it is let in, the
version in service may be loaded again beside it.

Tested by tests/engine/test_rounds.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_UPDATES, _OTHERS, _PROOFS = 32, 4, 4

# A job, and the fingerprint of what it is to bring about.
_Job = tuple[Future[None], str]
_Done = TypeVar("_Done")


def submitted(pool: ThreadPoolExecutor, step: Callable[[], _Done]) -> Future[_Done]:
    """The pool's future of it. Raises RuntimeError where no thread can be had: it never runs then.

    The pool keeps what it found no thread for, and would come to it later.
    """
    goes: Future[bool] = Future()

    def run() -> _Done:
        if not goes.result():
            raise CancelledError
        return step()

    try:
        future = pool.submit(run)
    except BaseException:
        goes.set_result(False)
        raise
    goes.set_result(True)
    return future


class Jobs:
    """Of one loop, which alone starts and ends them; `alone` is for an update's own thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # Most of its threads only wait, until the workers know of a new version.
        self._for_updates = ThreadPoolExecutor(_UPDATES, "take")
        self._for_others = ThreadPoolExecutor(_OTHERS, "load")
        # What is proven before it is loaded, one at a time, keeps nothing else from being loaded.
        self._for_proofs = ThreadPoolExecutor(_PROOFS, "prove")
        self._updates: dict[str, _Job] = {}
        self._others: dict[str, _Job] = {}
        # Models that a job changes now, and those whose update was let in and is not told as ended.
        self._changes = threading.Condition()
        self._changed: set[str] = set()
        self._let_in: set[str] = set()
        # When the last job of a model ended, on time.monotonic's clock.
        self._ended: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._updates) + len(self._others)

    @contextmanager
    def alone(self, model: str) -> Iterator[None]:
        """For an update: in the block nobody else changes the model."""
        with self._changes:
            self._changes.wait_for(lambda: model not in self._changed)
            self._changed.add(model)
            self._let_in.add(model)
        try:
            yield
        finally:
            self._release(model)

    def seen(self, asked_at: float) -> None:
        """A look at Triton that was asked for then knows what the jobs before have done."""
        self._ended = {model: at for model, at in self._ended.items() if at >= asked_at}

    def is_free(self, model: str, *, beside: bool) -> bool:
        """Whether a job may begin, `beside` an update too, by what is known here and was seen of
        Triton."""
        updates = model in self._updates and not beside
        return not updates and model not in self._others and model not in self._ended

    def claim(self, model: str) -> bool:
        """Whether a job that is no update may be started, and is to be. Once an update was let in,
        what was known before it is old, until `finished` has told its end.
        """
        with self._changes:
            if model in self._changed | self._let_in:
                return False
            self._changed.add(model)
        return True

    def _release(self, model: str) -> None:
        with self._changes:
            self._changed.discard(model)
            self._changes.notify_all()

    def start(
        self,
        model: str,
        fingerprint: str,
        step: Callable[[], None],
        *,
        update: bool,
        proof: bool = False,
    ) -> None:
        """What was claimed is given back when the job ends. An update claims nothing: it waits for
        that in its own thread. `proof`: another job is to be proven first.

        Raises RuntimeError where no thread can be had: nothing runs then.
        """
        others = self._for_proofs if proof else self._for_others
        pool, jobs = (self._for_updates, self._updates) if update else (others, self._others)
        try:
            future = submitted(pool, step)
        except BaseException:
            if not update:
                self._release(model)
            raise
        jobs[model] = future, fingerprint
        if not update:
            future.add_done_callback(lambda _: self._release(model))
        future.add_done_callback(lambda _: self._wake())

    def finished(self) -> Iterator[tuple[str, str, BaseException | None]]:
        """Those that have ended since the last call: model, fingerprint, and what they raised."""
        for jobs in (self._others, self._updates):
            for model, (future, fingerprint) in list(jobs.items()):
                if future.done():
                    del jobs[model]
                    self._ended[model] = time.monotonic()
                    if jobs is self._updates:
                        with self._changes:
                            self._let_in.discard(model)
                    yield model, fingerprint, future.exception()
