"""One GPU: a stream of its own, pinned memory both ways, shapes that come often as recorded graphs.

What it computes is seen on a GPU alone, by the steps of `make check-gpu` (docs/gpu.md); which
shapes are recorded is tested.

Tested by tests/engine/test_torch_text.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_serving.contract.error_line import first_line, in_ascii, named_line
from transformer_serving.engine.backends.exported_program import Call, LoadedProgram, Outputs
from transformer_serving.engine.backends.model_settings import DeviceFailed, ModelError
from transformer_serving.engine.backends.usual_shapes import Shape, UsualShapes

Tensors = tuple[torch.Tensor, ...]
Forward = Callable[[list[torch.Tensor]], Tensors]


@dataclass(frozen=True)
class _Recorded:
    """A CUDA graph of one shape, and the memory that it reads and writes at each replay."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: Tensors


class Gpu:
    """All copies and kernels go into one stream in order, and the processor waits once for all.

    Outputs leave their memory before the next replay of its graph, which comes later in the same
    stream.
    """

    def __init__(self, number: int) -> None:
        _initialize()
        self._device = torch.device("cuda", number)
        torch.cuda.set_device(self._device)
        fp32_as_it_says()
        stream: Any = torch.cuda.Stream
        self._stream = stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()
        self._shapes = UsualShapes()
        self._recorded: dict[Shape, _Recorded] = {}
        # What is slower here than it might be, and why.
        self.remarks: list[str] = []

    def remark(self, line: str) -> None:
        """For Triton's log, and for who asks later."""
        self.remarks.append(line)
        sys.stderr.write(f"{line}\n")

    @contextmanager
    def work(self) -> Iterator[None]:
        """What the block starts is done at its end. Raises DeviceFailed where the GPU failed."""
        try:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                yield
            self._stream.synchronize()
        except torch.AcceleratorError as error:
            raise device_failed(error) from None

    def outputs(self, shape: Shape, forward: Forward, given: list[torch.Tensor]) -> Tensors:
        """`forward` of the pinned tensors, by the recording of `shape` where there is one.

        Nothing but `shape` may decide what `forward` does.
        """
        recorded = self._recorded.get(shape)
        if recorded is not None:
            for place, tensor in zip(recorded.inputs, given, strict=True):
                place.copy_(tensor, non_blocking=True)
            recorded.graph.replay()
            return recorded.outputs
        inputs = [tensor.to(self._device, non_blocking=True) for tensor in given]
        outputs = forward(inputs)
        # After a run as it is, which cuBLAS and the others take their memory in.
        if self._shapes.record(shape):
            self._record(shape, forward, inputs)
        return outputs

    def _record(self, shape: Shape, forward: Forward, inputs: list[torch.Tensor]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            places = [tensor.clone() for tensor in inputs]
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                outputs = forward(places)
        except torch.OutOfMemoryError as error:
            # The call itself is computed, and a recording of a smaller shape may still have room.
            self.remark(f"calls of shape {shape[0]} are not recorded as a CUDA graph: {error}")
            return
        except RuntimeError as error:
            # A model that asks the GPU for a value on the way cannot be recorded, and CUDA says so
            # by an error that ends with the recording. Any other one is met again in `work`.
            self._shapes.give_up()
            self._end_recording()
            self.remark(f"nothing more is recorded as a CUDA graph: {error}")
            return
        self._recorded[shape] = _Recorded(graph, places, outputs)

    def _end_recording(self) -> None:
        """torch does not where CUDA has: on a full GPU it would then give back nothing of what it
        keeps for later calls."""
        # So it says where it has.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)


class PaddedCalls:
    """Each call as it comes, its texts padded to one length."""

    def __init__(self, program: LoadedProgram, gpu: Gpu) -> None:
        self._program = program
        self._gpu = gpu

    def run(self, calls: Sequence[Call]) -> list[Outputs | Exception]:
        with self._gpu.work():
            begun = [self._begin(arrays) for arrays in calls]
        return [
            one if isinstance(one, Exception) else [tensor.numpy() for tensor in one]
            for one in begun
        ]

    def _begin(self, arrays: Call) -> list[torch.Tensor] | Exception:
        """The outputs' places in pinned memory, filled once the stream has come so far."""
        given = [pinned(array) for array in arrays]
        shape = tuple(tuple(tensor.shape) for tensor in given)
        try:
            found = self._gpu.outputs(shape, self._program.forward, given)
            return [fetched(output) for output in found]
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            # Without its frames, which hold what the failed call took on the device.
            return error.with_traceback(None)


def _initialize() -> None:
    begin: Any = torch.cuda.init
    try:
        begin()
    except torch.AcceleratorError:
        raise
    # A build for CPUs says so by an AssertionError, one that the driver is too old for by another.
    except Exception as error:
        raise DeviceFailed(
            f"PyTorch {torch.__version__} cannot use this machine's GPU "
            f"({in_ascii(named_line(error))}); where Triton runs, install a build of it for CUDA "
            "that the driver there takes"
        ) from None


def fp32_as_it_says() -> None:
    """Without tf32, which NVIDIA's containers of PyTorch turn on by a variable."""
    torch.set_float32_matmul_precision("highest")
    cudnn: Any = torch.backends.cudnn
    cudnn.set_flags(_allow_tf32=False)


def pinned(array: NDArray[Any]) -> torch.Tensor:
    """In memory that the GPU reads by itself; torch keeps it until the copy is through."""
    place = torch.empty(array.shape, dtype=torch.int32, pin_memory=True)
    np.copyto(place.numpy(), array)
    return place


def fetched(output: torch.Tensor) -> torch.Tensor:
    place = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
    return place.copy_(output, non_blocking=True)


def device_failed(error: torch.AcceleratorError) -> DeviceFailed:
    """A GPU's context does not come back from an error of its own."""
    said = in_ascii(first_line(error))
    return DeviceFailed(
        f"the GPU failed ({said}); where it fails at every load, install a build of PyTorch with "
        f"kernels for this GPU in place of {torch.__version__}, or see what `dmesg` says of the GPU"
    )


def memory_full(error: torch.OutOfMemoryError) -> ModelError:
    said = in_ascii(first_line(error))
    return ModelError(
        f"the GPU's memory has no room for this model ({said}); see with `nvidia-smi` what has it, "
        "and serve fewer models on this GPU"
    )
