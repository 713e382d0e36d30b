"""x-request-id: the caller's own where it is sane, else one made here.

Tested by tests/gateway/test_limits.py.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

HEADER = b"x-request-id"

# An id goes into headers and logs as it is, so nothing but printable ASCII, and not long.
_SANE = re.compile(rb"[\x20-\x7e]{1,128}")


def request_id(headers: Mapping[bytes, bytes]) -> bytes:
    given = headers.get(HEADER)
    if given is not None and _SANE.fullmatch(given):
        return given
    return uuid.uuid4().hex.encode()
