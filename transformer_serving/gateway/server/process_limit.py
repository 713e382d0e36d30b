"""Whether a container may have as many threads as the workers that are asked for need."""

from __future__ import annotations

from pathlib import Path

# Of the control groups' second version, and of its first.
LIMITS = (Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids/pids.max"))
# The limit counts threads. A worker has 25 to 60, by its endpoints and by what it is asked.
THREADS = 25


def refuse_workers_without_threads(workers: int) -> None:
    """Raises ValueError naming both; else workers would end at their start, again and again."""
    allowed = _allowed()
    if allowed is not None and workers * THREADS > allowed:
        raise ValueError(
            f"{workers} workers are more than this container's limit of {allowed} threads holds: "
            f"a worker has {THREADS} to 60; ask for {max(1, allowed // THREADS)} at most "
            "(CLEARML_SERVING_NUM_PROCESS), or allow more (INFERENCE_PIDS of compose)"
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
