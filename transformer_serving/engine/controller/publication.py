"""What the controller shows of itself and its endpoints: page, log, ClearML and state file.

Tested by tests/engine/test_rounds.py and tests/engine/test_service.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.status import EndpointStatus, as_json, changes
from transformer_serving.engine.controller.sync import Sync

_log = logging.getLogger(__name__)


class Publication:
    """`report` sends lines to ClearML; `rows` are those that were shown last."""

    def __init__(self, page: MetricsPage, state: StateFile, report: Callable[[str], None]) -> None:
        self._page = page
        self._state = state
        self._report = report
        self._reported: Sequence[EndpointStatus] = []
        self._started = time.time()
        self.rows: list[EndpointStatus] = []

    def show(
        self,
        rows: list[EndpointStatus],
        sync: Sync,
        triton: str | None,
        rollouts: Sequence[Any],
        *,
        triton_ready: bool,
        triton_starts: int = 0,
    ) -> None:
        """`triton` is its version. Raises OSError where the state file has no room."""
        self._page.show(rows, sync.last, triton_ready=triton_ready, triton_starts=triton_starts)
        for line in changes(self.rows, rows):
            _log.info("%s", line)
        self.rows = rows
        # Before the first sync there is nobody to tell; afterwards everything at once.
        lines = changes(self._reported, rows) if sync.last is not None else []
        if lines:
            self._report("\n".join(lines))
            self._reported = rows
        # Last: a disk may be full.
        self._state.publish({
            "controller": {
                "pid": os.getpid(),
                "started": self._started,
                "last_sync": sync.last,
                "last_sync_ok": sync.error is None and sync.last is not None,
                "control_plane_error": sync.error,
                "triton": {"version": triton, "ready": triton_ready},
            },
            "endpoints": as_json(rows),
            "rollouts": rollouts,
        })  # fmt: skip
