"""A bundle as `clearml-serving model add` takes it.

Tested by tests/builders/test_table.py and tests/stack/test_clearml_commands.py.
"""

from __future__ import annotations

from transformer_serving.desk.builders.table import ENGINES, GENERATION_BACKENDS
from transformer_serving.desk.bundle.folder import Bundle

NUMPY_DTYPES = {
    "INT32": "int32", "INT64": "int64", "FP32": "float32", "FP16": "float16", "BF16": "float32",
    "UINT8": "uint8", "UINT32": "uint32", "BOOL": "bool", "STRING": "object",
}  # fmt: skip


def add_arguments(bundle: Bundle, endpoint: str, model_id: str) -> list[str]:
    """The arguments of `clearml-serving model add` for a bundle."""
    # numpy comes with it, which the command line does without.
    from transformer_serving.desk.bundle.triton_config import triton_tensors

    inputs, outputs = triton_tensors(bundle.endpoint)
    return [
        "model", "add", "--engine", "triton", "--endpoint", endpoint, "--model-id", model_id,
        "--preprocess", str(bundle.preprocess),
        "--input-size", *("[-1]" for _ in inputs),
        "--input-type", *(NUMPY_DTYPES[tensor.dtype] for tensor in inputs),
        "--input-name", *(tensor.name for tensor in inputs),
        "--output-size", *(str(list(tensor.dims)) for tensor in outputs),
        "--output-type", *(NUMPY_DTYPES[tensor.dtype] for tensor in outputs),
        "--output-name", *(tensor.name for tensor in outputs),
        "--aux-config", *_aux_config(bundle),
    ]  # fmt: skip


def _aux_config(bundle: Bundle) -> list[str]:
    if bundle.endpoint.generation is not None:
        return [f'backend="{GENERATION_BACKENDS[bundle.endpoint.generation.engine]}"']
    batch = bundle.endpoint.limits.max_batch_size
    return [ENGINES[bundle.manifest.engine].aux_config, f"max_batch_size={batch}"]
