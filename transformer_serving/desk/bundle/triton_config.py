"""config.pbtxt of a bundle, and its tensors as Triton and ClearML are told of them.

Tested by tests/bundle/test_writer.py and tests/test_language_model.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.engine_parameters import VLLM
from transformer_serving.contract.generation import OPTIONS
from transformer_serving.contract.heads import TOKEN_ROLES
from transformer_serving.contract.manifest import TORCH
from transformer_serving.contract.vllm.tensors import INPUTS, OUTPUTS, TEXT
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import ENGINES, GENERATION_BACKENDS
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text

Tensors = tuple[TensorConfig, ...]

# Triton is not asked to complete configurations, so that they name every tensor.
_VLLM = (
    tuple(
        TensorConfig(name, kind, (1,), per_token=False, optional=name != TEXT)
        for name, kind in INPUTS.items()
    ),
    tuple(TensorConfig(name, kind, (-1,)) for name, kind in OUTPUTS.items()),
)
# An engine that died is unloaded by its backend at the next call, and the controller loads it.
_HEALTH = {"ENABLE_VLLM_HEALTH_CHECK": "true"}


def triton_tensors(endpoint: Endpoint) -> tuple[Tensors, Tensors]:
    """Inputs and outputs; a language model is told of each sequence's options beside its ids, and
    vLLM's are those of Triton's backend, whatever endpoint.json has for preprocess."""
    if endpoint.generation is not None and endpoint.generation.engine == VLLM:
        return _VLLM
    inputs = tuple(
        TensorConfig(tensor.name, tensor.dtype, (-1,), tensor.role in TOKEN_ROLES)
        for tensor in endpoint.inputs
    )
    if endpoint.generation is not None:
        inputs = (*inputs, TensorConfig(OPTIONS, "UINT8", (-1,), per_token=False))
    outputs = tuple(
        TensorConfig(tensor.name, tensor.dtype, tensor.dims) for tensor in endpoint.outputs
    )
    return inputs, outputs


def config_text(endpoint: Endpoint, engine: EngineFiles) -> str:
    """config.pbtxt of the bundle. It has no model name: the controller gives it the endpoint's."""
    inputs, outputs = triton_tensors(endpoint)
    common: dict[str, Any] = {"name": "", "inputs": inputs, "outputs": outputs}
    if endpoint.generation is not None:
        own = engine.engine == VLLM
        config = build_config(
            **common,
            backend=GENERATION_BACKENDS[engine.engine],
            max_batch_size=0,
            decoupled=True,
            parameters=_HEALTH if own else {"precision": engine.precision, **engine.parameters},
            kind="KIND_MODEL",
            # What vLLM's backend opens stands in model.json.
            file_name="" if own else engine.files[0].name,
        )
        return to_text(config)
    told: dict[str, str] = {}
    if engine.engine == "openvino":
        told = {"precision": engine.precision, "max_positions": str(endpoint.tokens.max_length)}
    config = build_config(
        **common,
        backend=ENGINES[engine.engine].backend,
        max_batch_size=endpoint.limits.max_batch_size,
        instance_count=engine.instances,
        parameters={**told, **engine.parameters},
        warmup_lengths=endpoint.tokens.buckets,
        profiles=_profiles(engine),
        file_name=engine.files[0].name,
        kind="KIND_AUTO" if _for_gpus(engine) else None,
    )
    return to_text(config)


def _for_gpus(engine: EngineFiles) -> bool:
    """Whether it is for a GPU where there is one: PyTorch, and fp16 of ONNX Runtime, which
    everywhere else is a slower fp32."""
    return engine.engine == TORCH or (engine.engine, engine.precision) == ("onnxruntime", "fp16")


def _profiles(engine: EngineFiles) -> tuple[str, ...]:
    """All of a plan's optimization profiles: Triton would use only the first one it is not told."""
    facts = engine.facts or {}
    return tuple(str(index) for index in range(int(facts.get("profiles", 0))))
