"""W3C Trace Context: which trace a request belongs to, as its headers say it.

Headers that are not as the recommendation has them count as none.

Tested by tests/contract/test_trace_context.py.
"""

from __future__ import annotations

import os
import random
import re
from typing import NamedTuple

# ClearML's SDK seeds the module's own generator with one number in every process: all workers would
# make the same ids, and trace the same requests.
chance = random.Random()
os.register_at_fork(after_in_child=chance.seed)

HEADER, STATE_HEADER = "traceparent", "tracestate"
# Version, trace, parent, flags. One above 00 may have more behind them, after a dash.
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?",
    re.DOTALL,
)
_SAMPLED = 1
# A member of the state: a vendor's key, of a tenant of it too, and what that vendor put there.
_MEMBER = re.compile(
    r"([a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)
_MOST_MEMBERS = 32
# What has to be handed on at least, and what we hand on at most.
_MOST_CHARACTERS = 512


class TraceContext(NamedTuple):
    """`span_id` is that of who calls; both ids are in hexadecimal digits."""

    trace_id: str
    span_id: str
    sampled: bool


def read_traceparent(text: str | None) -> TraceContext | None:
    """None for what is no traceparent."""
    found = None if text is None else _PARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "00" and more is not None:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def read_tracestate(text: str) -> str:
    """The state as it is handed on; empty where it is no state, or a longer one than we carry."""
    if len(text) > _MOST_CHARACTERS:
        return ""
    found = [_MEMBER.fullmatch(part.strip(" \t")) for part in text.split(",") if part.strip(" \t")]
    keys = [member[1] for member in found if member is not None]
    if len(keys) < len(found) or len(set(keys)) < len(keys) or len(keys) > _MOST_MEMBERS:
        return ""
    return ",".join(member[0] for member in found if member is not None)


def write_traceparent(context: TraceContext) -> str:
    return f"00-{context.trace_id}-{context.span_id}-{'01' if context.sampled else '00'}"


def new_trace_id() -> str:
    return f"{chance.getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    return f"{chance.getrandbits(64) or 1:016x}"
