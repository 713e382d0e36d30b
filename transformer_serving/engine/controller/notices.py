"""Whether every worker has had the time to learn of an update.

Workers learn of it from ClearML, so only seconds in which that answers count, up to the last answer
that the controller has had itself; an outage puts the end off by as long as it takes.

Tested by tests/engine/test_notices.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformer_serving.engine.controller.records import ModelRecord
from transformer_serving.engine.controller.sync import Sync


class Notices:
    """`notice_s` is how long it takes while ClearML answers. Times are on a clock of the seconds in
    which it does.

    May be asked in any thread.
    """

    def __init__(self, sync: Sync, notice_s: float) -> None:
        self._sync = sync
        self._notice_s = notice_s
        # By model: the version in service, and when it was first seen.
        self._seen: dict[str, tuple[int, float]] = {}

    def now(self) -> float:
        return self._sync.answered_at_most_s()

    def left_s(self, since: float) -> float:
        """Seconds with answers until all know of what ClearML had said by then; 0 when they do."""
        return max(0.0, since + self._notice_s - self._sync.answered_s())

    def known(self, record: ModelRecord) -> bool:
        """Whether nobody asks for a version before the one in service any more."""
        number = record.current.number
        seen, since = self._seen.get(record.model, (None, 0.0))
        if seen != number:
            since = self.now()
            self._seen[record.model] = number, since
        return not self.left_s(since)

    def unknown(self, records: Iterable[ModelRecord]) -> frozenset[str]:
        """The models whose version in service a worker may not know of yet."""
        return frozenset(record.model for record in records if not self.known(record))
