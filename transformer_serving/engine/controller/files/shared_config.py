"""One config.pbtxt for two versions of a model: it is shared by all versions that are loaded.

Tested by tests/engine/test_controller_parts.py and tests/engine/test_service.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc import model_config_pb2

from transformer_serving.engine.model_config import THREAD_PARAMETERS, ModelConfig

# What the old version can take over from the new configuration for its last seconds. Parameters are
# no such thing: its precision, or a language model's vocabulary, is that of the files. Only of a
# text model's positions, beyond which it is refused, both can have the most.
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
_TEXT_BACKEND = "openvino_text"
_POSITIONS = "max_positions"


def shared(new: ModelConfig, others: Sequence[ModelConfig]) -> ModelConfig | None:
    """The new configuration with sizes that differ left open, and room for the longest text of all;
    None when it cannot serve all.

    Sizes differ when, for example, the new model has one more label.
    """
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(new)
    for other in others:
        if _files_part(new) != _files_part(other) or not _holds_calls_of(new, other):
            return None
        if not (_open(config.input, other.input) and _open(config.output, other.output)):
            return None
        _lengthen(config, other)
    return config


def _files_part(config: ModelConfig) -> ModelConfig:
    part = model_config_pb2.ModelConfig()
    part.CopyFrom(config)
    for field in _NOT_OF_THE_FILES:
        part.ClearField(field)
    left_out = THREAD_PARAMETERS if _positions(config) is None else (*THREAD_PARAMETERS, _POSITIONS)
    for name in left_out:
        part.parameters.pop(name, None)
    return part


def _positions(config: ModelConfig) -> int | None:
    """Tokens of a text model's longest text, 0: no limit; None for another model, and for what is
    no number, which its backend refuses."""
    if config.backend != _TEXT_BACKEND:
        return None
    text = config.parameters[_POSITIONS].string_value if _POSITIONS in config.parameters else ""
    text = text.strip() or "0"
    return int(text) if text.isdecimal() else None


def _lengthen(config: ModelConfig, other: ModelConfig) -> None:
    """Let `config` take the other's longest text, too."""
    mine, theirs = _positions(config), _positions(other)
    if not mine or theirs is None:
        return
    if theirs:
        config.parameters[_POSITIONS].string_value = str(max(mine, theirs))
    else:
        config.parameters.pop(_POSITIONS)


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
