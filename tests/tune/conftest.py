"""Small bundles to tune."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stack.small_bundles import Parts, write_small
from transformer_serving.desk.bundle.folder import Bundle


@pytest.fixture
def small(tmp_path: Path) -> Bundle:
    """With a parity set, its lengths 8, 16 and 32."""
    return write_small(tmp_path / "small", Parts(parity=True))
