"""The short run of the fuzz, with a fixed seed; the long one is `make fuzz`."""

from __future__ import annotations

from tests.gateway import fuzzing
from tests.gateway.text_serving import TextServing


def test_hostile_requests(text_serving: TextServing) -> None:
    statuses = fuzzing.run(text_serving, seed=20261121, count=2000)
    assert min(statuses[200], statuses[400], statuses[413]) > 20
