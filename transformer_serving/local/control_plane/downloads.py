"""Sending a stored file as a stream, whole or one range of it."""

import re
from collections.abc import Iterator
from email.utils import formatdate

from starlette.responses import Response, StreamingResponse

from .errors import ApiError, Failure
from .files import StoredFile

_READ_SIZE = 1024 * 1024
_RANGE = re.compile(r"^bytes=(\d*)-(\d*)$")


def file_response(stored: StoredFile, wanted_range: str, head: bool) -> Response:
    span = _span(wanted_range, stored.size)
    start, end = span or (0, stored.size)
    headers = {
        "accept-ranges": "bytes",
        "content-length": str(end - start),
        "last-modified": formatdate(stored.modified, usegmt=True),
    }
    if span:
        headers["content-range"] = f"bytes {start}-{end - 1}/{stored.size}"
    if head:
        stored.content.close()
        return Response(None, headers=headers, media_type="application/octet-stream")
    return StreamingResponse(
        _chunks(stored, start, end),
        status_code=206 if span else 200,
        headers=headers,
        media_type="application/octet-stream",
    )


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """First and past-the-last byte of a single range; other forms mean the whole file."""
    matched = _RANGE.match(wanted.strip())
    if matched is None or matched[1] == matched[2] == "":
        return None
    if matched[1] == "":
        start, end = max(0, size - int(matched[2])), size
    else:
        start = int(matched[1])
        end = min(size, int(matched[2]) + 1) if matched[2] else size
    if start >= end:
        raise ApiError(Failure.RANGE, f"the file has {size} bytes", {"size": size})
    return start, end


def _chunks(stored: StoredFile, start: int, end: int) -> Iterator[bytes]:
    """Read in a thread. A plain generator: it cannot be closed while a thread is inside it.

    Were the file closed under a read, because the client left, that read could go to the next
    file opened, which takes the same descriptor, and leave its reader with nothing.
    """
    with stored.content as content:
        content.seek(start)
        left = end - start
        while left:
            chunk = content.read(min(left, _READ_SIZE))
            if not chunk:
                return
            left -= len(chunk)
            yield chunk
