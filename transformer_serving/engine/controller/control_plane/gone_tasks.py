"""Tasks in ClearML of inference workers that are gone: found, and deleted.

Each start of a worker makes a task, and the SDK in it says every half minute that the task is
alive. One that has said nothing through several looks has no worker any more. Looks that were
answered are counted, and not hours: after an outage of the control plane every task is old, until
the living are heard again. What is gone is deleted and not stopped, since the SDK ends a process
whose task was stopped, should there be one after all.

Tested by tests/engine/test_gone_tasks.py.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from clearml import Task
from clearml.backend_api.services import tasks as task_calls

_log = logging.getLogger(__name__)
_LOOKS = 6
_PAGE = 500
# Whether this is answered must not decide whether endpoints are served.
_QUIETLY: Mapping[str, bool] = {"ignore_errors": True, "raise_on_errors": False}


class GoneTasks:
    """`keep_s`: how long one without a sign is kept; 0: for ever, and nobody looks."""

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = keep_s / _LOOKS
        self._clock = clock
        self._due = clock() + self._every_s
        # By id: the last sign, and how many looks since have found it the same.
        self._silent: dict[str, tuple[str, int]] = {}

    def delete_when_due(self, serving: Task) -> None:
        if not self._every_s or self._clock() < self._due:
            return
        for identity in self.look(last_signs(serving)):
            # Another Triton's controller may have been faster.
            serving.send(task_calls.DeleteRequest(identity, force=True), **_QUIETLY)
            _log.info("task %s of a worker that is gone: deleted", identity)

    def look(self, signs: Mapping[str, str]) -> list[str]:
        """The ids of those that are gone; `signs` has each task's last one."""
        self._due = self._clock() + self._every_s
        silent = {}
        for identity, sign in signs.items():
            before, looks = self._silent.get(identity, ("", 0))
            silent[identity] = (sign, looks + 1 if sign == before else 0)
        self._silent = silent
        return [identity for identity, (_, looks) in silent.items() if looks >= _LOOKS]


def last_signs(serving: Task) -> dict[str, str]:
    """Of the workers' tasks, those that were silent longest first; none without an answer."""
    answer: Any = serving.send(
        task_calls.GetAllRequest(
            project=[serving.project],
            name=f"^{re.escape(serving.name)} - serve instance$",
            type=["inference"],
            only_fields=["id", "last_update"],
            order_by=["last_update"],
            page=0,
            page_size=_PAGE,
        ),
        **_QUIETLY,
    )
    if not answer or not answer.ok():
        return {}
    return {str(task.id): str(task.last_update) for task in answer.response.tasks}
