"""Triton backend `onnxruntime` for machines without the native one: same configuration, CPU.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

from pathlib import Path

from transformer_serving.engine.backends.executor import Runtime
from transformer_serving.engine.backends.model_settings import ModelSettings
from transformer_serving.engine.backends.triton_model import TextModel


class TritonPythonModel(TextModel):
    """What Triton's stub looks for."""

    file_names = ("model.onnx", "model.bin")

    @staticmethod
    def load(path: Path, settings: ModelSettings) -> Runtime:
        # Late: each load starts a second stub that only completes the configuration.
        from transformer_serving.engine.backends.onnx_runtime import OnnxRuntime

        return OnnxRuntime(path, settings)
