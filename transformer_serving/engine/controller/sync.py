"""What the control plane wants served: asked again and again, without ever waiting for the answer.

The SDK may block for minutes, so it is asked in a thread of its own.

Tested by tests/engine/test_sync.py and tests/engine/test_service.py.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial

from transformer_serving.contract.naming import SERVED, name_fault
from transformer_serving.engine.controller.control_plane.served import ControlPlane, Problem, Served
from transformer_serving.engine.controller.failures import reason_of

_log = logging.getLogger(__name__)
# A sync that takes longer is shown as an error: the SDK never gives up, it only comes back late.
_SLOW_S = 10.0
# Of an answer's own time so much counts: a worker that hangs beside it must still have its poll.
_COUNTS_S = 1.0, 5.0


class Sync:
    """`wanted` maps Triton models to endpoints, None before the first answer.

    `last` is when it was last answered, `error` why it is not now. `serving` is the endpoint
    that a model was loaded for, None where it never was.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        pool: Executor,
        poll_s: float,
        endpoint_filter: str,
        serving: Callable[[str], str | None],
    ) -> None:
        self._control_plane = control_plane
        self._pool = pool
        self._poll_s = poll_s
        self._filter = endpoint_filter
        self._serving = serving
        self._asked: Future[Sequence[Served]] | None = None
        self._told: Sequence[Served] | None = None
        self._started = float("-inf")
        # Of the last one that was answered: the seconds with answers before it was asked, and when
        # that was, on time.monotonic's clock. One value, as others read it in threads of theirs.
        self._answered = 0.0, float("-inf")
        # What of the seconds since then does not count; all, where one failed.
        self._uncounted_s = 0.0
        self.wanted: dict[str, Served] | None = None
        self.problems: list[Problem] = []
        self.last: float | None = None
        self.error: str | None = None

    def start_when_due(self, wake: Callable[[], None]) -> None:
        """Ask, unless it is too early or the last answer is still to come; `wake` when it comes and
        is another one than before. What is not has the time until the next round."""
        if self._asked is None and time.monotonic() - self._started >= self._poll_s:
            self._started = time.monotonic()
            self._asked = self._pool.submit(self._control_plane.endpoints)
            self._asked.add_done_callback(partial(self._wake_for_news, wake))

    def _wake_for_news(self, wake: Callable[[], None], asked: Future[Sequence[Served]]) -> None:
        if self.error is not None or asked.exception() is not None or asked.result() != self._told:
            wake()

    def answered_s(self) -> float:
        """The seconds in which ClearML has answered, up to when it was asked for its last answer:
        none between two answers where one failed between them, and of the time that an answer took
        half a poll at most, within 1 to 5 s, as a call may hang through an outage."""
        return self._answered[0]

    def answered_at_most_s(self) -> float:
        """What `answered_s` would be of an answer now, were none late; a poll more at most."""
        answered_s, asked = self._answered
        return answered_s + min(time.monotonic() - asked, self._poll_s)

    def finish(self) -> bool:
        """Whether a new answer was taken up."""
        if self._asked is None:
            return False
        if not self._asked.done():
            if time.monotonic() - self._started > _SLOW_S and self.error is None:
                self.error = f"no answer for more than {_SLOW_S:.0f} s"
                _log.error("control plane: %s", self.error)
            return False
        asked, self._asked = self._asked, None
        error = asked.exception()
        if error is None:
            self._take_up(asked.result())
            return True
        reason = reason_of(error)
        if reason != self.error:
            _log.error("control plane: %s", reason)
        self.error, self._uncounted_s = reason, float("inf")
        return False

    def _count(self) -> None:
        answered_s, asked = self._answered
        if asked != float("-inf"):
            answered_s += max(0.0, self._started - asked - self._uncounted_s)
        took_s = time.monotonic() - self._started
        self._uncounted_s = max(
            0.0, took_s - min(max(_COUNTS_S[0], self._poll_s / 2), _COUNTS_S[1])
        )
        self._answered = answered_s, self._started

    def _take_up(self, endpoints: Sequence[Served]) -> None:
        """Two addresses can mean one Triton name: who is served keeps it, the other is told."""
        self.error, self.last, self._told = None, time.time(), endpoints
        self._count()
        before = self.wanted or {}
        wanted: dict[str, Served] = {}
        self.problems = list(self._control_plane.problems())

        def order(served: Served) -> tuple[bool, str]:
            known = before.get(served.model)
            owner = self._serving(served.model) if known is None else known.endpoint
            return served.endpoint != owner, served.endpoint

        for served in sorted(endpoints, key=order):
            if not fnmatch.fnmatchcase(served.endpoint, self._filter):
                continue
            if fault := name_fault(served.model, SERVED):
                self.problems.append(_problem(served, fault))
                continue
            other = wanted.setdefault(served.model, served)
            if other is not served:
                reason = (
                    f"its Triton model name '{served.model}' is taken by endpoint "
                    f"'{other.endpoint}'; choose another endpoint name"
                )
                self.problems.append(_problem(served, reason))
        self.wanted = wanted


def _problem(served: Served, reason: str) -> Problem:
    return Problem(served.endpoint, served.model, served.model_id, reason)
