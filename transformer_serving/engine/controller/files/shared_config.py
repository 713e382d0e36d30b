"""One config.pbtxt for two versions of a model: it is shared by all versions that are loaded.

Tested by tests/engine/test_controller_parts.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc import model_config_pb2

from transformer_serving.engine.model_config import THREAD_PARAMETERS, ModelConfig

# What the old version can take over from the new configuration for its last seconds. Parameters are
# no such thing: its precision, or a language model's vocabulary, is that of the files.
_NOT_OF_THE_FILES = (
    "version_policy",
    "instance_group",
    "dynamic_batching",
    "max_batch_size",
    "model_warmup",
    "response_cache",
    "input",
    "output",
)


def shared(new: ModelConfig, others: Sequence[ModelConfig]) -> ModelConfig | None:
    """The new configuration with sizes that differ left open; None when it cannot serve all.

    Sizes differ when, for example, the new model has one more label.
    """
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(new)
    for other in others:
        if _files_part(new) != _files_part(other) or not _holds_calls_of(new, other):
            return None
        if not (_open(config.input, other.input) and _open(config.output, other.output)):
            return None
    return config


def _files_part(config: ModelConfig) -> ModelConfig:
    part = model_config_pb2.ModelConfig()
    part.CopyFrom(config)
    for field in _NOT_OF_THE_FILES:
        part.ClearField(field)
    for name in THREAD_PARAMETERS:
        part.parameters.pop(name, None)
    return part


def _holds_calls_of(new: ModelConfig, other: ModelConfig) -> bool:
    """Whether the other's callers may ask as many texts at a time as before; 0: no batches."""
    if not other.max_batch_size:
        return not new.max_batch_size
    return bool(new.max_batch_size >= other.max_batch_size)


def _open(mine: Sequence[ModelConfig], theirs: Sequence[ModelConfig]) -> bool:
    by_name = {tensor.name: tensor for tensor in theirs}
    if {tensor.name for tensor in mine} != set(by_name):
        return False
    for tensor in mine:
        other = by_name[tensor.name]
        if tensor.data_type != other.data_type or len(tensor.dims) != len(other.dims):
            return False
        for axis, size in enumerate(other.dims):
            if tensor.dims[axis] != size:
                tensor.dims[axis] = -1
    return True
