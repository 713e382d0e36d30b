"""A backend whose device fails after as many calls as the model's file says; the rest of it is that
of every text model of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transformer_serving.engine.backends.executor import Graph, RequestFailure, Runtime
from transformer_serving.engine.backends.grouping import Arrays
from transformer_serving.engine.backends.model_settings import (
    DeviceFailed,
    ModelSettings,
    TensorSpec,
)
from transformer_serving.engine.backends.triton_model import TextModel

SAID = "the GPU failed (CUDA error: no kernel image is available)"


class FailingDevice:
    def __init__(self, calls: int) -> None:
        self._left = calls
        axes = (-1, -1)
        names = ("input_ids", "attention_mask")
        self.graph = Graph(
            tuple(TensorSpec(name, "int32", axes) for name in names),
            (TensorSpec("output", "float32", (-1, 1)),),
        )

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        self._left -= 1
        if self._left < 0:
            raise DeviceFailed(SAID)
        return [{"output": one["attention_mask"][:, :1].astype(np.float32)} for one in batches]


class TritonPythonModel(TextModel):
    """What Triton's stub looks for."""

    file_names = ("calls.txt",)

    @staticmethod
    def load(path: Path, settings: ModelSettings) -> Runtime:
        return FailingDevice(int(path.read_text()))
