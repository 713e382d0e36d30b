"""PyTorch: the exported program, and that opened on this machine's GPU or else its CPU.

Tested by tests/builders/test_torch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_serving.contract.manifest import TORCH
from transformer_serving.contract.torch_program.program import WEIGHTS
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.failure import PrecisionRefused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from preprocess.tensors import Tensor
    from transformer_serving.desk.builders.files import Call
    from transformer_serving.desk.source.model import ModelSource


def fastest_precision() -> str:
    """What this machine's GPU computes well; on a CPU fp32, whatever its servers have."""
    import torch

    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def program_of(source: ModelSource, precision: str, folder: Path) -> Path:
    from transformer_serving.desk.export.program import export_program

    return export_program(source, precision, folder)


def build_torch(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    """`graph` is what `program_of` has made: the engine loads it as it is, at any shape."""
    return EngineFiles(TORCH, precision, (graph, graph.with_name(WEIGHTS)))


def open_torch(files: EngineFiles) -> Call:
    import torch

    from transformer_serving.engine.backends.torch_runtime import open_calls

    opened = open_calls(files.files[0], 0 if torch.cuda.is_available() else None)
    names = [tensor.name for tensor in opened.program.program.inputs]

    def call(tensors: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        given = {tensor.name: tensor.array for tensor in tensors}
        [found] = opened.calls.run([[given[name] for name in names]])
        if isinstance(found, Exception):
            raise PrecisionRefused(
                f"the exported program fails on a request ({type(found).__name__}: {found}); "
                "convert with another --engine"
            ) from found
        return found

    return call
