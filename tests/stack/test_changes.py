"""Many changes: nothing is lost, nothing grows; `make reliability` has many more of both."""

from __future__ import annotations

from pathlib import Path

from tests.stack.changes import random_changes
from tests.stack.conftest import Stack
from tests.stack.many import many_endpoints

SEED = 11


def test_random_changes_with_faults(cleared: Stack, tmp_path: Path) -> None:
    done = random_changes(cleared, tmp_path, SEED, changes=24, faults=3, exactly=False)
    assert sum(done.faults.values())
    assert done.served


def test_changes_leave_threads_descriptors_and_memory_flat(cleared: Stack, tmp_path: Path) -> None:
    grown = many_endpoints(cleared, tmp_path, SEED, endpoints=6, changes=6)
    assert grown.before.shared == grown.after.shared
    assert abs(grown.after.threads - grown.before.threads) <= 8, grown
    assert abs(grown.after.descriptors - grown.before.descriptors) <= 16, grown
    assert grown.after.worker_mb - grown.before.worker_mb < 30, grown
