"""`first_loads STATE`: ends with 0 once this Triton has what it can have, else with 1.

A pod's startup probe: Triton itself is ready with no model at all, and a rollout that counted on
that would end the pod that serves. An endpoint that cannot be loaded holds nothing up beside one
that is loaded: it would not be loaded in the pod before either. One whose model could not be
fetched for now, or that lost its Triton, is waited for, and not for ever: the pod before may have
it. Where endpoints are and none is loaded, the pod has nothing that would make up for the one
before, whatever the reason: it may be the pod's own, such as other keys that are trusted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_serving.engine.controller.records import Kind

# Why an endpoint is not ready yet, as the state file says it; of any other reason its kind tells.
LOADING = "loading"
UNTRUSTED = "its signatures are being checked"
IN_PROOF = "its answers are being proven"
TRITON_AWAY = "Triton does not answer"
_UNDER_WAY = frozenset({LOADING, UNTRUSTED, IN_PROOF, TRITON_AWAY})
# From so many failures on, some minutes after the first, it will not come by itself if another one
# did: a store says as little of what it has lost as of what it cannot reach, and a load that ends
# Triton each time is one of a Triton that is away.
_TRIED: Mapping[str, int] = {Kind.UNREACHED: 6, Kind.AWAY: 4}


def main() -> int:
    try:
        state = json.loads(Path(sys.argv[1]).read_text("utf-8"))
        waiting = awaited(state)
    except (FileNotFoundError, KeyError):
        # Records of a previous start alone are no state yet: container.py leaves no more of it.
        waiting = "the controller has not started"
    if waiting is not None:
        print(waiting)  # noqa: T201 - the probe's event shows it
    return 0 if waiting is None else 1


def awaited(state: Mapping[str, Any]) -> str | None:
    """What is waited for, in a controller's state; None when it is all over.

    Without a first sync there is nothing to wait for but what the volume already held.
    """
    rows, controller = state["endpoints"], state["controller"]
    if not controller["triton"]["ready"]:
        return TRITON_AWAY
    if controller["last_sync"] is None and not rows:
        return "no endpoints have been read yet"
    bare = not any(row["ready"] for row in rows)
    waiting = [row for row in rows if not row["ready"] and _is_awaited(row, bare)]
    if not waiting:
        return None
    failed = (f" ({row['endpoint']}: {row['reason']})" for row in waiting if row["failure"])
    return f"not loaded yet: {', '.join(row['endpoint'] for row in waiting)}{next(failed, '')}"


def _is_awaited(row: Mapping[str, Any], bare: bool) -> bool:
    """Whether it is on its way, or failed too seldom to be given up; `bare`: nothing is loaded.

    What is no endpoint and only told of has no failure.
    """
    if row["reason"] in _UNDER_WAY:
        return True
    failure = row["failure"]
    return failure is not None and (bare or row["tries"] < _TRIED.get(failure, 0))


if __name__ == "__main__":
    sys.exit(main())
