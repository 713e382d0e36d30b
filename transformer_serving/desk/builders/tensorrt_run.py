"""A TensorRT plan run on this machine's GPU, for parity, goldens and the latency table.

Torch holds the tensors and the stream, so that no further CUDA package is needed. Unproven on this
project's machines: docs/gpu.md.

Tested by tests/builders/test_tensorrt.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preprocess.tensors import Tensor
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.desk.failure import ConversionRefused, PrecisionRefused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transformer_serving.desk.builders.files import Call


def open_plan(path: Path, wanted: Sequence[str] = ()) -> Call:
    """A function from the tensors of one call to the outputs `wanted`, in their order, or to all
    of the plan's.

    Raises ConversionRefused when TensorRT cannot load the plan here or torch sees no GPU.
    """
    import torch

    trt: Any = importlib.import_module("tensorrt")
    engine = _loaded(trt, path)
    context = engine.create_execution_context()
    if context is None:
        raise ConversionRefused(
            f"TensorRT {trt.__version__} has no memory to run '{path.name}' on this GPU; free "
            "some, or convert with a smaller MAX of --batch"
        )
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    outputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def call(tensors: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        shapes = {tensor.name: tuple(tensor.array.shape) for tensor in tensors}
        profile = fitting_profile(engine, shapes)
        _done(context.set_optimization_profile_async(profile, stream.cuda_stream), "profile")
        held = [torch.from_numpy(tensor.array).cuda() for tensor in tensors]
        for tensor, array in zip(tensors, held, strict=True):
            _done(context.set_input_shape(tensor.name, tuple(array.shape)), tensor.name)
            _done(context.set_tensor_address(tensor.name, array.data_ptr()), tensor.name)
        made = [
            torch.empty(
                tuple(context.get_tensor_shape(name)),
                dtype=_dtype(trt, engine, name),
                device="cuda",
            )
            for name in outputs
        ]
        for name, array in zip(outputs, made, strict=True):
            _done(context.set_tensor_address(name, array.data_ptr()), name)
        torch.cuda.current_stream().synchronize()
        _done(context.execute_async_v3(stream.cuda_stream), "run")
        stream.synchronize()
        given = dict(zip(outputs, made, strict=True))
        return [given[name].cpu().numpy() for name in wanted or outputs]

    return call


def _done(worked: bool, what: str) -> None:
    """By False TensorRT says that it has not done what it was told; outputs stay as they were."""
    if not worked:
        raise PrecisionRefused(
            f"TensorRT refused a call of the plan at '{what}'; its own message stands above; "
            "convert with --precision fp32 or --engine onnxruntime"
        )


def _loaded(trt: Any, path: Path) -> Any:
    import torch

    if not torch.cuda.is_available():
        raise ConversionRefused(
            "running a plan needs a CUDA build of torch that sees the GPU; this torch is "
            f"{torch.__version__}; install one: {pip_line('torch')}"
        )
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise ConversionRefused(f"TensorRT {trt.__version__} cannot load '{path.name}' on this GPU")
    return engine


def fitting_profile(engine: Any, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The first optimization profile whose ranges hold every shape. Raises ConversionRefused."""
    for index in range(engine.num_optimization_profiles):
        ranges = {name: engine.get_tensor_profile_shape(name, index) for name in shapes}
        if all(
            low <= size <= high
            for name, shape in shapes.items()
            for low, size, high in zip(ranges[name][0], shape, ranges[name][2], strict=True)
        ):
            return index
    raise ConversionRefused(f"no optimization profile of the plan takes a call of {shapes}")


def _dtype(trt: Any, engine: Any, name: str) -> Any:
    import torch

    kinds = {
        trt.float32: torch.float32,
        trt.float16: torch.float16,
        trt.int32: torch.int32,
        trt.int64: torch.int64,
    }
    return kinds[engine.get_tensor_dtype(name)]
