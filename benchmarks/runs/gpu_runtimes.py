"""Engines alone that no backend of ours runs: a TensorRT plan, and ONNX Runtime on CUDA.

In Triton both are native backends of the pinned image.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.servers.process import Unusable
from preprocess.tensors import Tensor
from transformer_serving.engine.backends.executor import Graph, RequestFailure
from transformer_serving.engine.backends.grouping import Arrays
from transformer_serving.engine.backends.model_settings import ModelSettings

CUDA = "CUDAExecutionProvider"
_TYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}


class _OneByOne:
    """`call` takes one call's arrays; the graph is what the bundle's configuration says."""

    def __init__(self, settings: ModelSettings, call: Callable[[Arrays], list[Any]]) -> None:
        self.graph = Graph(settings.inputs, settings.outputs)
        self._call = call

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        return [self._answer(self._call(batch)) for batch in batches]

    def _answer(self, found: Sequence[NDArray[Any]]) -> Arrays:
        names = [spec.name for spec in self.graph.outputs]
        return dict(zip(names, found, strict=True))


class PlanRuntime(_OneByOne):
    """A plan on GPU 0. Raises ConversionRefused where it cannot be loaded."""

    def __init__(self, path: Path, settings: ModelSettings) -> None:
        from transformer_serving.desk.builders.tensorrt_run import open_plan

        call = open_plan(path)
        super().__init__(settings, lambda batch: call([_tensor(*one) for one in batch.items()]))


class OnnxCudaRuntime(_OneByOne):
    """A graph on ONNX Runtime's CUDA provider, and nowhere else. Raises Unusable."""

    def __init__(self, path: Path, settings: ModelSettings) -> None:
        session = open_on_cuda(str(path))
        super().__init__(settings, lambda batch: list(session.run(None, dict(batch))))


def open_on_cuda(graph: str | bytes) -> Any:
    """A session of a graph's file, or of the graph itself.

    Raises Unusable where CUDA's libraries cannot be loaded: ONNX Runtime itself would go on on the
    CPU.
    """
    import onnxruntime

    # Those of the packages nvidia-*, where they are installed: no search path leads there. What it
    # says of others goes to its stdout, which is ours for figures.
    with contextlib.redirect_stdout(sys.stderr):
        onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(graph, providers=[CUDA])
    if (used := session.get_providers()[0]) != CUDA:
        raise Unusable(f"ONNX Runtime would compute by {used}: {CUDA} cannot be loaded")
    return session


def _tensor(name: str, array: NDArray[Any]) -> Tensor:
    return Tensor(name, _TYPES[array.dtype.name], array)
