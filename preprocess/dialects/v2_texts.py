"""An Open Inference Protocol request that is one tensor of texts, as most are, read in one step.

Whatever is unusual in it is left to v2_tensors.py, which reads and refuses every request; of what
is read here it would read the same.

Tested by tests/preprocess/test_v2.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

# Before each element of a BYTES tensor: its length, little-endian.
_LENGTH_BYTES = 4
_SIZE = "binary_data_size"
# The types of what a list may hold.
_SIZES, _TEXTS = {int}, {str}


def one_tensor(
    body: Mapping[str, Any], binary: bytes, names: Collection[str], most: int
) -> tuple[str, list[str]] | None:
    """The tensor's name, of `names`, and its texts, at most `most`; None where the request must be
    read whole.
    """
    rows = body.get("inputs")
    row = rows[0] if type(rows) is list and len(rows) == 1 else None
    if type(row) is not dict or row.get("datatype") != "BYTES":
        return None
    name, shape, parameters = row.get("name"), row.get("shape"), row.get("parameters")
    if type(name) is not str or name not in names or type(shape) is not list or not shape:
        return None
    count = shape[0]
    if set(map(type, shape)) != _SIZES or not 0 < count <= most or shape[1:] not in ([], [1]):
        return None
    if not parameters and parameters in (None, {}):
        texts = None if binary else row.get("data")
        if type(texts) is not list or len(texts) != count or set(map(type, texts)) != _TEXTS:
            return None
        return name, texts
    if type(parameters) is not dict or len(parameters) != 1 or "data" in row:
        return None
    size = parameters.get(_SIZE)
    if type(size) is not int or size != len(binary):
        return None
    found = _from_bytes(binary, count)
    return None if found is None else (name, found)


def _from_bytes(raw: bytes, count: int) -> list[str] | None:
    texts = []
    at = 0
    try:
        for _ in range(count):
            start = at + _LENGTH_BYTES
            at = start + int.from_bytes(raw[at:start], "little")
            texts.append(raw[start:at].decode())
    except UnicodeDecodeError:
        return None
    # What is cut off ends before it says.
    return texts if at == len(raw) else None
