"""JSON as it came, in any encoding that its readers know, and as UTF-8.

Tested by tests/gateway/test_json_body.py and tests/preprocess/test_raw_body.py.
"""

from __future__ import annotations

import json

from transformer_serving.contract.errors import ServingError

_NO_ASCII = 0x80


def as_utf8(raw: bytes) -> bytes:
    """JSON in any encoding that Python's own parser, and with it the host, would know it in; a
    mark at its begin is none of it. Raises ServingError (400).

    Before elements are counted: quotes of other encodings could hide some.
    """
    # JSON of an object begins with two characters of ASCII. In UTF-16 and UTF-32 one of the first
    # two bytes is 0, or they are the mark.
    if len(raw) < 2 or (0 < raw[0] < _NO_ASCII and raw[1]):
        return raw
    encoding = json.detect_encoding(raw)
    if encoding == "utf-8":
        return raw
    try:
        # What is wrong with lone surrogates is said where they are read.
        return raw.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ServingError(
            "malformed_body", f"the body begins as {encoding} and is none; send UTF-8"
        ) from None
