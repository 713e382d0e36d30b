"""Many changes: nothing is lost, nothing grows; `make reliability` has many more of both."""

from __future__ import annotations

import pytest

from tests.stack.changes import random_changes
from tests.stack.conftest import Stack
from tests.stack.desk import Registered
from tests.stack.editor import Editor
from tests.stack.many import many_endpoints

pytestmark = pytest.mark.long

SEED = 11


def test_random_changes_with_faults(
    cleared: Stack, edit: Editor, registered: list[Registered]
) -> None:
    done = random_changes(cleared, edit, registered, SEED, changes=24, faults=3, exactly=False)
    assert sum(done.faults.values())
    assert done.served


def test_changes_leave_threads_descriptors_and_memory_flat(
    cleared: Stack, edit: Editor, registered: list[Registered]
) -> None:
    grown = many_endpoints(cleared, edit, registered, SEED, endpoints=4, changes=4)
    assert grown.before.shared == grown.after.shared, grown
    assert abs(grown.after.threads - grown.before.threads) <= 8, grown
    assert abs(grown.after.descriptors - grown.before.descriptors) <= 16, grown
    # The first new bundles cost code and arenas; what many cost is the long run's question.
    assert grown.after.worker_mb - grown.before.worker_mb < 64, grown
