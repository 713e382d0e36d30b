"""Addresses of files as a log, a message or a status has them: without what lets anybody in.

Tested by tests/contract/test_addresses.py.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)


def shown_address(address: str) -> str:
    """Without a name and a password before its host, and without its query, which may be signed."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "an address that cannot be read"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return bare.geturl()


def shown_addresses(text: str) -> str:
    """Somebody else's words, with each address in them as `shown_address` has it."""
    return _ADDRESS.sub(lambda found: shown_address(found[0]), text)
