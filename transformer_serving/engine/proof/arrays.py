"""Arrays as JSON: {"dtype", "shape", "base64"}, little-endian, read without trusting a size.

Tested by tests/engine/proof/test_calls.py.
"""

from __future__ import annotations

import base64
import binascii
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields

Array = NDArray[Any]

# Token ids are kept as narrow as they fit, which is most of a parity set's size.
_WHOLE = ("uint8", "uint16", "int32")
_DTYPES = {"uint8": "<u1", "uint16": "<u2", "int32": "<i4", "float32": "<f4"}
_MOST_AXES = 3
MOST_BYTES = 1 << 26


def narrowed(array: Array) -> Array:
    """Whole numbers in the narrowest type that holds them all. Raises ContractError without one."""
    for name in _WHOLE:
        limits = np.iinfo(name)
        if array.size == 0 or (limits.min <= array.min() and array.max() <= limits.max):
            return array.astype(name)
    raise ContractError(f"a value is larger than {np.iinfo('int32').max}")


def written(array: Array) -> dict[str, Any]:
    """The JSON value of an array of one of the known types."""
    raw = np.ascontiguousarray(array, _DTYPES[array.dtype.name]).tobytes()
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "base64": base64.b64encode(raw).decode("ascii"),
    }


def read_array(fields: Fields) -> Array:
    """The array of a JSON value. Raises ContractError naming field, limit and got."""
    dtype = np.dtype(_DTYPES[fields.choice("dtype", tuple(_DTYPES))])
    shape = _shape(fields)
    size = prod(shape) * dtype.itemsize
    if size > MOST_BYTES:
        raise ContractError(
            f"{fields.where}: field 'shape' must be of at most {MOST_BYTES} bytes, got {size}"
        )
    text = fields.take("base64", str)
    if len(text) != -(-size // 3) * 4:
        raise ContractError(
            f"{fields.where}: field 'base64' must have {-(-size // 3) * 4} characters for its "
            f"shape, got {len(text)}"
        )
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ContractError(f"{fields.where}: field 'base64' is not base64") from None
    if len(raw) != size:
        raise ContractError(
            f"{fields.where}: field 'base64' must hold {size} bytes, got {len(raw)}"
        )
    array = np.frombuffer(raw, dtype).reshape(shape)
    if not np.isfinite(array).all():
        raise ContractError(f"{fields.where}: field 'base64' holds a value that is no number")
    return array


def _shape(fields: Fields) -> tuple[int, ...]:
    shape = fields.take("shape", list)
    if not 1 <= len(shape) <= _MOST_AXES or not all(
        type(size) is int and 0 <= size <= MOST_BYTES for size in shape
    ):
        raise ContractError(
            f"{fields.where}: field 'shape' must be 1 to {_MOST_AXES} sizes of at most {MOST_BYTES}"
        )
    return tuple(shape)
