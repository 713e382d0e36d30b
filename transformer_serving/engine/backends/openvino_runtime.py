"""A text model on OpenVINO's CPU plugin.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_serving.engine.backends.executor import Graph, RequestFailure
from transformer_serving.engine.backends.grouping import Arrays
from transformer_serving.engine.backends.model_settings import ModelError, ModelSettings, TensorSpec
from transformer_serving.engine.backends.openvino_quiet import cause_of, check_ir, core, openvino
from transformer_serving.engine.backends.precision import HINTS, openvino_properties

# Requests in flight inside one instance: groups of different lengths overlap.
_IN_FLIGHT = 4


class OpenVinoRuntime:
    """A compiled model and the infer requests that its batches share."""

    def __init__(self, path: Path, settings: ModelSettings) -> None:
        precision = settings.choice("precision", tuple(HINTS), "fp32")
        _check_weights(path)
        try:
            if path.suffix == ".xml":
                check_ir(path)
            model = core().read_model(path)
            properties = openvino_properties(
                precision,
                capabilities=core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
                threads=settings.threads,
                streams=settings.count("num_streams", 1),
            )
            compiled = core().compile_model(model, "CPU", properties)
        except RuntimeError as error:
            raise ModelError(
                f"model file '{path.name}' cannot be loaded by OpenVINO ({cause_of(error)}); "
                "convert again"
            ) from None
        # Beyond its table of positions OpenVINO reads zeros, and says nothing.
        self.graph = _graph(model, compiled, settings.count("max_positions", 0) or None)
        served = settings.served(self.graph.outputs)
        self._outputs = {
            spec.name: index for index, spec in enumerate(self.graph.outputs) if spec in served
        }
        self._requests = [compiled.create_infer_request() for _ in range(_IN_FLIGHT)]

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        answers: list[Arrays | RequestFailure] = []
        for start in range(0, len(batches), _IN_FLIGHT):
            answers += self._overlapped(batches[start : start + _IN_FLIGHT])
        return answers

    def _overlapped(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        started = [
            _start(request, batch) for request, batch in zip(self._requests, batches, strict=False)
        ]
        return [
            failure or self._finish(request)
            for request, failure in zip(self._requests, started, strict=False)
        ]

    def _finish(self, request: Any) -> Arrays | RequestFailure:
        try:
            request.wait()
            # Copied: the request's own memory is overwritten by the next batch.
            return {
                name: request.get_output_tensor(index).data.copy()
                for name, index in self._outputs.items()
            }
        except RuntimeError as error:
            return RequestFailure(
                f"OpenVINO failed on this input: {cause_of(error)}", invalid=False
            )


def _start(request: Any, batch: Arrays) -> RequestFailure | None:
    try:
        request.start_async(batch, share_inputs=True)
    except (RuntimeError, ValueError) as error:
        return RequestFailure(f"OpenVINO refused this input: {cause_of(error)}", invalid=True)
    return None


def _check_weights(path: Path) -> None:
    weights = path.with_suffix(".bin")
    if path.suffix == ".xml" and not weights.is_file():
        raise ModelError(
            f"model file '{weights.name}' is missing beside {path.name}; upload the model folder "
            "with both files"
        )


def _graph(model: openvino.Model, compiled: openvino.CompiledModel, places: int | None) -> Graph:
    return Graph(
        inputs=tuple(map(_spec, model.inputs, compiled.inputs)),
        outputs=tuple(map(_spec, model.outputs, compiled.outputs)),
        id_limits=_id_limits(model),
        places=places,
    )


def _spec(named: Any, port: Any) -> TensorSpec:
    """`named` is the port as the file has it: compiling may add inner tensors' names to one."""
    dims = tuple(dim.get_length() if dim.is_static else -1 for dim in port.get_partial_shape())
    return TensorSpec(named.get_any_name(), str(port.get_element_type().to_dtype()), dims)


def _id_limits(model: openvino.Model) -> dict[str, int]:
    """Rows of each embedding table, by the input that indexes it."""
    limits: dict[str, int] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Gather":
            continue
        name = _parameter(node.input_value(1).get_node())
        rows = _table_rows(node)
        if name is not None and rows is not None:
            limits[name] = min(rows, limits.get(name, rows))
    return limits


def _parameter(node: openvino.Node) -> str | None:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Parameter":
        return None
    return str(node.output(0).get_any_name())


def _table_rows(gather: openvino.Node) -> int | None:
    axis = gather.input_value(2).get_node()
    table = gather.input_value(0).get_partial_shape()
    if axis.get_type_name() != "Constant" or int(axis.get_data().item()) != 0:
        return None
    if table.rank.is_dynamic or len(table) != 2 or not table[0].is_static:
        return None
    return int(table[0].get_length())
