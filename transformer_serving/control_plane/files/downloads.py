"""Sending a stored file as a stream, whole or one range of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.files.store import StoredFile

_READ_SIZE = 1024 * 1024
_RANGE = re.compile(r"^bytes=(\d*)-(\d*)$")


class _Download(StreamingResponse):
    """Ends with its file closed, wherever it ends.

    Not left to the end of the generator: where the client left while its socket was full, nobody
    asks the generator for more, and it ends, and its file is closed, when garbage is collected.
    """

    def __init__(self, stored: StoredFile, span: tuple[int, int], **kept: Any) -> None:
        super().__init__(_chunks(stored, *span), **kept)
        self._stored = stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Not here: where the client left in the middle, a thread may still be reading.
            asyncio.get_running_loop().run_in_executor(None, self._stored.close)


def file_response(
    stored: StoredFile, wanted_range: str, head: bool, if_range: str = ""
) -> Response:
    """`if_range`: the range is of the file that has this tag; of another one, all is sent."""
    if if_range.strip() not in ("", stored.tag):
        wanted_range = ""
    try:
        span = _span(wanted_range, stored.size)
    except ApiError:
        stored.close()
        raise
    start, end = span or (0, stored.size)
    headers = {
        "accept-ranges": "bytes",
        "content-length": str(end - start),
        "etag": stored.tag,
        "last-modified": formatdate(stored.modified, usegmt=True),
    }
    if span:
        headers["content-range"] = f"bytes {start}-{end - 1}/{stored.size}"
    if head:
        stored.close()
        return Response(None, headers=headers, media_type="application/octet-stream")
    return _Download(
        stored,
        (start, end),
        status_code=206 if span else 200,
        headers=headers,
        media_type="application/octet-stream",
    )


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """First and past-the-last byte of a single range; other forms mean the whole file."""
    matched = _RANGE.match(wanted.strip())
    if matched is None or matched[1] == matched[2] == "":
        return None
    # int() refuses thousands of digits with an error of its own.
    if max(len(matched[1]), len(matched[2])) > 18:
        raise ApiError(ApiFailure.VALIDATION, "range: a number has at most 18 digits")
    if matched[1] == "":
        start, end = max(0, size - int(matched[2])), size
    else:
        start = int(matched[1])
        end = min(size, int(matched[2]) + 1) if matched[2] else size
    if start >= end:
        raise ApiError(ApiFailure.RANGE, f"the file has {size} bytes", {"size": size})
    return start, end


async def _chunks(stored: StoredFile, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        chunk = await asyncio.to_thread(stored.read, min(end - start, _READ_SIZE), start)
        if not chunk:
            return
        start += len(chunk)
        yield chunk
