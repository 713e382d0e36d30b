"""This server's own address inside documents: stored without the name that the caller used.

A model uploaded from the host names http://127.0.0.1:8008, which inside a container is the
container. So what a caller writes with the address it called is stored without it, and every
caller reads it with the address that it calls itself.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

# No address that could be meant: it is never resolved.
_OWN = b"transformer-serving-own://files/"
_HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d+)?|\[[0-9A-Fa-f:]+\](:\d+)?")


def without_own(body: bytes, host: str) -> bytes:
    """A request's body as it is stored; `host` is the request's Host header."""
    return body.replace(_address(host), _OWN) if _HOST.fullmatch(host) else body


def with_own(content: bytes, host: str) -> bytes:
    """An answer as this caller can use it."""
    return content.replace(_OWN, _address(host)) if _HOST.fullmatch(host) else content


def own_path(url: str, host: str) -> str | None:
    """The path in this server's file store; None for an address that is not this server's.

    A document may name the host, too.
    """
    parts = urlsplit(url)
    own = url.startswith(_OWN.decode()) or (
        parts.scheme in ("http", "https") and parts.netloc == host
    )
    return unquote(parts.path) if own else None


def _address(host: str) -> bytes:
    return f"http://{host}/".encode()
