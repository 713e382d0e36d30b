"""A model on ONNX Runtime's CPU provider, with the native backend's parameters.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxruntime import ExecutionMode, GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from transformer_serving.contract.error_line import in_ascii, one_line
from transformer_serving.engine.backends.executor import Graph, RequestFailure
from transformer_serving.engine.backends.grouping import Arrays
from transformer_serving.engine.backends.model_settings import ModelError, ModelSettings, TensorSpec

# optimization.graph.level, as the native backend reads it; 0 is unset.
_LEVELS = {
    0: GraphOptimizationLevel.ORT_ENABLE_ALL,
    -1: GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_MODES = {"0": ExecutionMode.ORT_SEQUENTIAL, "1": ExecutionMode.ORT_PARALLEL}
_TYPES = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}
_NO_GPU = (
    "this backend onnxruntime computes on the CPU, also where Triton has it for a GPU; the Triton "
    "image has one for GPUs\n"
)
# The package's exceptions have no base of their own.
_LOAD_ERRORS = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NoModel,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)


class OnnxRuntime:
    """An inference session; its batches run one after the other, each on all its threads."""

    def __init__(self, path: Path, settings: ModelSettings) -> None:
        try:
            self._session = InferenceSession(
                str(path), _options(settings), providers=["CPUExecutionProvider"]
            )
        except _LOAD_ERRORS as error:
            raise ModelError(
                f"model file '{path.name}' cannot be loaded by ONNX Runtime "
                f"({_one_line(error)}); convert again"
            ) from None
        if settings.gpu is not None:
            sys.stderr.write(_NO_GPU)
            sys.stderr.flush()
        self.graph = Graph(
            inputs=tuple(_spec(node) for node in self._session.get_inputs()),
            outputs=tuple(_spec(node) for node in self._session.get_outputs()),
        )
        self._outputs = [spec.name for spec in settings.served(self.graph.outputs)]

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        return [self._one(batch) for batch in batches]

    def _one(self, batch: Arrays) -> Arrays | RequestFailure:
        feed = {spec.name: batch[spec.name] for spec in self.graph.inputs}
        try:
            results = self._session.run(self._outputs, feed)
        except ort_errors.InvalidArgument as error:
            return RequestFailure(
                f"ONNX Runtime refused this input: {_one_line(error)}", invalid=True
            )
        except (ort_errors.Fail, ort_errors.RuntimeException) as error:
            return RequestFailure(
                f"ONNX Runtime failed on this input: {_one_line(error)}", invalid=False
            )
        return dict(zip(self._outputs, results, strict=True))


def _options(settings: ModelSettings) -> SessionOptions:
    options = SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = settings.count("inter_op_thread_count", 1)
    options.execution_mode = _MODES[settings.choice("execution_mode", tuple(_MODES), "0")]
    options.enable_cpu_mem_arena = settings.choice("enable_mem_arena", ("0", "1"), "1") == "1"
    options.enable_mem_pattern = settings.choice("enable_mem_pattern", ("0", "1"), "1") == "1"
    if settings.graph_level not in _LEVELS:
        raise ModelError(
            f"field 'optimization.graph.level' must be one of -1, 1, 2, got {settings.graph_level}"
        )
    options.graph_optimization_level = _LEVELS[settings.graph_level]
    options.log_severity_level = 3
    # Its threads would turn between two calls, on the cores that the gateway and Triton need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _spec(node: Any) -> TensorSpec:
    dims = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    return TensorSpec(node.name, _TYPES.get(node.type, node.type), dims)


def _one_line(error: Exception) -> str:
    return in_ascii(one_line(error))[:300]
