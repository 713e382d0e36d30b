"""What a run of `tune` that was killed left: its own stack, which would slow whatever comes next.

Tested by tests/tune/test_killed_run.py and tests/stack/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_serving.desk.file_lock import taken
from transformer_serving.desk.local.leftovers import has_leftovers
from transformer_serving.desk.local.stack import stop


@contextmanager
def only_run(state: Path) -> Iterator[bool]:
    """Whether no other run works with the state's folder, nor will as long as the block runs."""
    with (state / "tune.lock").open("w") as lock:
        yield taken(lock)


def work_folder(state: Path) -> Path:
    return state / "tune"


def own_state(state: Path) -> Path:
    """The state folder of a run's own stack."""
    return work_folder(state) / "stack"


def end_what_is_left(state: Path) -> bool:
    """End it, unless another run is at it; whether anything ran. Raises Failure for a stack of
    somebody else's."""
    left = own_state(state)
    if not left.is_dir() or not has_leftovers(left):
        return False
    with only_run(state) as ours:
        if ours:
            stop(left, lambda _: None)
        return ours
