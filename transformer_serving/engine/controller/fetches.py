"""Models on their way: fetched and checked beside what serves, until a load takes them.

Tested by tests/engine/test_rounds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.jobs import submitted
from transformer_serving.engine.controller.records import ModelRecord, Version

Fetch = Callable[[Served, ModelRecord | None], Version]


class Fetches:
    """One a model at most. `discard` deletes the files of one, by model and token."""

    def __init__(
        self, fetch: Fetch, discard: Callable[[str, str], None], wake: Callable[[], None]
    ) -> None:
        self._fetch = fetch
        self._discard = discard
        self._wake = wake
        self._pool = ThreadPoolExecutor(2, "fetch")
        self._coming: dict[str, tuple[Served, Future[Version]]] = {}
        self._come: dict[str, tuple[Served, Version]] = {}

    def coming(self, model: str) -> bool:
        return model in self._coming

    def start(self, served: Served, record: ModelRecord | None) -> None:
        """Raises RuntimeError where no thread can be had: nothing is fetched then."""
        future = submitted(self._pool, lambda: self._fetch(served, record))
        self._coming[served.model] = served, future
        future.add_done_callback(lambda _: self._wake())

    def failed(self) -> Iterator[tuple[Served, BaseException]]:
        """Those that have ended and failed since the last call; the others can be taken."""
        for model, (served, future) in list(self._coming.items()):
            if not future.done():
                continue
            del self._coming[model]
            error = future.exception()
            if error is None:
                self.leave(model)
                self._come[model] = served, future.result()
            else:
                yield served, error

    def take(self, served: Served) -> Version | None:
        """What has come of exactly this; it is the caller's now."""
        come = self._come.get(served.model)
        if come is None or come[0].fingerprint != served.fingerprint:
            return None
        return self._come.pop(served.model)[1]

    def forget(self, wanted: Mapping[str, Served]) -> None:
        """Delete what has come and is no longer asked for."""
        for model, (served, _) in list(self._come.items()):
            now = wanted.get(model)
            if now is None or now.fingerprint != served.fingerprint:
                self.leave(model)

    def leave(self, model: str) -> None:
        """Delete what has come of the model, where anything has."""
        if model in self._come:
            _, version = self._come.pop(model)
            # Without a thread the pool keeps it, and comes to it with the next one's.
            with suppress(RuntimeError):
                self._pool.submit(self._discard, model, version.token)
