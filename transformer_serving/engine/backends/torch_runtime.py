"""A text model on PyTorch: an exported program, on the instance's GPU or its share of cores.

Tested by tests/engine/test_torch_text.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from transformer_serving.contract.error_line import in_ascii, named_line
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.torch_program.program import WEIGHTS, ProgramTensor
from transformer_serving.engine.backends.executor import Graph, RequestFailure
from transformer_serving.engine.backends.exported_program import (
    Call,
    Calls,
    LoadedProgram,
    Outputs,
    load_program,
)
from transformer_serving.engine.backends.grouping import Arrays
from transformer_serving.engine.backends.model_settings import (
    ModelError,
    ModelSettings,
    TensorSpec,
)
from transformer_serving.engine.backends.packed.text_places import places_of


class CpuCalls:
    """One after the other, each on all the threads of this process."""

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program

    def run(self, calls: Sequence[Call]) -> list[Outputs | Exception]:
        return [self._one(arrays) for arrays in calls]

    def _one(self, arrays: Call) -> Outputs | Exception:
        with torch.inference_mode():
            try:
                # Copied: Triton's memory may not be written to, and torch has no such tensors.
                found = self._program.forward([torch.tensor(array) for array in arrays])
            except (RuntimeError, IndexError) as error:
                # Without its frames, which hold what the failed call took of memory.
                return error.with_traceback(None)
            return [output.numpy() for output in found]


@dataclass(frozen=True)
class Opened:
    """A program and what calls it: `packed` where without padding. `remarks` say what is slower
    than it might be, and why; a call may add some."""

    program: LoadedProgram
    calls: Calls
    packed: bool
    remarks: Sequence[str]


def open_calls(path: Path, gpu: int | None, *, packed: bool = True) -> Opened:
    """The program, and what calls it on that GPU, on the CPU for None.

    Without `packed` texts are padded where they need not be. Raises ModelError where the GPU cannot
    be used, or is full.
    """
    if gpu is None:
        program = load_program(path)
        return Opened(program, CpuCalls(program), packed=False, remarks=())
    from transformer_serving.engine.backends import torch_cuda

    try:
        return _opened(path, gpu, packed)
    except torch.OutOfMemoryError as error:
        raise torch_cuda.memory_full(error) from None
    except torch.AcceleratorError as error:
        raise torch_cuda.device_failed(error) from None


def _opened(path: Path, gpu: int, packed: bool) -> Opened:
    from transformer_serving.engine.backends.packed.calls import open_packed
    from transformer_serving.engine.backends.torch_cuda import Gpu, PaddedCalls

    device = Gpu(gpu)
    program = load_program(path, f"cuda:{gpu}")
    if packed:
        calls, reason = open_packed(path, program, device, PaddedCalls(program, device))
        if calls is not None:
            return Opened(program, calls, packed=True, remarks=device.remarks)
        # What was recorded on the way is of no use to padded calls: they begin with none of it.
        device = Gpu(gpu)
        torch.cuda.empty_cache()
        device.remark(f"texts of a call are padded to one length: {in_ascii(reason)}")
    return Opened(program, PaddedCalls(program, device), packed=False, remarks=device.remarks)


class TorchRuntime:
    """A loaded program and how it is called. What it is asked raises DeviceFailed."""

    def __init__(self, path: Path, settings: ModelSettings, *, packed: bool = True) -> None:
        _check_weights(path)
        if settings.gpu is None:
            torch.set_num_threads(settings.threads)
        try:
            opened = open_calls(path, settings.gpu, packed=packed)
        except ModelError:
            raise
        except ContractError as error:
            raise ModelError(str(error)) from None
        # torch's reader and safetensors raise whatever they meet in a file.
        except Exception as error:
            raise ModelError(
                f"model file '{path.name}' cannot be loaded by PyTorch {torch.__version__} "
                f"({in_ascii(named_line(error))}); convert again"
            ) from None
        program, self._calls = opened.program, opened.calls
        self.packed, self.remarks = opened.packed, opened.remarks
        self.graph = Graph(
            inputs=tuple(map(_spec, program.program.inputs)),
            outputs=tuple(map(_spec, program.program.outputs)),
            id_limits=program.id_limits,
            places=places_of(program),
        )

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        names = [spec.name for spec in self.graph.inputs]
        calls = [[batch[name] for name in names] for batch in batches]
        return [self._answer(found) for found in self._calls.run(calls)]

    def _answer(self, found: Outputs | Exception) -> Arrays | RequestFailure:
        if isinstance(found, Exception):
            # An id without a row in its table, which the graph has behind some arithmetic.
            invalid = isinstance(found, IndexError)
            said = in_ascii(named_line(found))
            return RequestFailure(f"PyTorch failed on this input: {said}", invalid=invalid)
        return {
            spec.name: np.ascontiguousarray(array)
            for spec, array in zip(self.graph.outputs, found, strict=True)
        }


def _check_weights(path: Path) -> None:
    if not path.with_name(WEIGHTS).is_file():
        raise ModelError(
            f"model file '{WEIGHTS}' is missing beside {path.name}; upload the model folder with "
            "both files"
        )


def _spec(tensor: ProgramTensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype, tensor.dims)
