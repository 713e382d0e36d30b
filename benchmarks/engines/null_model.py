"""A Triton model that answers zeros at once: what is left is the cost of everything around it.

It takes the place of our backends' model.py, so that the same bundles, configurations and versions
are served; only the engine is gone. Arrays cross by DLPack, as in the real backends.
"""

import ctypes
import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_NUMPY = {"TYPE_FP32": np.float32, "TYPE_FP16": np.float16, "TYPE_INT32": np.int32,
          "TYPE_INT64": np.int64}  # fmt: skip
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._batched = int(config.get("max_batch_size") or 0) > 0
        self._outputs = [
            (row["name"], _NUMPY[row["data_type"]], [int(size) for size in row["dims"]])
            for row in config["output"]
        ]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request.inputs()[0].shape()) for request in requests]

    def _answer(self, shape: list[int]) -> Any:
        """Zeros as wide as configured; an axis of any size is as long as the input has it."""
        texts, tokens = shape[0], shape[-1]
        tensors = []
        for name, dtype, dims in self._outputs:
            head = [texts] if self._batched else []
            free = [tokens if self._batched or index else texts for index in range(len(dims))]
            sizes = [n if size == -1 else size for size, n in zip(dims, free, strict=True)]
            capsule = np.zeros(head + sizes, dtype).__dlpack__()
            tensors.append(pb_utils.Tensor.from_dlpack(name, capsule))
            # As in the real backends: numpy must not warn about a capsule that the stub took.
            _set_name(capsule, b"used_dltensor")
        return pb_utils.InferenceResponse(output_tensors=tensors)
