"""How long a request has, seen without parsing its body: what turning a crowd away needs of it.

Tested by tests/preprocess/test_admission.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS

# Bytes of a body that are looked through.
_SHORT = 65_536
_TIMEOUT = b'"timeout_ms"'
# As a key: within a JSON string a quote has a backslash before it.
_VALUE = re.compile(_TIMEOUT + rb"\s*:\s*([1-9]\d{0,7})\s*[,}]")
# V2's own name for it, in microseconds.
_V2_TIMEOUT = b'"timeout"'
# What a body of V2 holds, at a path that does not tell.
_V2 = b'"datatype"'


class Glance(NamedTuple):
    """`timeout_s` is None where the body names none."""

    timeout_s: float | None


def glance_at(raw: bytes, *, dialect_is_known: bool) -> Glance | None:
    """None of a body that must be read for it, or for the dialect of its refusal."""
    if len(raw) > _SHORT or _V2_TIMEOUT in raw or (_V2 in raw and not dialect_is_known):
        return None
    named = raw.count(_TIMEOUT)
    if not named:
        return Glance(None)
    values = _VALUE.findall(raw)
    if named > 1 or not values or int(values[0]) > MAX_TIMEOUT_MS:
        return None
    return Glance(int(values[0]) / 1000)


class Reach(NamedTuple):
    """For whom else a refusal is true: in the next `seconds`, for all who have no more time.

    The gateway gives it again to those, without asking; `tell` takes how many they were. After that
    it asks for one of them at a time, and until it has an answer, but no longer than `longest_s`
    after this one, the others get it too.
    """

    glance: Glance
    dialect_is_known: bool
    seconds: float
    tell: Callable[[int], None]
    longest_s: float = 0.0

    def holds_for(self, raw: bytes) -> bool:
        """Of a body in the same dialect; from whatever thread."""
        other = glance_at(raw, dialect_is_known=self.dialect_is_known)
        if other is None:
            return False
        mine, theirs = self.glance.timeout_s, other.timeout_s
        if mine is None or theirs is None:
            return mine is theirs
        return theirs <= mine
