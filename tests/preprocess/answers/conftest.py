"""The largest differences that a run has seen are shown at its end (with -s)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.preprocess.answers.comparison import LARGEST


@pytest.fixture(autouse=True, scope="session")
def _largest_differences() -> Iterator[None]:
    yield
    print(*(f"\n{task}: {LARGEST[task]:.2e}" for task in LARGEST))  # noqa: T201
