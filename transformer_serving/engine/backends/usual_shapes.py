"""Which shapes of calls come so often that a recording of them pays.

Tested by tests/engine/test_torch_text.py.
"""

from __future__ import annotations

import math
from collections import Counter

# The shapes of a call's inputs.
Shape = tuple[tuple[int, ...], ...]

# A recording takes tens of milliseconds and memory, once for each shape.
TIMES = 3
MOST = 64
# With more tokens the kernels take longer than it takes to start them (docs/gpu.md).
MOST_TOKENS = 16384
# Shapes that are counted; a service that sees more of them has no usual ones.
_COUNTED = 4096


class UsualShapes:
    """Counts shapes; each of the first MOST that came TIMES times is to be recorded, once."""

    def __init__(self) -> None:
        self._seen: Counter[Shape] = Counter()
        self._left = MOST

    def record(self, shape: Shape) -> bool:
        """Count the shape; whether it is to be recorded now."""
        if not self._left or math.prod(shape[0]) > MOST_TOKENS:
            return False
        if shape not in self._seen and len(self._seen) >= _COUNTED:
            return False
        self._seen[shape] += 1
        if self._seen[shape] != TIMES:
            return False
        self._left -= 1
        return True

    def give_up(self) -> None:
        """Nothing is recorded from here on."""
        self._left = 0
