"""Arrays on their way to Triton; runs only inside Triton's stub.

Tensors cross by DLPack. The stub's own numpy conversion was built for numpy 1: under numpy 2 it
reads an item size of zero, so inputs repeat their first value and outputs are empty.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

_TAKEN = b"used_dltensor"
_set_capsule_name = ctypes.pythonapi.PyCapsule_SetName
_set_capsule_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


def triton_tensor(name: str, array: NDArray[Any]) -> Any:
    """The output `name` of a response."""
    capsule = np.ascontiguousarray(array).__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    # The stub marks a capsule as taken in its own way, which numpy does not know: numpy would
    # print a traceback for each output when the capsule goes.
    _set_capsule_name(capsule, _TAKEN)
    return tensor
