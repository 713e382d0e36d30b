"""The 63 bits of a request's seed as the 32 that openvino_genai's generator takes.

Tested by tests/engine/test_generation_calls.py.
"""

from __future__ import annotations

_BITS = 32
# The golden ratio's: what is far from 0 both ways keeps seeds apart that follow each other across
# a multiple of 2**32, as the sequences of one request have them.
_STEP = 0x9E3779B9


def folded(seed: int) -> int:
    """Itself below 2**32; above, the high bits decide too, which the generator would leave out."""
    high, low = divmod(seed, 1 << _BITS)
    return (low + high * _STEP) % (1 << _BITS)
