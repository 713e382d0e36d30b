"""What the config.pbtxt of a bundle may say: what convert writes, and nothing that runs code.

Tested by tests/contract/test_gate.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformer_serving.contract.engine_parameters import OPENVINO, VLLM, parameters_of
from transformer_serving.contract.error_line import in_ascii, one_line
from transformer_serving.contract.gate.file_names import FILE_NAMES
from transformer_serving.contract.manifest import TORCH, Manifest
from transformer_serving.engine.endpoint_config import (
    BACKENDS,
    backend_of,
    check_unquoted,
)
from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import (
    FILE_NAME,
    THREAD_PARAMETERS,
    ModelConfig,
    from_text,
)

# A manifest says which engine it is; Triton asks the configuration.
ENGINE_BACKENDS: Mapping[str, tuple[str, ...]] = {
    "openvino": ("openvino_text", "openvino_generate"),
    "onnxruntime": ("onnxruntime",),
    "tensorrt": ("tensorrt",),
    TORCH: ("torch_text",),
    VLLM: ("vllm",),
}
# All that convert writes, and what it wrote before. Others name libraries and programs (`runtime`,
# `model_operations`, `model_repository_agents`) or files that are read from any place
# (`output.label_filename`).
_FIELDS = (
    *("name", "platform", "backend", "max_batch_size", "default_model_filename"),
    *("input.name", "input.data_type", "input.dims", "input.optional"),
    *("output.name", "output.data_type", "output.dims"),
    *("instance_group.count", "instance_group.kind", "instance_group.profile"),
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "model_transaction_policy.decoupled",
    *("model_warmup.name", "model_warmup.batch_size", "model_warmup.inputs.data_type"),
    *("model_warmup.inputs.dims", "model_warmup.inputs.zero_data"),
    "version_policy.specific.versions",
    "parameters.string_value",
)
_ALLOWED = frozenset(
    ".".join(parts[:depth])
    for parts in (path.split(".") for path in _FIELDS)
    for depth in range(1, len(parts) + 1)
)
# Likewise. Others name what Triton runs: EXECUTION_ENV_PATH a model's programs,
# TRITON_BATCH_STRATEGY_PATH a library for tritonserver itself.
_PARAMETERS: Mapping[str, frozenset[str]] = {
    OPENVINO: frozenset(
        {"precision", "vocabulary", "max_positions", *THREAD_PARAMETERS, *parameters_of(OPENVINO)}
    ),
    "onnxruntime": frozenset(THREAD_PARAMETERS),
    "tensorrt": frozenset(),
    TORCH: frozenset(THREAD_PARAMETERS),
    VLLM: frozenset({"ENABLE_VLLM_HEALTH_CHECK"}),
}


def config_faults(raw: bytes, manifest: Manifest) -> Iterator[str]:
    """Why the bundle with this config.pbtxt must not be loaded."""
    try:
        config = from_text(raw.decode())
        check_unquoted(config)
    except UnicodeDecodeError:
        yield f"{FILE_NAME} is no UTF-8; convert again"
        return
    except ConfigError as error:
        yield f"{FILE_NAME}: {error}; convert again"
        return
    yield from _engine_faults(config, manifest.engine)
    for path in dict.fromkeys(_paths(config)):
        if path not in _ALLOWED:
            yield f"{FILE_NAME}: field '{path}' is none that a bundle may have; convert again"
    for name in config.parameters:
        if name not in _PARAMETERS[manifest.engine]:
            yield (
                f"{FILE_NAME}: parameter '{in_ascii(name)}' is none that a bundle of engine "
                f"{manifest.engine} may have; convert again"
            )
    yield from _opened_faults(config.default_model_filename, manifest)


def _paths(message: Any, above: str = "") -> Iterator[str]:
    """Each field that is set, below those that it is in; of lists and maps each value's."""
    for descriptor, value in message.ListFields():
        path = f"{above}{descriptor.name}"
        yield path
        if descriptor.message_type is None:
            continue
        inner = [value]
        if descriptor.message_type.GetOptions().map_entry:
            inner = list(value.values())
        elif descriptor.is_repeated:
            inner = list(value)
        for one in inner:
            yield from _paths(one, f"{path}.")


def _opened_faults(named: str, manifest: Manifest) -> Iterator[str]:
    """The gate reads an engine's files by their suffixes, so Triton may open no others."""
    opened = FILE_NAMES[manifest.engine].opened
    listed = {entry.path for entry in manifest.files}
    # Where it says none Triton, or the backend, takes the usual one, or else what it finds.
    if f"model/{named or opened.usual}" in listed and opened.allow(named or opened.usual):
        return
    wanted = f" whose name ends in {opened.suffix}" if opened.suffix else f", {opened.usual}"
    yield (
        f"{FILE_NAME}: field 'default_model_filename' must be a file of the bundle's model{wanted},"
        f" got '{one_line(named)}'; convert again"
    )


def _engine_faults(config: ModelConfig, engine: str) -> Iterator[str]:
    """Triton goes by the platform for some models, and by the backend for the others."""
    wanted = ENGINE_BACKENDS[engine]
    named = (BACKENDS.get(config.platform, config.platform), backend_of(config))
    for field, got in zip(("platform", "backend"), named, strict=True):
        if got not in wanted and (got or field == "backend"):
            yield (
                f"{FILE_NAME}: field '{field}' must say {' or '.join(wanted)}, as the manifest's "
                f"engine is {engine}, got '{one_line(got)}'; convert again"
            )
