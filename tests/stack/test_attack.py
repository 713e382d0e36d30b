"""The short form of `make attack`, on a stack of its own: statuses, counts and memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.__main__ import chosen
from tests.attack.cases import Case
from tests.attack.ground import Ground, opened

pytestmark = [pytest.mark.long, pytest.mark.spare]


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with opened(short=True) as ground:
        yield ground


@pytest.mark.parametrize("case", chosen(short=True), ids=lambda case: case.name)
def test_it_holds(ground: Ground, case: Case) -> None:
    seen = case.run(ground)
    print(seen)  # noqa: T201
    if seen.holds is None:
        pytest.skip(seen.text)
    assert seen.holds, f"{seen}; must hold: {case.must}"
