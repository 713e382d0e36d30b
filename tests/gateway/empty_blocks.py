"""Packed bodies that are nearly all of deflate blocks that hold nothing, and cost what they can."""

from __future__ import annotations

import zlib

# A block of dynamic tables (RFC 1951, 3.2.7): each of value and bits, from the lowest bit on. A
# literal 256, which ends it, and one distance, after 138 and 118 lengths of 0.
_BLOCK = (
    *((0, 1), (2, 2), (0, 5), (0, 5), (14, 4)),
    *((1 if code in (2, 17) else 0, 3) for code in range(18)),
    *((1, 1), (127, 7), (1, 1), (107, 7), (0, 1), (0, 1), (0, 1)),
)


def of_empty_blocks(data: bytes, size: int, wbits: int) -> bytes:
    """`data` after about `size` bytes of such blocks, as gzip (wbits 31) or deflate (15)."""
    bits, length = 0, 0
    for _ in range(8):
        for value, width in _BLOCK:
            bits |= value << length
            length += width
    whole = bits.to_bytes(length // 8, "little")
    packer = zlib.compressobj(wbits=wbits)
    # To the end of a byte, where blocks may be put between.
    head = packer.compress(b"") + packer.flush(zlib.Z_SYNC_FLUSH)
    return head + whole * (size // len(whole)) + packer.compress(data) + packer.flush()
