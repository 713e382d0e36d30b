"""The bytes of a body while it comes.

Tested by tests/gateway/test_body.py.
"""

from __future__ import annotations

import contextlib
import mmap

# Beyond it a body has pages of its own.
_SMALL = 65_536


class Buffer:
    """Grows to at most `most` bytes; what it held is given back when it is cleared.

    Large ones are pages that go back to the system then. malloc keeps what many bodies that grow
    side by side leave behind: 80 of 2 MB, of which 64 MB were ever there at once, cost a worker
    200 MB more than that.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._small = bytearray()
        self._pages: mmap.mmap | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, piece: bytes) -> None:
        size = self._size + len(piece)
        if self._pages is None and size > _SMALL:
            self._pages = _pages(self._most)
            self._pages[: self._size] = bytes(self._small)
            self._small = bytearray()
        if self._pages is None:
            self._small += piece
        else:
            self._pages[self._size : size] = piece
        self._size = size

    def whole(self) -> bytes:
        return bytes(self._small) if self._pages is None else self._pages[: self._size]

    def clear(self) -> None:
        self._small = bytearray()
        self._size = 0
        if self._pages is not None:
            self._pages.close()
            self._pages = None


def _pages(size: int) -> mmap.mmap:
    """Memory that is there from when it is written on."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A huge page would be there as a whole.
    with contextlib.suppress(OSError):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages
