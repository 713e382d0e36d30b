"""Triton backend `torch_text`: an exported program on PyTorch, on a GPU where Triton gives one.

Tested by tests/engine/test_torch_text.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from transformer_serving.contract.torch_program.program import GRAPH, PACKAGES
from transformer_serving.engine.backends.executor import Runtime
from transformer_serving.engine.backends.model_settings import ModelError, ModelSettings
from transformer_serving.engine.backends.triton_model import TextModel


class TritonPythonModel(TextModel):
    """What Triton's stub looks for."""

    file_names = (GRAPH,)

    @staticmethod
    def load(path: Path, settings: ModelSettings) -> Runtime:
        # Read when torch is imported: its threads sleep while they wait for each other. They would
        # turn, and beside a gateway on the same cores take many times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Late: each load starts a second stub that only completes the configuration.
        try:
            from transformer_serving.engine.backends.torch_runtime import TorchRuntime
        except ImportError as error:
            raise ModelError(
                f"package '{error.name}' is missing where Triton runs; install it there: "
                f"pip install {PACKAGES}"
            ) from None
        return TorchRuntime(path, settings)
