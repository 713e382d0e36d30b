"""The model behind an endpoint that was added by hand: its file, and its tensors as stated.

Tested by tests/own_engine/test_adoption.py and tests/own_engine/test_writer.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.variables import without_clearml
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import ConversionRefused, Failure
from transformer_serving.desk.local.record import clearml_environment, load_record
from transformer_serving.desk.own_engine.engine import engine_of
from transformer_serving.desk.own_engine.tensors import EngineTensor, EngineTensors
from transformer_serving.engine.endpoint_config import EndpointFields, TensorFields, tensor_configs
from transformer_serving.engine.errors import EngineError

_LOGIN = ("CLEARML_API_HOST", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY")


@dataclass(frozen=True)
class ServedModel:
    """`file` lives as long as `served_model` is open; `tensors` are None for an ONNX file."""

    file: Path
    tensors: EngineTensors | None


@contextmanager
def served_model(endpoint: str, state: Path) -> Iterator[ServedModel]:
    """Fetch the endpoint's model from the stack in `state`, else from where CLEARML_* points.

    Raises Failure when there is no such endpoint, its model is neither ONNX nor a plan, or the
    server gives no answer.
    """
    record = load_record(state)
    if record is not None:
        own = without_clearml(os.environ) | clearml_environment(record)
        for name in os.environ.keys() - own.keys():
            del os.environ[name]
        os.environ.update(own)
    serving = os.environ.get("CLEARML_SERVING_TASK_ID")
    if not serving:
        raise Failure(
            f"no stack in {state}, and CLEARML_SERVING_TASK_ID names no serving service; set it, "
            "or name the stack with --state",
            exit_code=2,
        )
    _refuse_early(os.environ)
    # The SDK reads the environment as it is imported.
    from transformer_serving.engine.controller.control_plane.clearml_edge import ClearmlControlPlane

    plane = ClearmlControlPlane(serving)
    try:
        served = {one.endpoint: one for one in plane.endpoints()}.get(endpoint)
        if served is None:
            raise Failure(f"there is no endpoint '{endpoint}' of engine triton", exit_code=2)
        with plane.model(served) as copy:
            file = _engine_file(copy.path)
            plan = engine_of(file) == "tensorrt"
            yield ServedModel(file, tensors_of(served.fields) if plan else None)
    except EngineError as error:
        raise Failure(f"endpoint '{endpoint}': {error}") from error


def _refuse_early(environment: Mapping[str, str]) -> None:
    """Raises Failure where the server does not answer or let in: the SDK would ask for minutes.

    What the environment does not name may stand in clearml.conf, which the SDK reads.
    """
    if all(environment.get(name) for name in _LOGIN):
        api = ClearmlApi(environment)
        api.wait()
        api.log_in()


def _engine_file(path: Path) -> Path:
    """The one file that is an engine; a folder may hold weights and configurations beside it."""
    files = [path] if path.is_file() else sorted(one for one in path.iterdir() if one.is_file())
    found = []
    for file in files:
        try:
            engine_of(file)
        except ConversionRefused:
            continue
        found.append(file)
    if len(found) != 1:
        raise ConversionRefused(
            f"the endpoint's model has {len(found)} files that are ONNX models or plans, of "
            f"{len(files)}; one is wanted: take it yourself to '{command_line('bundle --from')}'"
        )
    return found[0]


def tensors_of(fields: EndpointFields) -> EngineTensors:
    """--input-* and --output-* of the endpoint, with the batch whether they say it or not."""
    return EngineTensors(_tensors("input", fields.inputs), _tensors("output", fields.outputs))


def _tensors(kind: str, fields: TensorFields) -> tuple[EngineTensor, ...]:
    return tuple(
        EngineTensor(tensor.name, tensor.dtype, _with_batch(kind, tensor.dims))
        for tensor in tensor_configs(kind, fields)
    )


def _with_batch(kind: str, dims: Sequence[int]) -> tuple[int, ...]:
    """Sizes may be stated with the batch, [-1, -1] and [-1, 2], or without, [-1] and [2]."""
    has_batch = len(dims) == 2 if kind == "input" else len(dims) > 1 and dims[0] == -1
    return tuple(dims) if has_batch else (-1, *dims)
