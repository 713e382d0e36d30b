"""`first_loads STATE`: ends with 0 once every endpoint's model has been loaded or refused, else 1.

A pod's startup probe: Triton itself is ready with no model at all, and a rollout that counted on
that would end the pod that serves. An endpoint that cannot be loaded holds nothing up: it would
not be loaded in the pod before either. One whose model could not be fetched for now, or that lost
its Triton, is waited for: the pod before may have it. Not for ever where another one is loaded;
where none is, the pod has nothing that would make up for the one before.
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
    patient = not any(row["ready"] for row in rows)
    waiting = [row["endpoint"] for row in rows if not row["ready"] and _passes(row, patient)]
    return f"not loaded yet: {', '.join(waiting)}" if waiting else None


def _passes(row: Mapping[str, Any], patient: bool) -> bool:
    """Whether it may come by itself, after however many tries for who is `patient`; what an older
    controller wrote has no kind."""
    if row["reason"] in _UNDER_WAY:
        return True
    most = _TRIED.get(row.get("failure") or "", 0)
    return most > 0 and (patient or int(row.get("tries", 1)) < most)


if __name__ == "__main__":
    sys.exit(main())
