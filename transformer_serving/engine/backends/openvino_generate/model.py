"""Triton backend `openvino_generate`: a language model on OpenVINO's CPU plugin, streamed.

Tested by tests/engine/test_openvino_generate.py.
"""

from __future__ import annotations

from pathlib import Path

from transformer_serving.engine.backends.generation.sequences import Pipeline
from transformer_serving.engine.backends.generation.settings import GenerationSettings
from transformer_serving.engine.backends.generation.triton_streams import LanguageModel


class TritonPythonModel(LanguageModel):
    """What Triton's stub looks for."""

    @staticmethod
    def load(folder: Path, settings: GenerationSettings) -> Pipeline:
        # Late: each load starts a second stub that only completes the configuration.
        from transformer_serving.engine.backends.generation.pipeline import OpenVinoPipeline

        return OpenVinoPipeline(folder, settings)
