"""Whether a controller refused to serve a model: read in the log of the serving task.

The controller says so there on whatever ClearML server, as soon as it knows.

Tested by tests/deploy/test_refusals.py and tests/stack/test_proof.py.
"""

from __future__ import annotations

import time
from typing import Any

from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.controller.proving.refusal_line import refusal_in

_LINES = 200
_LOOK_EVERY_S = 1.0


class Refusals:
    """Those of one model that come after this object was made, or where it was asked for `earlier`
    those that the log has already, too.
    """

    def __init__(
        self, api: ClearmlApi, serving_id: str, model_id: str, *, earlier: bool = False
    ) -> None:
        self._api = api
        self._serving_id = serving_id
        self._model_id = model_id
        self._looked = float("-inf")
        self._before = set() if earlier else set(self._found())

    def reason(self) -> str | None:
        """Why the model is not served; asks once a second at most, however often it is called."""
        if time.monotonic() - self._looked < _LOOK_EVERY_S:
            return None
        self._looked = time.monotonic()
        new = [row for row in self._found() if row not in self._before]
        return new[0][1] if new else None

    def _found(self) -> list[tuple[Any, str]]:
        """Time and reason, the newest first; none where the server gives no log now."""
        try:
            log = self._api.call("events.get_task_log", task=self._serving_id, batch_size=_LINES)
        except Failure:
            return []
        return [
            (event.get("timestamp"), reason)
            for event in log.get("events") or ()
            for line in reversed(str(event.get("msg") or "").splitlines())
            if (reason := refusal_in(line, self._model_id)) is not None
        ]
