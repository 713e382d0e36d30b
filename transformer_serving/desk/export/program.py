"""A model folder becomes a program of torch.export at one precision: its graph, and its tensors.

Tested by tests/export/test_program.py.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.torch_program.program import (
    GRAPH,
    WEIGHTS,
    ProgramTensor,
    TorchProgram,
    read_program,
)
from transformer_serving.desk.export.heads import FUSED
from transformer_serving.desk.export.onnx import (
    example_of,
    input_names,
    load_module,
    outputs_of,
    quiet,
    root_cause,
)
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.interruption import reraise_interruption
from transformer_serving.desk.source.model import ModelSource

if TYPE_CHECKING:
    import torch

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_NUMPY = {"FP32": "float32", "INT32": "int32"}
_DROPOUT = "aten.dropout.default"
_TYPE_CHECK = "aten._assert_tensor_metadata.default"
# Of what torch writes beside the graph.
_PICKLES = ("serialize_state_dict", "serialize_constants", "serialize_example_inputs")
_WAY_OUT = (
    "convert a model of one of the families in docs/models.md, or with --engine openvino or "
    "onnxruntime, which export in another way"
)


@dataclass(frozen=True)
class Traceable:
    """A module with an example of its inputs, in the order of `names`; `model_type` is for
    messages."""

    module: torch.nn.Module
    names: tuple[str, ...]
    example: tuple[torch.Tensor, ...]
    outputs: tuple[OutputTensor, ...]
    precision: str
    model_type: str


def export_program(source: ModelSource, precision: str, folder: Path) -> Path:
    """Write GRAPH and WEIGHTS into `folder`; the path of the first.

    Weights are in the precision and outputs in float32, all axes of a text dynamic. Raises
    ConversionRefused when the model cannot be loaded or exported, and says why.
    """
    import torch

    with quiet():
        names = input_names(source)
        module = load_module(source, names, FUSED)
        example = example_of(source, names)
        outputs = outputs_of(source, module, example)
        _lower(module, getattr(torch, _DTYPES[precision]))
        traceable = Traceable(module, names, example, outputs, precision, source.model_type)
        return write_program(traceable, folder)


def write_program(traceable: Traceable, folder: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    exported = _exported(traceable)
    graph = _graph_of(exported, traceable.model_type)
    tensors, same = _stored(graph, exported)
    program = TorchProgram(
        torch=torch.__version__,
        precision=traceable.precision,
        inputs=tuple(ProgramTensor(name, "int32", (-1, -1)) for name in traceable.names),
        outputs=tuple(
            ProgramTensor(tensor.name, _NUMPY[tensor.dtype], (-1, *tensor.dims))
            for tensor in traceable.outputs
        ),
        same=same,
        graph=graph,
    )
    path = folder / GRAPH
    path.write_text(program.to_json(), "utf-8")
    _require_plain(path, traceable.model_type)
    save_file(tensors, folder / WEIGHTS)
    return path


def _lower(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """The model's weights as `dtype`; its buffers, such as the angles of positions, stay."""
    parts: Any = module.parts
    for weights in parts[0].parameters():
        weights.data = weights.data.to(dtype)


def _exported(traceable: Traceable) -> Any:
    import torch

    class Program(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = traceable.module

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(
                found.float() if found.is_floating_point() else found
                for found in self.head(*tensors)
            )

    dynamic = torch.export.Dim.DYNAMIC
    try:
        # Where it fails it also prints the whole graph, with the model's own source lines.
        with redirect_stderr(io.StringIO()), torch.no_grad():
            return torch.export.export(
                Program().eval(),
                traceable.example,
                # forward takes *tensors: to torch that is one argument, a tuple of them.
                dynamic_shapes=(tuple({0: dynamic, 1: dynamic} for _ in traceable.names),),
                strict=False,
            )
    except Exception as error:
        reraise_interruption(error)
        raise ConversionRefused(
            f"torch.export of torch {torch.__version__} cannot turn model type "
            f"'{traceable.model_type}' into a program with dynamic batch and length "
            f"({root_cause(error)}); {_WAY_OUT}"
        ) from error


def _graph_of(exported: Any, model_type: str) -> dict[str, Any]:
    """torch's JSON of the program, without what it knows of the machine and the model's sources."""
    import torch
    from torch._export.serde.serialize import serialize

    _clean(exported)
    try:
        artifact: Any = _without_pickles(serialize)(exported)
    except Exception as error:
        reraise_interruption(error)
        raise ConversionRefused(
            f"torch {torch.__version__} cannot write the program of model type '{model_type}' "
            f"({root_cause(error)}); {_WAY_OUT}"
        ) from error
    graph: dict[str, Any] = json.loads(artifact.exported_program)
    # Code to check sizes by, which would hold every call to what the example had.
    graph["guards_code"] = []
    return graph


def _without_pickles(serialize: Callable[..., Any]) -> Callable[..., Any]:
    """Some releases (2.11) cannot leave them out: there they are made, and not looked at."""
    taken = inspect.signature(serialize).parameters
    return partial(serialize, **{name: False for name in _PICKLES if name in taken})


def _clean(exported: Any) -> None:
    graph = exported.graph
    for node in reversed(list(graph.nodes)):
        # Neither does a thing but take time, at every call: one says again what types there are.
        if str(node.target) == _DROPOUT and node.args[2] is False:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif str(node.target) == _TYPE_CHECK and not node.users:
            graph.erase_node(node)
        else:
            node.meta = {key: value for key, value in node.meta.items() if key == "val"}
    exported.graph_module.recompile()


def _stored(
    graph: Mapping[str, Any], exported: Any
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors to store, each once, and those that are another one by both names."""
    from transformer_serving.engine.backends.exported_program import stored_tensors

    tensors: dict[str, torch.Tensor] = {}
    same: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, kind in stored_tensors(graph).items():
        held = exported.constants if kind == "constant" else exported.state_dict
        tensor = held[name].detach()
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in first:
            same[name] = first[key]
            continue
        first[key] = name
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        # Part of another one's memory: safetensors wants each its own.
        tensors[name] = tensor.contiguous() if whole else tensor.clone().contiguous()
    return tensors, same


def _require_plain(path: Path, model_type: str) -> None:
    """Refuse here, in words, what no server would take."""
    try:
        read_program(path.read_bytes())
    except ContractError as error:
        raise ConversionRefused(
            f"the program of model type '{model_type}' is none that may be served ({error}); "
            f"{_WAY_OUT}"
        ) from error
