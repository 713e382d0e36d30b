"""OpenVINO: model.xml and model.bin, and both opened on this machine's CPU.

Tested by tests/builders/test_precisions.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.builders.files import EngineFiles, Shapes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from preprocess.tensors import Tensor
    from transformer_serving.desk.builders.files import Call


def fastest_precision() -> str:
    """bf16 where OpenVINO reports arithmetic of it (AVX-512 BF16 or AMX) for this machine's CPU."""
    from transformer_serving.engine.backends.openvino_quiet import core
    from transformer_serving.engine.backends.precision import usable

    able = usable(core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    return "bf16" if "BF16" in able else "fp32"


def build_openvino(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    """The IR keeps float32 weights also for bf16, which is a hint when the model is compiled.

    Going back to the safer precision is then a change of one parameter, not of the weights, and
    values are rounded once (float32 to bf16) and not twice (by way of float16).
    """
    from transformer_serving.engine.backends.openvino_quiet import core, openvino

    model = core().read_model(str(graph))
    if precision == "int8":
        from transformer_serving.desk.builders.quantization import quantized_openvino

        model = quantized_openvino(model, shapes.feeds)
    rename_operations(model)
    target = folder / "model.xml"
    openvino.save_model(model, str(target), compress_to_fp16=False)
    return EngineFiles("openvino", precision, (target, target.with_suffix(".bin")))


def rename_operations(model: Any) -> None:
    """Number the operations: OpenVINO's own names count up over the life of the process."""
    for index, operation in enumerate(model.get_ordered_ops()):
        kind = operation.get_type_name()
        if kind not in ("Parameter", "Result"):
            operation.set_friendly_name(f"{kind}_{index}")


def open_openvino(files: EngineFiles) -> Call:
    from transformer_serving.engine.backends.openvino_quiet import core
    from transformer_serving.engine.backends.precision import openvino_properties

    properties = openvino_properties(
        files.precision,
        capabilities=core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
        threads=len(os.sched_getaffinity(0)),
    )
    compiled = core().compile_model(str(files.files[0]), "CPU", properties)

    def call(tensors: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        found = compiled({tensor.name: tensor.array for tensor in tensors})
        # Copied: the memory is overwritten by the next call.
        return [found[index].copy() for index in range(len(compiled.outputs))]

    return call
