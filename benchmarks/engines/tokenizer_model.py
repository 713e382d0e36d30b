"""The tokenizer step of the Triton ensemble: texts in, padded token ids out, by AutoTokenizer.

This is how the templates that put the tokenizer into Triton do it: a Python model of its own in
front of the engine's model. It runs in Triton's stub; BENCH_MODEL names the model's folder.
"""

import ctypes
import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer

_NAMES = ("input_ids", "token_type_ids", "attention_mask")
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(os.environ["BENCH_MODEL"])

    def execute(self, requests: list[Any]) -> list[Any]:
        answers = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
            texts = [row.decode() if isinstance(row, bytes) else str(row) for row in rows]
            tokens = self._tokenizer(texts, padding=True, truncation=True, return_tensors="np")
            tensors = [_tensor(name, tokens[name].astype(np.int32)) for name in _NAMES]
            answers.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return answers


def _tensor(name: str, array: np.ndarray) -> Any:
    capsule = np.ascontiguousarray(array).__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    _set_name(capsule, b"used_dltensor")
    return tensor
