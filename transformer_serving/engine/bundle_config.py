"""What the config.pbtxt of a bundle may say: what convert writes, and nothing that runs code.

Tested by tests/contract/test_gate.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from transformer_serving.contract.engine_parameters import VLLM
from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.gate.file_names import FILE_NAMES
from transformer_serving.contract.manifest import TORCH, Manifest
from transformer_serving.engine.endpoint_config import (
    BACKENDS,
    ENVIRONMENT,
    backend_of,
    check_unquoted,
)
from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import FILE_NAME, ModelConfig, from_text

# A manifest says which engine it is; Triton asks the configuration.
ENGINE_BACKENDS: Mapping[str, tuple[str, ...]] = {
    "openvino": ("openvino_text", "openvino_generate"),
    "onnxruntime": ("onnxruntime",),
    "tensorrt": ("tensorrt",),
    TORCH: ("torch_text",),
    VLLM: ("vllm",),
}
# Of the others `runtime`, `model_operations` and `model_repository_agents` name libraries to load.
_FIELDS = frozenset({
    *("name", "platform", "backend", "max_batch_size", "input", "output", "instance_group"),
    *("dynamic_batching", "parameters", "model_warmup", "default_model_filename"),
    *("model_transaction_policy", "version_policy"),
})  # fmt: skip


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
    for descriptor, _ in config.ListFields():
        if descriptor.name not in _FIELDS:
            yield (
                f"{FILE_NAME}: field '{descriptor.name}' is none that a bundle may have; "
                "convert again"
            )
    if ENVIRONMENT in config.parameters:
        yield (
            f"{FILE_NAME}: parameter '{ENVIRONMENT}' is none that a bundle may have: it names the "
            "programs that a model is run by; convert again"
        )
    yield from _opened_faults(config.default_model_filename, manifest)


def _opened_faults(opened: str, manifest: Manifest) -> Iterator[str]:
    """The gate reads an engine's files by their suffixes, so Triton may open no others."""
    listed = {entry.path for entry in manifest.files}
    suffixes = FILE_NAMES[manifest.engine].suffixes
    if not opened or (f"model/{opened}" in listed and opened.endswith(suffixes or "")):
        return
    named = f" whose name ends in {' or '.join(suffixes)}" if suffixes else ""
    yield (
        f"{FILE_NAME}: field 'default_model_filename' must be a file of the bundle's model{named}, "
        f"got '{one_line(opened)}'; convert again"
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
