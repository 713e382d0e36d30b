"""Whether every worker has had the time to learn of an update.

Workers learn of it from ClearML, so only seconds in which that answers count, up to the last answer
that the controller has had itself, and after an outage they are counted anew.

Tested by tests/engine/test_notices.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from transformer_serving.engine.controller.records import ModelRecord
from transformer_serving.engine.controller.sync import Sync


class Notices:
    """`notice_s` is how long it takes while ClearML answers. Times are on time.monotonic's clock.

    May be asked in any thread.
    """

    def __init__(self, sync: Sync, notice_s: float) -> None:
        self._sync = sync
        self._notice_s = notice_s
        # By model: the version in service, and when it was first seen.
        self._seen: dict[str, tuple[int, float]] = {}

    def over(self, since: float) -> bool:
        """Whether all know by now of what ClearML has said since then."""
        return self._sync.answered_s(since) >= self._notice_s

    def known(self, record: ModelRecord) -> bool:
        """Whether nobody asks for a version before the one in service any more."""
        number, now = record.current.number, time.monotonic()
        seen, since = self._seen.get(record.model, (None, now))
        if seen != number:
            since = now
            self._seen[record.model] = number, since
        return self.over(since)

    def unknown(self, records: Iterable[ModelRecord]) -> frozenset[str]:
        """The models whose version in service a worker may not know of yet."""
        return frozenset(record.model for record in records if not self.known(record))
