"""The configuration of an endpoint that was added by hand: from its own fields, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2

from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.naming import UNQUOTED_MARKS, is_unquoted
from transformer_serving.engine.auxiliary_config import parse_auxiliary
from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import ModelConfig, TensorConfig, data_type, type_name

_TRITON_TYPES = {
    # numpy's own of texts, as clearml-serving has no other name for them.
    "object": "STRING",
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{
        f"{sign}int{bits}": f"{sign}int{bits}".upper()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
# What a framework's label or a file's ending says about the platform.
_PLATFORMS = {"onnx": "onnxruntime_onnx", "tensorrt": "tensorrt_plan", "openvino": ""}
_PLATFORM_OF_SUFFIX = {".onnx": "onnxruntime_onnx", ".plan": "tensorrt_plan", ".xml": ""}
_OWN_BACKEND = "openvino_text"
_DEFAULT_FILES = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    _OWN_BACKEND: "model.xml",
}
# A parameter of Triton's Python backend: the folder of the environment in which a model is run.
ENVIRONMENT = "EXECUTION_ENV_PATH"
# The backends of the platforms that Triton knows by name.
BACKENDS = {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt"}


@dataclass(frozen=True)
class TensorFields:
    """--input-name, --input-type and --input-size of an endpoint, or the same of its output."""

    names: Sequence[str] = ()
    types: Sequence[str] = ()
    sizes: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class EndpointFields:
    """What an endpoint says of its model; `auxiliary` is --aux-config, parsed pairs or a file."""

    inputs: TensorFields = field(default_factory=TensorFields)
    outputs: TensorFields = field(default_factory=TensorFields)
    auxiliary: Mapping[str, Any] | str | None = None


def config_from_endpoint(
    fields: EndpointFields, *, name: str, framework: str = "", files: Sequence[str]
) -> ModelConfig:
    """The whole configuration of an endpoint without a bundle. Raises ConfigError.

    `framework` is the ClearML model's label, `files` the names in its version folder.
    """
    config = parse_auxiliary(fields.auxiliary)
    config.name = name
    for kind, row, given in (
        ("input", config.input, fields.inputs),
        ("output", config.output, fields.outputs),
    ):
        tensors = tensor_configs(kind, given)
        # The auxiliary configuration may carry more about a tensor (format, ragged), by position.
        if len(row) > len(tensors):
            raise ConfigError(f"field '{kind}.{len(tensors)}' of --aux-config has no --{kind}-name")
        for index, tensor in enumerate(tensors):
            entry = row[index] if index < len(row) else row.add()
            entry.name = tensor.name
            entry.data_type = data_type(tensor.dtype)
            entry.ClearField("dims")
            entry.dims.extend(tensor.dims)
    _choose_backend(config, framework, files)
    if not config.instance_group:
        # Triton's own default for onnxruntime on a CPU is two copies of the model.
        config.instance_group.add(count=1)
    return config


def tensor_configs(kind: str, fields: TensorFields) -> tuple[TensorConfig, ...]:
    """The tensors of --input-* or --output-*; `kind` is 'input' or 'output'."""
    counts = {"name": len(fields.names), "type": len(fields.types), "size": len(fields.sizes)}
    if not fields.names:
        raise ConfigError(f"field '--{kind}-name' is missing; name every {kind} of the model")
    for part, count in counts.items():
        if count != counts["name"]:
            raise ConfigError(
                f"field '--{kind}-{part}' must have {counts['name']} values, one for each "
                f"--{kind}-name, got {count}"
            )
    return tuple(
        TensorConfig(str(name), _triton_type(kind, dtype), _dims(kind, size))
        for name, dtype, size in zip(fields.names, fields.types, fields.sizes, strict=True)
    )


def _triton_type(kind: str, dtype: str) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in _TRITON_TYPES:
        raise ConfigError(
            f"field '--{kind}-type' must be one of {', '.join(_TRITON_TYPES)}, got '{dtype}'"
        )
    return _TRITON_TYPES[name]


def _dims(kind: str, size: Sequence[int]) -> tuple[int, ...]:
    dims = tuple(size) if isinstance(size, Sequence) else (size,)
    if not all(type(dim) is int and (dim > 0 or dim == -1) for dim in dims):
        raise ConfigError(
            f"field '--{kind}-size' must be a list of sizes or -1, such as \"[-1, 384]\""
        )
    return dims


def _choose_backend(config: ModelConfig, framework: str, files: Sequence[str]) -> None:
    if not config.platform and not config.backend:
        _guess_backend(config, framework, files)
    backend = backend_of(config)
    default = _DEFAULT_FILES.get(backend)
    if default is None or default in files or config.default_model_filename:
        return
    suffix = PurePath(default).suffix
    fitting = [name for name in files if name.endswith(suffix)] or [
        name for name in files if name == "model.bin" and backend == "onnxruntime"
    ]
    if len(fitting) == 1:
        config.default_model_filename = fitting[0]


def _guess_backend(config: ModelConfig, framework: str, files: Sequence[str]) -> None:
    label = framework.lower()
    guesses = [value for key, value in _PLATFORMS.items() if key in label]
    guesses += [
        value
        for suffix, value in _PLATFORM_OF_SUFFIX.items()
        if any(name.endswith(suffix) for name in files)
    ]
    if not guesses:
        raise ConfigError(
            "field 'platform' is missing and neither the framework nor the files tell it; add "
            "--aux-config 'platform=\"onnxruntime_onnx\"' (or tensorrt_plan)"
        )
    config.platform = guesses[0]
    config.backend = BACKENDS.get(guesses[0], _OWN_BACKEND)


def contradiction(config: ModelConfig, fields: EndpointFields, *, tuning: bool) -> str | None:
    """Why an endpoint does not fit its bundle's configuration, None when it does.

    `tuning` allows --aux-config to set dynamic batching and to lower max_batch_size.
    """
    for kind, row, given in (
        ("input", config.input, fields.inputs),
        ("output", config.output, fields.outputs),
    ):
        wanted = {entry.name: type_name(entry.data_type) for entry in row}
        got = {tensor.name: tensor.dtype for tensor in tensor_configs(kind, given)}
        if set(wanted) != set(got):
            return f"field '--{kind}-name' must be {', '.join(wanted)}; the bundle has them so"
        for name, dtype in wanted.items():
            if got[name] != dtype:
                return (
                    f"field '--{kind}-type' of '{name}' must be {dtype.lower()}, as in the bundle"
                )
    return _auxiliary_contradiction(config, parse_auxiliary(fields.auxiliary), tuning)


def _auxiliary_contradiction(
    config: ModelConfig, auxiliary: ModelConfig, tuning: bool
) -> str | None:
    for descriptor, value in auxiliary.ListFields():
        name = descriptor.name
        if name == "name" or (tuning and name == "dynamic_batching"):
            continue
        if tuning and name == "max_batch_size" and value <= config.max_batch_size:
            continue
        if name in ("platform", "backend") and _same_backend(config, value):
            continue
        if not _contains(getattr(config, name), value):
            return f"field '{name}' of --aux-config contradicts the bundle; leave it out"
    return None


def tuned(config: ModelConfig, fields: EndpointFields) -> ModelConfig:
    """The bundle's configuration with the batching that --aux-config asks for."""
    auxiliary = parse_auxiliary(fields.auxiliary)
    copy = model_config_pb2.ModelConfig()
    copy.CopyFrom(config)
    if auxiliary.max_batch_size:
        copy.max_batch_size = auxiliary.max_batch_size
    if auxiliary.HasField("dynamic_batching"):
        copy.dynamic_batching.CopyFrom(auxiliary.dynamic_batching)
    return copy


def backend_of(config: ModelConfig) -> str:
    """The backend's name, also where only the platform is given."""
    return str(config.backend or BACKENDS.get(config.platform, config.platform))


def check_unquoted(config: ModelConfig) -> None:
    """Raises ConfigError for a text that would end, or run code in, the shell that starts a Python
    model: Triton 2.51 puts these into its line for bash, and quotes nothing."""
    environment = config.parameters.get(ENVIRONMENT)
    words = {
        "default_model_filename": config.default_model_filename,
        f"parameters.{ENVIRONMENT}": environment.string_value if environment else "",
        **{f"instance_group.{at}.name": one.name for at, one in enumerate(config.instance_group)},
    }
    for field_name, text in words.items():
        if not is_unquoted(text):
            raise ConfigError(
                f"field '{field_name}' must have only the letters a to z, digits and "
                f"{UNQUOTED_MARKS}, got '{one_line(text)}'"
            )


def _same_backend(config: ModelConfig, value: str) -> bool:
    return BACKENDS.get(value, value) == backend_of(config)


def _contains(whole: Any, part: Any) -> bool:
    """Does the bundle's value say everything that the endpoint's says?"""
    if hasattr(part, "ListFields"):
        return all(
            _contains(getattr(whole, descriptor.name), value)
            for descriptor, value in part.ListFields()
        )
    if isinstance(part, Mapping):
        return all(key in whole and _contains(whole[key], value) for key, value in part.items())
    if hasattr(part, "add") or isinstance(part, (list, tuple)):
        return len(whole) >= len(part) and all(
            _contains(mine, theirs) for mine, theirs in zip(whole, part, strict=False)
        )
    return bool(whole == part)
