"""The files of the pages, which hold no endpoint's name and nothing from elsewhere.

Tested by tests/gateway/test_page.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from transformer_serving.gateway.asgi import Scope, Send, path_of

_FOLDER = Path(__file__).parent
# Of each path its file; what is beside these is nobody's.
FILES = {
    "/": "index.html",
    "/docs": "docs.html",
    # As FastAPI has it too.
    "/redoc": "docs.html",
    **{
        f"/page/{name}": name
        for name in (
            "style.css",
            "script.js",
            "docs.js",
            "door.js",
            "code.js",
            "events.js",
            "icon.svg",
        )  # fmt: skip
    },
}
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"object-src 'none'"
)
_ALWAYS = (
    # Kept, and asked for again each time: a newer kit's page is there at once.
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class PageFile(NamedTuple):
    """What is sent of one file; to HEAD without its body."""

    body: bytes
    media_type: bytes
    etag: bytes
    is_head: bool = False

    async def answer(self, headers: Mapping[bytes, bytes], send: Send) -> None:
        """304 to who has it already."""
        known = self.etag in headers.get(b"if-none-match", b"")
        own = [(b"etag", self.etag), *_ALWAYS]
        if not known:
            own.append((b"content-type", self.media_type))
            own.append((b"content-length", b"%d" % len(self.body)))
        body = b"" if known or self.is_head else self.body
        status = 304 if known else 200
        await send({"type": "http.response.start", "status": status, "headers": own})
        await send({"type": "http.response.body", "body": body})


class PageFiles:
    """All of them, read once; none where the pages are not shown."""

    def __init__(self, *, shown: bool) -> None:
        self._files = {path: _read(name) for path, name in FILES.items()} if shown else {}

    def file(self, scope: Scope) -> PageFile | None:
        """What a path has; None where it has none, or is not asked with GET or HEAD."""
        file = self._files.get(path_of(scope))
        if file is None or scope["method"] == "GET":
            return file
        return file._replace(is_head=True) if scope["method"] == "HEAD" else None


def _read(name: str) -> PageFile:
    body = (_FOLDER / name).read_bytes()
    etag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return PageFile(body, _TYPES[Path(name).suffix], etag)
