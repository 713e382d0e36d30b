"""What the soak of streams calls growth: `make soak-streams` runs it."""

from __future__ import annotations

import math

import pytest

from tests.stack.stream_soak import LIMIT_MIB_A_MINUTE, Growth


@pytest.mark.parametrize("leak", [0.0, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("learned", [0.0, 25.0])
def test_what_is_lost_with_each_stream_is_told_from_what_is_learned(
    learned: float, leak: float
) -> None:
    seen = Growth()
    for look in range(1, 300):
        minutes = look / 30
        noise = 2 * math.sin(7 * look)
        seen.add(minutes, 400 + learned * math.log(minutes) + leak * minutes + noise)
    assert seen.beside_learning() == pytest.approx(leak, abs=0.5)
    assert (seen.beside_learning() >= LIMIT_MIB_A_MINUTE) == (leak > 3)
