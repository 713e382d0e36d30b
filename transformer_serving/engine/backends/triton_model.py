"""The part of a Triton Python model that text models' backends share; runs only in Triton's stub.

Tensors cross by DLPack (tensors.py says why).

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import triton_python_backend_utils as pb_utils

from transformer_serving.engine.backends.executor import Executor, Graph, RequestFailure, Runtime
from transformer_serving.engine.backends.grouping import Arrays, Layout
from transformer_serving.engine.backends.inherited_sockets import close_inherited_sockets
from transformer_serving.engine.backends.model_settings import (
    TRITON_TYPES,
    DeviceFailed,
    ModelError,
    ModelSettings,
    TensorSpec,
    check_tensors,
    find_model,
    read_settings,
)
from transformer_serving.engine.backends.probe import probe
from transformer_serving.engine.backends.shared_area import close_own_area
from transformer_serving.engine.backends.tensors import triton_tensor

_EACH_ALONE = (
    "each request runs by itself: they are joined where every input is integers of any rows and "
    "columns, and every output has its texts on the first axis"
)
# As early as our code runs in the stub.
close_own_area()
close_inherited_sockets()


class TextModel(ABC):
    """One instance. `file_names` are looked for in order; `load` makes the runtime."""

    file_names: tuple[str, ...]

    @staticmethod
    @abstractmethod
    def load(path: Path, settings: ModelSettings) -> Runtime:
        """The runtime with the model file loaded. Raises ModelError for a file that is none."""

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        """Fill in inputs and outputs from the graph when the configuration has none."""
        settings = read_settings(config.as_dict())
        if settings.inputs and settings.outputs:
            return config
        graph = _loaded(cls, _version_folder(), settings).graph
        for kind, specs in (("input", graph.inputs), ("output", graph.outputs)):
            if not getattr(settings, f"{kind}s"):
                for spec in specs:
                    getattr(config, f"add_{kind}")(_row(spec, settings.max_batch_size))
        return config

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        settings = replace(read_settings(config), gpu=_gpu_of(args))
        folder = Path(args["model_repository"]) / args["model_version"]
        runtime = _loaded(type(self), folder, settings)
        try:
            check_tensors("input", settings.inputs, runtime.graph.inputs)
            check_tensors("output", settings.outputs, runtime.graph.outputs)
            _check_complete(settings, runtime.graph)
            layout = probe(runtime) if settings.max_batch_size else Layout()
        except ModelError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self._executor = Executor(runtime, layout)
        if settings.max_batch_size and not layout.joinable:
            pb_utils.Logger.log_warn(_EACH_ALONE)
        elif settings.max_batch_size and not layout.mask:
            pb_utils.Logger.log_warn("requests of different lengths run one after the other")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        given = [
            {tensor.name(): np.from_dlpack(tensor) for tensor in request.inputs()}
            for request in requests
        ]
        try:
            answers = self._executor.answers(given)
        except DeviceFailed as error:
            _end(error)
        return [
            _response(answer, request.requested_output_names())
            for request, answer in zip(requests, answers, strict=True)
        ]


def _end(error: DeviceFailed) -> NoReturn:
    """The controller finds this process dead and loads the model anew."""
    sys.stderr.write(f"this process ends: {error}\n")
    sys.stderr.flush()
    os._exit(1)


def _gpu_of(args: dict[str, str]) -> int | None:
    """Where Triton put this instance."""
    if args.get("model_instance_kind") != "GPU":
        return None
    return int(args.get("model_instance_device_id") or 0)


def _loaded(model: type[TextModel], folder: Path, settings: ModelSettings) -> Runtime:
    try:
        return model.load(find_model(folder, settings, model.file_names), settings)
    except ModelError as error:
        raise pb_utils.TritonModelException(str(error)) from None


def _check_complete(settings: ModelSettings, graph: Graph) -> None:
    configured = {spec.name for spec in settings.inputs}
    missing = [spec.name for spec in graph.inputs if spec.name not in configured]
    if missing:
        raise ModelError(f"input '{missing[0]}' of the model is not in the configuration; add it")


def _response(answer: Arrays | RequestFailure, wanted: Sequence[str]) -> Any:
    if isinstance(answer, RequestFailure):
        code = pb_utils.TritonError.INVALID_ARG if answer.invalid else pb_utils.TritonError.INTERNAL
        return pb_utils.InferenceResponse(
            output_tensors=[], error=pb_utils.TritonError(answer.reason, code)
        )
    return pb_utils.InferenceResponse(
        output_tensors=[triton_tensor(name, answer[name]) for name in wanted if name in answer]
    )


def _row(spec: TensorSpec, max_batch_size: int) -> dict[str, Any]:
    dims = spec.dims[1:] if max_batch_size else spec.dims
    return {"name": spec.name, "data_type": TRITON_TYPES[spec.dtype], "dims": list(dims)}


def _version_folder() -> Path:
    """The model's version folder: auto-complete is told of it only on the stub's command line."""
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return Path(arguments[1].decode()).parent
