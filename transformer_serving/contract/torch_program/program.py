"""program.json of a bundle for PyTorch: a graph of torch.export in torch's own JSON.

torch reads graphs with Python's own means, which run code that a graph brings along. So a graph
holds what torch_graph allows, or it is never given to torch. Weights lie beside it as safetensors;
nothing of a bundle is a pickle.

Tested by tests/contract/test_torch_gate.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, parse_object
from transformer_serving.contract.torch_program.graph import graph_fault

GRAPH, WEIGHTS = "program.json", "program.safetensors"
# What serves such a bundle, as pip takes it: the extra `torch` of pyproject.toml.
PACKAGES = "'safetensors>=0.5' torch==2.13.0"
PRECISIONS = ("fp32", "bf16", "fp16")
_SCHEMA = 1
_MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class ProgramTensor:
    """A tensor of the graph, the batch first; -1 is any size, `dtype` the numpy name."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class TorchProgram:
    """program.json, checked. `torch` is the release that exported `graph`, torch's own JSON.

    `same` holds tensors that are another one: their names, and those they are stored by.
    """

    torch: str
    precision: str
    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    same: Mapping[str, str]
    graph: Mapping[str, Any]

    def to_json(self) -> str:
        return json.dumps({"schema": _SCHEMA, **asdict(self)}, separators=(",", ":")) + "\n"


def read_program(text: str | bytes, where: str = GRAPH) -> TorchProgram:
    """Raises ContractError for what is no such file, and for a graph that torch must not read."""
    fields = parse_object(text, where)
    fields.number("schema", low=_SCHEMA, high=_SCHEMA)
    same, graph = fields.take("same", dict), fields.take("graph", dict)
    if not all(isinstance(name, str) for name in same.values()):
        raise ContractError(f"{where}: field 'same' must hold names of tensors")
    fault = graph_fault(graph)
    if fault is not None:
        raise ContractError(
            f"{where}: the graph has {fault}, which no converted model has; convert again"
        )
    return TorchProgram(
        fields.take("torch", str),
        fields.choice("precision", PRECISIONS),
        tuple(map(_tensor, fields.rows("inputs"))),
        tuple(map(_tensor, fields.rows("outputs"))),
        same,
        graph,
    )


def _tensor(fields: Fields) -> ProgramTensor:
    dims = fields.take("dims", list)
    if len(dims) > _MOST_DIMENSIONS or not all(type(size) is int for size in dims):
        raise ContractError(f"{fields.where}: field 'dims' must be a list of whole numbers")
    return ProgramTensor(fields.take("name", str), fields.take("dtype", str), tuple(dims))
