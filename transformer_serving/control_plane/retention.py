"""How much of what tasks report is kept: of each task the newest, whatever runs how long.

A controller reports Triton's figures each minute, for ever, on two tasks. Each version of a bundle
is a series of its own, so what is bounded is a task's events of one type, not those of a series.

Tested by tests/control_plane/test_retention.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import cast

from transformer_serving.control_plane.store import Store, StoreError

_log = logging.getLogger(__name__)

# Events of one task and type; of one endpoint's figures that is a week.
KEPT: Mapping[str, int] = {"training_stats_scalar": 100_000}
KEPT_OF_OTHERS = 10_000
_ROUND_SECONDS = 3600.0
# Deleted at a time. What writes beside it waits for one such step at most.
_STEP = 500
_PAUSE_SECONDS = 0.05

_GROUPS = """
SELECT owner, type, count(*),
    EXISTS (SELECT 1 FROM task WHERE id = owner) OR EXISTS (SELECT 1 FROM model WHERE id = owner)
FROM event GROUP BY owner, type
"""
# By the order in which they came: by the times that callers write, what a clock that ran ahead left
# would stay, and all that came after it go.
_NEWEST_TOO_MUCH = """
SELECT number FROM event WHERE owner = ? AND type = ? ORDER BY number DESC LIMIT 1 OFFSET ?
"""
_DELETE = """
DELETE FROM event WHERE number IN (
    SELECT number FROM event WHERE owner = ? AND type = ? AND number <= ?
    ORDER BY timestamp, number LIMIT ?
)
"""


class Retention:
    """Prunes every hour, in steps; a database of years is through in minutes."""

    def __init__(self, store: Store, pause_s: float = _PAUSE_SECONDS) -> None:
        self._store = store
        self._pause_s = pause_s

    async def watch(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.prune)
            except StoreError:
                return  # it is closed
            except Exception as error:
                # The next round may go better; serving does not depend on it.
                _log.error("events were not pruned: %s", type(error).__name__)
            await asyncio.sleep(_ROUND_SECONDS)

    def prune(self) -> int:
        """Delete what is too much, and what belongs to nobody; how many events that were."""
        with self._store.reading() as transaction:
            groups = transaction.rows(_GROUPS)
        deleted = 0
        for owner, kind, count, owned in groups:
            kept = KEPT.get(cast(str, kind), KEPT_OF_OTHERS) if owned else 0
            if cast(int, count) > kept:
                deleted += self._delete_oldest(owner, kind, kept)
        if deleted:
            _log.info("pruned %d events", deleted)
        return deleted

    def _delete_oldest(self, owner: object, kind: object, kept: int) -> int:
        with self._store.reading() as transaction:
            found = transaction.rows(_NEWEST_TOO_MUCH, (owner, kind, kept))
        deleted = 0
        for (newest,) in found:  # none where somebody else deleted them
            while True:
                with self._store.writing() as transaction:
                    done = transaction.execute(_DELETE, (owner, kind, newest, _STEP))
                deleted += done
                if done < _STEP:
                    break
                time.sleep(self._pause_s)
        return deleted
