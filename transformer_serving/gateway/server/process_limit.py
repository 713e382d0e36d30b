"""Whether a container may have as many threads as the workers that are asked for need."""

from __future__ import annotations

from pathlib import Path

# Of the control groups' second version, and of its first.
LIMITS = (Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids/pids.max"))
# The limit counts threads. A worker starts with 25, and comes to 60 by its endpoints and by what it
# is asked: one that then gets no thread answers with faults, and a dead one is not replaced.
THREADS = 60


def refuse_workers_without_threads(workers: int) -> None:
    """Raises ValueError naming both, and how many fit."""
    allowed = _allowed()
    if allowed is None or workers * THREADS <= allowed:
        return
    fewer = f"ask for {allowed // THREADS} at most (CLEARML_SERVING_NUM_PROCESS), or "
    raise ValueError(
        f"{workers} workers are more than this container's limit of {allowed} threads holds: a "
        f"worker may come to {THREADS}; {fewer if allowed >= THREADS else ''}allow "
        f"{workers * THREADS} (INFERENCE_PIDS of compose)"
    )


def _allowed() -> int | None:
    """None where nobody limits them."""
    for path in LIMITS:
        try:
            return int(path.read_text("ascii"))
        except (OSError, ValueError):
            # Not there, or "max".
            continue
    return None
