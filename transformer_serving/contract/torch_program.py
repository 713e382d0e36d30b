"""program.json of a bundle for PyTorch: a graph of torch.export in torch's own JSON.

torch reads graphs with Python's own means: names become functions that it calls, and sizes are
expressions that it evaluates. So a graph has the operators that torch_operators names and sizes in
plain arithmetic, or it is never given to torch. Weights lie beside it as safetensors; nothing of a
bundle is a pickle.

Tested by tests/contract/test_torch_gate.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, parse_object
from transformer_serving.contract.torch_operators import OPERATORS

GRAPH, WEIGHTS = "program.json", "program.safetensors"
# The extra of pyproject.toml with what serves such a bundle.
EXTRA = "torch"
PRECISIONS = ("fp32", "bf16", "fp16")
_SCHEMA = 1
_MOST_DIMENSIONS = 8
# What a graph may call: some of ATen's operators, and Python's arithmetic on sizes.
_OF_ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.\w+")
_ON_SIZES = re.compile(
    r"_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|ge|gt|le|lt|eq|ne)"
    r"|torch\.sym_(float|int|ite|max|min|not|sqrt|sum)"
    r"|math\.(ceil|floor|trunc)"
)
# Sizes: numbers, symbols as sympy writes them, and functions, which begin in capitals.
_SYMBOL = re.compile(r"Symbol\('[a-z]\d+'(?:, [a-z]+=(?:True|False))*\)")
_WORD = re.compile(r"[^\W\d]\w*")
_FUNCTION = re.compile(r"[A-Z][A-Za-z]*")
_ARITHMETIC = re.compile(r"[\w\s+\-*/(),<>=]*")
# The containers that a module takes and gives.
_CONTAINER = re.compile(r'"type": (?!null|"builtins\.(?:tuple|list|dict)")')


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
    _check_graph(graph, where)
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


def _check_graph(graph: Mapping[str, Any], where: str) -> None:
    for name, value in _named(graph):
        fault = _FAULTS[name](value) if name in _FAULTS else None
        if fault:
            raise ContractError(
                f"{where}: the graph has {fault}, which no converted model has; convert again"
            )


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """Every field of the document, however deep it lies."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            yield from one.items()
            left += one.values()
        elif isinstance(one, list):
            left += one


def _operator_fault(value: Any) -> str | None:
    if isinstance(value, str):
        of_aten = _OF_ATEN.fullmatch(value)
        if of_aten[1] in OPERATORS if of_aten else _ON_SIZES.fullmatch(value):
            return None
    return f"the operator '{str(value)[:60]}'"


def _size_fault(value: Any) -> str | None:
    if isinstance(value, str):
        bare = _SYMBOL.sub("0", value)
        if _ARITHMETIC.fullmatch(bare) and all(map(_FUNCTION.fullmatch, _WORD.findall(bare))):
            return None
    return f"the size '{str(value)[:60]}'"


def _guard_fault(value: Any) -> str | None:
    return "code to check its inputs" if value else None


def _container_fault(value: Any) -> str | None:
    if isinstance(value, str) and "__" not in value and not _CONTAINER.search(value):
        return None
    return "containers of another kind"


_FAULTS = {
    "target": _operator_fault,
    "expr_str": _size_fault,
    "guards_code": _guard_fault,
    "in_spec": _container_fault,
    "out_spec": _container_fault,
}
