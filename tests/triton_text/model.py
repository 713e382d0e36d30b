"""A text model that is plain arithmetic, so that every row is known; run by Triton's Python stub.

Output column 0 of a text is the sum of (position + 1) * id over its tokens, modulo a prime; column
1 its number of tokens; the others are 1. A text with the id FAIL fails its whole request, and one
with the id SLOW takes SLOW_S longer.
"""

import ctypes
import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FAIL, SLOW = 5, 6
SLOW_S = 1.0
PRIME = 65521

_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.width = int(config["output"][0]["dims"][0])

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        tensors = {tensor.name(): np.from_dlpack(tensor) for tensor in request.inputs()}
        ids, mask = tensors["input_ids"].astype(np.int64), tensors["attention_mask"]
        if (ids == FAIL).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("a marked token"))
        if (ids == SLOW).any():
            time.sleep(SLOW_S)
        return pb_utils.InferenceResponse([tensor_of(rows(ids, mask, self.width))])


def rows(ids: np.ndarray, mask: np.ndarray, width: int) -> np.ndarray:
    """Padding counts nothing on either side."""
    output = np.ones((len(ids), width), np.float32)
    places = np.cumsum(mask, axis=1)
    output[:, 0] = (ids * mask * places).sum(axis=1) % PRIME
    output[:, 1] = mask.sum(axis=1)
    return output


def tensor_of(array: np.ndarray) -> Any:
    # The stub's own numpy conversion was built for numpy 1.
    capsule = np.ascontiguousarray(array).__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack("output", capsule)
    _set_name(capsule, b"used_dltensor")
    return tensor
