"""Addresses of files as a log, a message or a status has them: without what lets anybody in.

Tested by tests/contract/test_addresses.py.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from transformer_serving.contract.error_line import MOST, one_line

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
# Of an address that is named without its scheme and host, as urllib3 does.
_QUERY = re.compile(r"\?[^\s'\"<>?=]+=[^\s'\"<>]*")


def shown_address(address: str) -> str:
    """Without a name and a password before its host, and without its query, which may be signed.

    A file of this machine is shown as it is, and `#` is part of a name in stores that are no web
    servers.
    """
    is_web = address[:4].lower() == "http"
    try:
        parts = urlsplit(address, allow_fragments=is_web)
    except ValueError:
        return "an address that cannot be read"
    if parts.scheme == "file" or not (parts.scheme or "//" in address):
        return address
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return bare.geturl()


def shown_addresses(text: str) -> str:
    """Somebody else's words, with each address in them as `shown_address` has it."""
    return _QUERY.sub("", _ADDRESS.sub(lambda found: shown_address(found[0]), text))


def shown_error(error: BaseException) -> str:
    """Its type, and its words where it has any, as one line with addresses of that kind."""
    words = one_line(shown_addresses(str(error)), MOST)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
