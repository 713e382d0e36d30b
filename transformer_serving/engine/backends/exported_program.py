"""The two files of a bundle for PyTorch as a module that torch runs.

Of torch's own reader only the part for graphs is used: around it torch takes pickles.

Tested by tests/export/test_program.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch._export.serde.serialize import SerializedArtifact, deserialize
from torch.export.passes import move_to_device_pass

from transformer_serving.contract.torch_program.program import WEIGHTS, TorchProgram, read_program

# A call's arrays in the order of the program's inputs, and of its outputs.
Call = Sequence[NDArray[Any]]
Outputs = list[NDArray[Any]]

EMBEDDING = "aten.embedding.default"
# What stands between a text's ids and the table that they are looked up in: ids it leaves.
_CONVERSIONS = (
    "aten.to.dtype",
    "aten._to_copy.default",
    "aten.clone.default",
    "aten.alias.default",
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
)


class Calls(Protocol):
    """Runs several calls of a program."""

    def run(self, calls: Sequence[Call]) -> list[Outputs | Exception]: ...


@dataclass(frozen=True)
class LoadedProgram:
    """`module` takes the inputs in the program's order and gives a tuple of its outputs.

    `id_limits` holds the rows of each embedding table, by the input that indexes it.
    """

    program: TorchProgram
    module: torch.fx.GraphModule
    id_limits: Mapping[str, int]

    def forward(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        # Not called as a module: a hook of torch's would hold each call to the example's sizes.
        found: tuple[torch.Tensor, ...] = self.module.forward(*inputs)
        return found


def load_program(path: Path, device: str = "cpu") -> LoadedProgram:
    """`path` is program.json, its weights lie beside it. Raises ContractError for a graph that is
    none of ours, and what torch and safetensors raise."""
    program = read_program(path.read_bytes(), path.name)
    # Moved before they have their names: of two names for one tensor each would become a copy.
    stored = {
        name: tensor.to(device) for name, tensor in load_file(path.with_name(WEIGHTS)).items()
    }
    state, constants = _tensors(program, stored)
    exported = deserialize(
        SerializedArtifact(
            json.dumps(program.graph).encode(),
            state,  # type: ignore[arg-type]
            constants,  # type: ignore[arg-type]
            b"",
        )
    )
    if device != "cpu":
        exported = move_to_device_pass(exported, device)
    module = exported.module(check_guards=False)
    return LoadedProgram(program, module, dict(_id_limits(exported, program)))


def stored_tensors(graph: Mapping[str, Any]) -> dict[str, str]:
    """What a graph needs beside its inputs, and what each is to it: a 'parameter', a 'buffer' of
    the module's state, or a 'constant'."""
    found: dict[str, str] = {}
    for spec in graph["graph_module"]["signature"]["input_specs"]:
        [(kind, fields)] = spec.items()
        if kind == "parameter":
            found[fields["parameter_name"]] = "parameter"
        elif kind == "buffer":
            found[fields["buffer_name"]] = "buffer" if fields["persistent"] else "constant"
        elif kind == "tensor_constant":
            found[fields["tensor_constant_name"]] = "constant"
    return found


def _tensors(
    program: TorchProgram, stored: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and the constants of the program."""
    state: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, kind in stored_tensors(program.graph).items():
        tensor = stored[program.same.get(name, name)]
        if kind == "constant":
            constants[name] = tensor
        elif kind == "parameter":
            state[name] = torch.nn.Parameter(tensor, requires_grad=False)
        else:
            state[name] = tensor
    return state, constants


def _id_limits(exported: Any, program: TorchProgram) -> Iterator[tuple[str, int]]:
    roles = {
        place: tensor.name
        for place, tensor in zip(exported.graph_signature.user_inputs, program.inputs, strict=True)
    }
    least: dict[str, int] = {}
    for node in exported.graph.nodes:
        if node.op != "call_function" or str(node.target) != EMBEDDING:
            continue
        table, ids = node.args[0], node.args[1]
        while ids.op == "call_function" and str(ids.target) in _CONVERSIONS:
            ids = ids.args[0]
        if ids.name in roles:
            rows = int(table.meta["val"].shape[0])
            least[roles[ids.name]] = min(rows, least.get(roles[ids.name], rows))
    yield from least.items()
