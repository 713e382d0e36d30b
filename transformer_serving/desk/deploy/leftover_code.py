"""preprocess files that no endpoint has any more, taken out of the serving task.

clearml-serving registers an endpoint's file in the serving task and never takes it out; a rollout's
candidate has one of its own, by its version, so that each rollout leaves one. All workers and the
controller read the whole task at each of their looks.

Tested by tests/deploy/test_on_a_server.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from transformer_serving.contract.rollout import OVER, PROMOTED, STATES
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli

# As clearml-serving names them, after the endpoint; with other letters one may stand otherwise in
# its text, and stays.
_OF_AN_ENDPOINT = re.compile(r"py_code_[A-Za-z0-9_.-]+")
# `model add` registers the file first, and writes the endpoint then; by the clock of its machine.
_FRESH_S = 3600.0


def forget_code(cli: ClearmlCli) -> None:
    """Take out what nothing names, but what was registered within the last hour: its endpoint may
    be on the way.

    The stored file is left to whom it is stored with, as models' are. Raises Failure where the
    server does not do it.
    """
    api = ClearmlApi(cli.environment)
    task = api.call("tasks.get_by_id", task=cli.serving_id)["task"]
    before = time.time() - _FRESH_S
    named = _named_in(task, before)
    gone = [
        {"key": row["key"], "mode": row.get("mode") or "output"}
        for row in (task.get("execution") or {}).get("artifacts") or ()
        if _OF_AN_ENDPOINT.fullmatch(str(row.get("key")))
        and 0 < (row.get("timestamp") or 0) < before
        and not _is_in(named, row["key"])
    ]
    if gone:
        api.call("tasks.delete_artifacts", task=cli.serving_id, artifacts=gone, force=True)


def _named_in(task: Mapping[str, Any], before: float) -> str:
    """The service's own text, and the endpoints to which rollouts may still go back, as those that
    ended since `before` may."""
    items = task.get("configuration") or {}
    texts = {name: str(item.get("value") or "") for name, item in items.items()}
    try:
        states = list(json.loads(texts.get(STATES) or "{}").values())
    except (ValueError, AttributeError):
        return "\n".join(texts.values())
    texts[STATES] = json.dumps([state for state in states if not _is_over(state, before)])
    return "\n".join(texts.values())


def _is_over(state: Any, before: float) -> bool:
    """For good: the controller looks after an end for a while, and goes back again where somebody
    undid it, unless the new bundle was promoted."""
    if not isinstance(state, dict) or state.get("phase") != OVER:
        return False
    since = state.get("since")
    is_fresh = isinstance(since, int | float) and since >= before
    return state.get("outcome") == PROMOTED or not is_fresh


def _is_in(text: str, key: str) -> bool:
    return re.search(rf"(?<![\w./-]){re.escape(key)}(?![\w./-])", text) is not None
