"""An endpoint's code is fetched in a thread, never in the event loop.

clearml-serving 1.3.5 asks ClearML's storage for preprocess.py where it builds an endpoint: in the
event loop, within a request or at its start. A store that refuses, is out of order or hangs holds
that for half a minute to minutes, each time it is asked: one endpoint's file stopped every endpoint
of the worker, its health included. Here a file is asked for in a thread of its own, with growing
pauses; what is built takes the copy that has come, or is told at once that there is none.

Tested by tests/gateway/test_code_files.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Container, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

from transformer_serving.contract.addresses import shown_address, shown_error
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.signatures import read_trusted_keys
from transformer_serving.gateway.host.code_copy import (
    CodeCopy,
    CodeCopyError,
    CodeRefusedError,
    TaskWithCopy,
    discard,
    fetched,
)

log = logging.getLogger("transformer_serving.gateway")
# Who needs a file waits so long from when it was asked for; a store that is well needs far less.
PATIENCE_S = 2.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class CodeMissingError(ServingError):
    """The endpoint's code has not come from ClearML's storage yet."""

    def __init__(self) -> None:
        super().__init__(
            "unavailable",
            "the endpoint's code could not be fetched yet; the worker's log says from where",
        )


@dataclass
class _Fetch:
    """One time that the store is asked for a file. Its outcome is None where none came.

    `pause_s` is for a failure, which doubles it for the next. Before `due` what came is not used.
    """

    artifact: Any
    endpoint: str
    unpacks: bool
    pause_s: float
    is_told: bool
    begun: float
    outcome: Future[CodeCopy | None] = field(default_factory=Future)
    due: float = 0.0

    def start(self) -> None:
        # Not to be cancelled by who gives up waiting for it.
        self.outcome.set_running_or_notify_cancel()
        # A daemon: an executor's threads would be waited for when the worker leaves.
        thread = threading.Thread(target=self._run, name="endpoint-code", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The machine lets this process have no more threads.
            self._failed(error)
            self.outcome.set_result(None)

    def _run(self) -> None:
        copy = None
        try:
            copy = fetched(self.artifact, unpacks=self.unpacks)
            self._came()
        except BaseException as error:
            # Whatever it is, it ends this thread only.
            self._failed(error)
        finally:
            # Without an outcome the file would never be asked for again.
            self.outcome.set_result(copy)

    def _came(self) -> None:
        if self.is_told:
            log.info("endpoint %s: its code is here", self.endpoint)
        self.pause_s, self.is_told = _FIRST_PAUSE_S, False

    def _failed(self, error: BaseException) -> None:
        address = shown_address(self.artifact.url)
        if isinstance(error, CodeRefusedError):
            self.due = math.inf
            log.error(
                "endpoint %s: its code from %s is refused: %s; upload it anew",
                self.endpoint, address, error,
            )  # fmt: skip
            return
        pause = self.pause_s
        self.due = time.monotonic() + pause
        self.pause_s, self.is_told = min(2 * pause, _LONGEST_PAUSE_S), True
        log.error(
            "endpoint %s: its code cannot be fetched from %s: %s; asked again after %.0f s",
            self.endpoint, address, _why(error), pause,
        )  # fmt: skip

    def took(self) -> None:
        """What came is used."""
        if self.due:
            self.due = 0.0
            self._came()

    def put_off(self, error: CodeCopyError) -> None:
        """What came cannot be used yet: the same is tried again after a pause."""
        self._failed(error)

    @property
    def copy(self) -> CodeCopy | None:
        """What has come, is still there and may be used now."""
        copy = self.outcome.result() if self.outcome.done() else None
        if copy is None or time.monotonic() < self.due:
            return None
        return copy if copy.is_there else None

    @property
    def paths(self) -> tuple[str, ...]:
        """Where what has come is, usable or not."""
        return (self.outcome.done() and self.outcome.result()) or ()

    @property
    def is_over(self) -> bool:
        """Whether the store is to be asked again."""
        return self.outcome.done() and self.copy is None and time.monotonic() >= self.due

    async def wait(self, patience_s: float) -> None:
        rest = self.begun + patience_s - time.monotonic()
        if not self.outcome.done() and rest > 0:
            # Not wait_for: Python 3.11's loses a cancellation that comes with the outcome.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await asyncio.wrap_future(self.outcome)
        if not self.outcome.done() and not self.is_told:
            self.is_told = True
            log.error(
                "endpoint %s: its code has not come from %s within %.0f s; still waiting for it",
                self.endpoint, shown_address(self.artifact.url), patience_s,
            )  # fmt: skip


class CodeFiles:
    """The files of this process's endpoints; asked in the event loop only.

    Without `unpacks` a folder stays the archive that it came in.
    """

    def __init__(self, *, unpacks: bool = True) -> None:
        self._unpacks = unpacks
        self._fetches: dict[tuple[str, str, str], _Fetch] = {}

    async def come(self, artifact: Any, endpoint: str, patience_s: float) -> None:
        """Have the file fetched where it is not here, and wait for it a while."""
        key = _key(artifact)
        fetch = self._fetches.get(key)
        if fetch is None or fetch.is_over:
            self._forget_earlier(key)
            before = (_FIRST_PAUSE_S, False) if fetch is None else (fetch.pause_s, fetch.is_told)
            fetch = _Fetch(artifact, endpoint, self._unpacks, *before, time.monotonic())
            self._fetches[key] = fetch
            fetch.start()
        await fetch.wait(patience_s)

    def asked(self, artifact: Any) -> bool:
        """Whether it was ever asked for."""
        return _key(artifact) in self._fetches

    def copy(self, artifact: Any) -> CodeCopy | None:
        """What has come of it; asks nobody."""
        fetch = self._fetches.get(_key(artifact))
        return None if fetch is None else fetch.copy

    @contextlib.contextmanager
    def use(self, artifact: Any) -> Iterator[CodeCopy]:
        """What has come of it. Raises CodeMissingError where nothing has, and for a CodeCopyError
        of the block, which is told; then it is left alone for a while.
        """
        fetch = self._fetches.get(_key(artifact))
        copy = None if fetch is None else fetch.copy
        if fetch is None or copy is None:
            raise CodeMissingError
        try:
            yield copy
        except CodeCopyError as error:
            fetch.put_off(error)
            raise CodeMissingError from None
        fetch.took()

    def keep_only(self, names: Container[str]) -> None:
        """Let go of the other artifacts' files. Each rollout's candidate has an artifact of its own
        name, and the SDK's cache has room for a number of files, whatever their sizes.
        """
        gone = [
            key
            for key, fetch in self._fetches.items()
            if key[0] not in names and fetch.outcome.done()
        ]
        left = {path for key in gone for path in self._fetches.pop(key).paths}
        if left:
            # Two uploads of one folder are unpacked once.
            discard(left.difference(*(fetch.paths for fetch in self._fetches.values())))

    def _forget_earlier(self, key: tuple[str, str, str]) -> None:
        """Of the same name: what an update has replaced."""
        for known in [one for one in self._fetches if one[0] == key[0] and one != key]:
            if self._fetches[known].outcome.done():
                del self._fetches[known]


@cache
def code_files() -> CodeFiles:
    """Those of this process."""
    return CodeFiles(unpacks=read_trusted_keys(os.environ) is None)


def artifact_of(task: Any, endpoint: Any) -> Any:
    """That of the endpoint's code in the serving task; None where it has none."""
    name = endpoint.preprocess_artifact
    return task.artifacts.get(name) if name and task else None


def lacks_code(task: Any, endpoint: Any) -> bool:
    artifact = artifact_of(task, endpoint)
    return artifact is not None and code_files().copy(artifact) is None


def fetch_beside(processor_class: Any, request_class: Any) -> None:
    """Wrap the host's ModelRequestProcessor and, after `guard`, its BasePreprocessRequest."""
    deserialize = processor_class.deserialize
    start = request_class.__init__

    @wraps(deserialize)
    def deserialized(
        self: Any, task: Any = None, prefetch_artifacts: bool = False, *more: Any, **named: Any
    ) -> Any:
        # A start would wait for every file, one after the other, in the event loop.
        return deserialize(self, task, False, *more, **named)

    @wraps(start)
    def started(self: Any, model_endpoint: Any, task: Any = None) -> None:
        # Here, and not where it is taken: there the host makes a ValueError of whatever is raised.
        artifact = artifact_of(task, model_endpoint)
        if artifact is None:
            start(self, model_endpoint=model_endpoint, task=task)
            return
        with code_files().use(artifact) as copy:
            given = TaskWithCopy(model_endpoint.preprocess_artifact, artifact.hash, copy)
            start(self, model_endpoint=model_endpoint, task=given)

    processor_class.deserialize = deserialized
    request_class.__init__ = started


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, CodeCopyError) else shown_error(error)


def _key(artifact: Any) -> tuple[str, str, str]:
    return artifact.name, artifact.hash, artifact.url
