"""Triton's model configuration as its own protobuf message; text only at the very edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]  # no stubs wanted
from tritonclient.grpc import model_config_pb2

from transformer_serving.contract.error_line import one_line
from transformer_serving.engine.errors import ConfigError

ModelConfig = Any  # model_config_pb2.ModelConfig: generated code without type information

FILE_NAME = "config.pbtxt"
# Triton finds the default file name through the platform; ours have none.
_PLATFORMS = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx"}
_GPU_BACKENDS = ("tensorrt",)
# Parameters that change how fast a model answers, but not what.
THREAD_PARAMETERS = ("intra_op_thread_count", "inter_op_thread_count", "num_streams")


@dataclass(frozen=True)
class TensorConfig:
    """A tensor as Triton's configuration states it: `dims` without the batch, -1 for any size.

    `dtype` is Triton's name without TYPE_: INT32, INT64, FP32, FP16. `per_token` tells an axis of
    any size that is the tokens' from one that warm-up may leave at 1. Callers may leave an
    `optional` input out.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    per_token: bool = True
    optional: bool = False


def build_config(
    *,
    name: str,
    backend: str,
    inputs: Sequence[TensorConfig],
    outputs: Sequence[TensorConfig],
    max_batch_size: int,
    instance_count: int = 1,
    max_queue_delay_us: int = 0,
    max_queue_size: int = 0,
    parameters: Mapping[str, str] | None = None,
    warmup_lengths: Sequence[int] = (),
    profiles: Sequence[str] = (),
    file_name: str = "",
    kind: str | None = None,
    decoupled: bool = False,
) -> ModelConfig:
    """The configuration of a bundle.

    `warmup_lengths` are token counts, one sample each; `profiles` the optimization profiles of a
    TensorRT engine; `max_queue_size` 0 is unlimited; `kind` of the instances, the backend's own
    unless given; `decoupled` for a model that answers a request in a stream.
    """
    config = model_config_pb2.ModelConfig(
        name=name,
        backend=backend,
        platform=_PLATFORMS.get(backend, ""),
        max_batch_size=max_batch_size,
        default_model_filename=file_name,
    )
    for row, tensors in ((config.input, inputs), (config.output, outputs)):
        for tensor in tensors:
            entry = row.add(name=tensor.name, data_type=data_type(tensor.dtype), dims=tensor.dims)
            if tensor.optional:
                entry.optional = True
    config.instance_group.add(count=instance_count, kind=kind or _kind(backend), profile=profiles)
    if max_batch_size > 0:
        config.dynamic_batching.max_queue_delay_microseconds = max_queue_delay_us
        config.dynamic_batching.default_queue_policy.max_queue_size = max_queue_size
    if decoupled:
        config.model_transaction_policy.decoupled = True
    for key, value in (parameters or {}).items():
        config.parameters[key].string_value = value
    for length in warmup_lengths:
        _add_warmup(config, inputs, length)
    return config


def _kind(backend: str) -> str:
    return "KIND_GPU" if backend in _GPU_BACKENDS else "KIND_CPU"


def data_type(name: str) -> int:
    """The number of a Triton type such as 'INT32'. Raises ConfigError."""
    try:
        return int(model_config_pb2.DataType.Value(f"TYPE_{name}"))
    except ValueError:
        raise ConfigError(f"field 'data_type' has no type '{name}'") from None


def type_name(number: int) -> str:
    """Triton's name of the number, without TYPE_."""
    return str(model_config_pb2.DataType.Name(number)).removeprefix("TYPE_")


def _add_warmup(config: ModelConfig, inputs: Sequence[TensorConfig], length: int) -> None:
    """Zeros: Triton's random data covers the whole integer range, which no embedding table has."""
    sample = config.model_warmup.add(name=f"tokens{length}", batch_size=1)
    for tensor in inputs:
        entry = sample.inputs[tensor.name]
        entry.data_type = data_type(tensor.dtype)
        free = length if tensor.per_token else 1
        entry.dims.extend(free if size == -1 else size for size in tensor.dims)
        entry.zero_data = True


def with_versions(config: ModelConfig, name: str, versions: Sequence[int]) -> ModelConfig:
    """The same configuration under `name`, serving exactly `versions`."""
    copy = model_config_pb2.ModelConfig()
    copy.CopyFrom(config)
    copy.name = name
    copy.version_policy.Clear()
    copy.version_policy.specific.versions.extend(sorted(versions))
    return copy


def instances_of(config: ModelConfig) -> int:
    """How many Triton starts: a group's count on each of its GPUs, or on the CPU; 0 of no group."""
    return sum(max(1, one.count) * max(1, len(one.gpus)) for one in config.instance_group)


def to_text(config: ModelConfig) -> str:
    """The content of config.pbtxt."""
    return str(text_format.MessageToString(config, as_utf8=True))


def from_text(text: str, where: str = FILE_NAME) -> ModelConfig:
    """Parse config.pbtxt. Raises ConfigError naming line and field."""
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ConfigError(f"{where}: {one_line(error)}") from None
