"""A built engine as an endpoint of this process: the product's own way from body to answer.

For parity and goldens. Bodies are read, encoded, padded, cut and rendered by preprocess itself, so
what is compared with the reference is what a caller will get; only Triton is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from preprocess.answers import TASKS
from preprocess.answers.work import Work
from preprocess.request import read_body
from preprocess.rows import Row, pad, unpad
from preprocess.tensors import Tensor
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.engine.backends.precision import openvino_properties
from transformer_serving.optimize import EngineFiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Call = Callable[[Sequence[Tensor]], list[NDArray[np.generic]]]


class LocalEndpoint:
    """An endpoint over `call`, the engine; it has no limits of time and no queue."""

    def __init__(self, endpoint: Endpoint, tokenizer_json: bytes, call: Call) -> None:
        self.endpoint = endpoint
        self._task = TASKS[endpoint.task](endpoint)
        self._tokenizer = self._task.tokenizer(tokenizer_json, endpoint.tokens)
        self._call = call

    def work(self, body: Any) -> Work:
        """A body's rows for the engine. Raises ServingError as the endpoint would."""
        request = read_body(body, self._task, self.endpoint.limits)
        return self._task.encode(request, self._tokenizer)

    def run(self, encoded: Sequence[Encoded]) -> list[Row]:
        """One engine call, padded to the smallest bucket that holds them all."""
        longest = max(len(text.ids) for text in encoded)
        length = next(size for size in self.endpoint.tokens.buckets if size >= longest)
        outputs = self._call(pad(encoded, length, self.endpoint.inputs, self.endpoint.tokens))
        return [
            unpad(arrays, text, self.endpoint)
            for text, *arrays in zip(encoded, *outputs, strict=True)
        ]

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        """The answer to the work's body as plain JSON values."""
        return _plain(self._task.render(rows, work))

    def answer(self, body: Any) -> Any:
        """The answer to a body sent alone."""
        work = self.work(body)
        return self.render([row for text in work.encoded for row in self.run([text])], work)


def _plain(value: Any) -> Any:
    """Without numpy's types, as a caller reads it from JSON."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def open_engine(files: EngineFiles) -> Call:
    """A function from the tensors of one call to the graph's outputs in order."""
    return _OPENERS[files.engine](files)


def _open_openvino(files: EngineFiles) -> Call:
    from transformer_serving.engine.backends.openvino_quiet import openvino

    core = openvino.Core()
    properties = openvino_properties(
        files.precision,
        capabilities=core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
        threads=len(os.sched_getaffinity(0)),
    )
    compiled = core.compile_model(str(files.files[0]), "CPU", properties)

    def call(tensors: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        found = compiled({tensor.name: tensor.array for tensor in tensors})
        # Copied: the memory is overwritten by the next call.
        return [found[index].copy() for index in range(len(compiled.outputs))]

    return call


def _open_onnxruntime(files: EngineFiles) -> Call:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(files.files[0]), providers=["CPUExecutionProvider"])

    def call(tensors: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        outputs: list[NDArray[np.generic]] = session.run(
            None, {tensor.name: tensor.array for tensor in tensors}
        )
        return outputs

    return call


def _open_tensorrt(files: EngineFiles) -> Call:
    from transformer_serving.tensorrt_run import open_plan

    return open_plan(files.files[0])


_OPENERS: dict[str, Callable[[EngineFiles], Call]] = {
    "openvino": _open_openvino,
    "onnxruntime": _open_onnxruntime,
    "tensorrt": _open_tensorrt,
}
