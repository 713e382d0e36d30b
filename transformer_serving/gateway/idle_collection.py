"""A full garbage collection while the worker has nothing else to do.

Python begins one only once as many objects as a quarter of all have come to stay, which takes a
worker that is seldom asked hours or days. So long it would keep what an update leaves in rings: the
code before it, with its tokenizer.

Tested by tests/preprocess/test_garbage.py and tests/gateway/test_front_door.py.
"""

from __future__ import annotations

import gc
import math
import time


def collect_if_due() -> None:
    """Where a listener of a bundle's own (preprocess/garbage.py) waits to look at everything.

    Some tenths of a second in which nobody is answered.
    """
    now = time.monotonic()
    # Found by what it has, whichever version of the code listens.
    if any(getattr(listener, "everything_at", math.inf) <= now for listener in gc.callbacks):
        gc.collect()
