"""What a graph in torch's JSON may hold, so that reading it runs no code of its author's.

torch's reader decodes texts of the graph once more: operators become functions of Python, sizes
are expressions that sympy evaluates, containers may name any class to import, and the names of
nodes and tensors become source code that is compiled. So each text stands in a field that is known
here and has the form of that field, and what no export of ours has must be empty.

Tested by tests/contract/test_torch_gate.py and tests/export/test_program.py.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformer_serving.contract.torch_program.operators import OPERATORS

# What a graph may call: some of ATen's operators, and Python's arithmetic on sizes.
_OF_ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.\w+", re.ASCII)
_ON_SIZES = re.compile(
    r"_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|ge|gt|le|lt|eq|ne)"
    r"|torch\.sym_(float|int|ite|max|min|not|sqrt|sum)"
    r"|math\.(ceil|floor|trunc)"
)
# Sizes: numbers, symbols as sympy writes them, and functions of sympy's and of torch's.
_SYMBOL = re.compile(r"Symbol\('[a-z]\d+'(?:, [a-z]+=(?:True|False))*\)", re.ASCII)
_WORD = re.compile(r"[^\W\d]\w*")
_ARITHMETIC = re.compile(r"[\w\s(),-]*", re.ASCII)
_FUNCTIONS = """
    Abs Add And Equality GreaterThan Integer LessThan Max Min Mod Mul Not Or Pow Rational
    StrictGreaterThan StrictLessThan Unequality
    CeilDiv CeilToInt CleanDiv FloatPow FloatTrueDiv FloorDiv FloorToInt Identity IntTrueDiv
    IsNonOverlappingAndDenseIndicator LShift ModularIndexing PowByNatural PythonMod RShift
    RoundDecimal RoundToInt ToFloat TruncToFloat TruncToInt Where
"""
_ON_SYMBOLS = frozenset(_FUNCTIONS.split())
# The containers that a module takes and gives; a context is JSON within the JSON.
_CONTAINERS = {"builtins.tuple": False, "builtins.list": False, "builtins.dict": True}
_NODE = {"type", "context", "children_spec"}
_LEAF: Mapping[str, Any] = {"type": None, "context": None, "children_spec": []}
_PROTOCOL = 1

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# What an argument may be, each after "as_": no graph within the graph, no operator, no object.
_KINDS = """
    bool bools complex device expr float float_lists floats int int_lists ints layout memory_format
    name nested_tensors none optional_tensor optional_tensors scalar_type string strings sym_bool
    sym_bools sym_float sym_floats sym_int sym_ints tensor tensors
"""
_ARGUMENTS = frozenset(f"as_{kind}" for kind in _KINDS.split())
# Maps whose keys are names, and not fields.
_BY_NAME = (
    *("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values"),
    *("range_constraints", "opset_version"),
)
_RANGE = re.compile(r"[a-z]{1,3}\d{1,6}", re.ASCII)

Fault = Callable[[Any], str | None]


def graph_fault(graph: dict[str, Any]) -> str | None:
    """The first thing that must not get to torch, in words; None for a graph that may.

    Its containers are put into our own spelling, in place: torch decodes them once more.
    """
    left: deque[tuple[str, Any]] = deque([("", graph)])
    while left:
        # An operator before what it is given: the first fault is the one that is told.
        field, one = left.popleft()
        fault = _field_fault(field, one)
        if fault is not None:
            return fault
        if isinstance(one, dict):
            one.update({name: _container(one[name]) or "" for name in _TREES if name in one})
            left += one.items()
        elif isinstance(one, list):
            left += [(field, inner) for inner in one]
    return None


def _field_fault(field: str, value: Any) -> str | None:
    if field in _EMPTY and value:
        return _EMPTY[field]
    if isinstance(value, Mapping):
        return _keys_fault(field, value)
    if isinstance(value, str):
        return _TEXTS.get(field, partial(_unknown_fault, field))(value)
    return f"no text at '{field}'" if field in _ONLY_TEXT else None


def _keys_fault(field: str, value: Mapping[str, Any]) -> str | None:
    for key in value:
        if field == "range_constraints" and not _RANGE.fullmatch(key):
            return f"the symbol '{key[:60]}'"
        if not _NAME.fullmatch(key):
            return f"the name '{key[:60]}'"
        if field not in _BY_NAME and key.startswith("as_") and key not in _ARGUMENTS:
            return f"an argument {key}"
    return None


def _unknown_fault(field: str, _: str) -> str:
    return f"a text at '{field[:60]}'"


def _operator_fault(value: str) -> str | None:
    of_aten = _OF_ATEN.fullmatch(value)
    known = of_aten[1] in OPERATORS if of_aten else _ON_SIZES.fullmatch(value)
    return None if known else f"the operator '{value[:60]}'"


def _size_fault(value: str) -> str | None:
    bare = _SYMBOL.sub("0", value)
    if _ARITHMETIC.fullmatch(bare) and _ON_SYMBOLS.issuperset(_WORD.findall(bare)):
        return None
    return f"the size '{value[:60]}'"


def _container_fault(value: str) -> str | None:
    return None if value else "containers of another kind"


def _container(value: str) -> str | None:
    """The tree in our spelling; None for one that no module of ours takes or gives."""
    try:
        tree = json.loads(value)
        if not (isinstance(tree, list) and len(tree) == 2 and tree[0] == _PROTOCOL):
            return None
        left = [tree[1]]
        while left:
            node = left.pop()
            if node == _LEAF:
                continue
            if not isinstance(node, dict) or set(node) != _NODE:
                return None
            context = json.loads(node["context"])
            if not _is_plain(node, context):
                return None
            node["context"] = json.dumps(context)
            left += node["children_spec"]
        return json.dumps([_PROTOCOL, tree[1]])
    except (ValueError, TypeError, RecursionError):
        return None


def _is_plain(node: Mapping[str, Any], context: Any) -> bool:
    """A dict's context holds its keys, which torch makes arguments of a function of."""
    has_keys = _CONTAINERS.get(node["type"])
    if has_keys is None or not isinstance(node["children_spec"], list):
        return False
    if not has_keys:
        return context is None
    return isinstance(context, list) and all(
        isinstance(key, str) and _NAME.fullmatch(key) for key in context
    )


def _form(what: str, pattern: str) -> Fault:
    compiled = re.compile(pattern, re.ASCII)
    return lambda value: None if compiled.fullmatch(value) else f"{what} '{value[:60]}'"


_TREES = ("in_spec", "out_spec")
_A_NAME = _form("the name", _NAME.pattern)
# Into a module's parts, none of which is one that Python gives every object.
_A_PLACE = _form("the name", r"(?!__)\w+(?:\.(?!__)\w+)*")
_A_NUMBER = _form("the number", r"-?Infinity|NaN")
# A constant of the graph: a mode's name, an einsum's letters, what an assertion says.
_A_WORD = _form("the text", r"[\w ,.<>='()+*/-]{0,200}")
_TEXTS: Mapping[str, Fault] = {
    "target": _operator_fault,
    "expr_str": _size_fault,
    # Those that were none of ours are empty by now.
    **dict.fromkeys(_TREES, _container_fault),
    **dict.fromkeys(("name", "as_name", "forward_arg_names"), _A_NAME),
    **dict.fromkeys(("parameter_name", "buffer_name", "tensor_constant_name"), _A_PLACE),
    **dict.fromkeys(("as_string", "as_strings"), _A_WORD),
    # As torch writes what JSON has no number for.
    **dict.fromkeys(("as_float", "as_floats", "as_float_lists", "real", "imag"), _A_NUMBER),
    "fqn": _form("the name", r"[\w.@]*"),
    # Of a device; what another one holds is put there after it is read.
    "type": _form("the device", "cpu"),
    "verifiers": _form("the verifier", "ATEN|TRAINING"),
    "torch_version": _form("the version", r"[\w.+-]{1,60}"),
}
_ONLY_TEXT = ("target", "expr_str", *_TREES)
_EMPTY = {
    "guards_code": "code to check its inputs",
    "custom_obj_values": "objects of other kinds",
    "treespec_namedtuple_fields": "containers of another kind",
    "metadata": "notes beside its nodes",
}
