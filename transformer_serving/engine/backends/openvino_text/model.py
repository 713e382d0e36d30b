"""Triton backend `openvino_text`: a text model on OpenVINO's CPU plugin.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

from pathlib import Path

from transformer_serving.engine.backends.executor import Runtime
from transformer_serving.engine.backends.model_settings import ModelSettings
from transformer_serving.engine.backends.triton_model import TextModel


class TritonPythonModel(TextModel):
    """What Triton's stub looks for."""

    file_names = ("model.xml", "model.onnx")

    @staticmethod
    def load(path: Path, settings: ModelSettings) -> Runtime:
        # Late: each load starts a second stub that only completes the configuration.
        from transformer_serving.engine.backends.openvino_runtime import OpenVinoRuntime

        return OpenVinoRuntime(path, settings)
