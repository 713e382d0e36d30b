"""x-request-id: the caller's own where it is sane, else one made here.

Tested by tests/gateway/test_limits.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from random import Random

HEADER = b"x-request-id"

# An id goes into headers and logs as it is, so nothing but printable ASCII, and not long.
_SANE = re.compile(rb"[\x20-\x7e]{1,128}")

# Seeded by the system, and not the module's own, which clearml seeds with a constant. An id is no
# secret; asking the system for each lets go of Python's lock, and another thread takes it.
_ids = Random()
os.register_at_fork(after_in_child=_ids.seed)


def request_id(headers: Mapping[bytes, bytes]) -> bytes:
    given = headers.get(HEADER)
    if given is not None and _SANE.fullmatch(given):
        return given
    return b"%032x" % _ids.getrandbits(128)
