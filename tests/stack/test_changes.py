"""Changes and faults at random: nothing is lost. `make reliability` has more, and what grows."""

from __future__ import annotations

import pytest

from tests.stack.changes import random_changes
from tests.stack.conftest import Stack
from tests.stack.desk import Registered
from tests.stack.editor import Editor

pytestmark = [pytest.mark.long, pytest.mark.spare]

SEED = 11


def test_random_changes_with_faults(
    cleared: Stack, edit: Editor, registered: list[Registered]
) -> None:
    done = random_changes(cleared, edit, registered, SEED, changes=24, faults=3, exactly=False)
    assert sum(done.faults.values())
    assert done.served
