"""Names, types and shapes of an engine that somebody else made, matched to roles and a head.

Tested by tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.endpoint import (
    INPUT_DTYPES,
    OUTPUT_DTYPES,
    InputTensor,
    OutputTensor,
)
from transformer_serving.contract.heads import EXTRA_ROLES, HEADS, TASK_HEADS, TOKEN_ROLES, TOKENS
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.own_engine.engine import load_onnx

_IDS = "input_ids"
# A text's tokens are counted and continued by the model itself.
_UNFILLED = ("position_ids", "past_key_values")
# How exporters call the three inputs of a text model.
_ROLE_OF = {
    **dict.fromkeys(("input_ids", "ids", "input", "tokens"), _IDS),
    **dict.fromkeys(("attention_mask", "input_mask", "mask"), "attention_mask"),
    **dict.fromkeys(("token_type_ids", "segment_ids", "type_ids"), "token_type_ids"),
}
_AS_INPUT = f"NAME:TYPE with a TYPE of {', '.join(INPUT_DTYPES)}, such as input_ids:INT32"
_AS_OUTPUT = (
    f"NAME:TYPE:DIMS with a TYPE of {', '.join(OUTPUT_DTYPES)} and DIMS after the batch, such as "
    "output:FP32:2"
)
_EXPORT_AGAIN = f"export the model again with dynamic axes, or use '{command_line('convert')}'"


@dataclass(frozen=True)
class EngineTensor:
    """One tensor; `dims` with the batch, -1 for a free axis. `dtype` is Triton's name."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class EngineTensors:
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]


def read_onnx_tensors(path: Path) -> EngineTensors:
    """The inputs and outputs that an ONNX file states, without loading its weights.

    Raises ConversionRefused for a file that is none.
    """
    import onnx

    graph = load_onnx(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    names: dict[int, str] = {
        onnx.TensorProto.FLOAT: "FP32",
        onnx.TensorProto.FLOAT16: "FP16",
        onnx.TensorProto.BFLOAT16: "BF16",
        onnx.TensorProto.INT32: "INT32",
        onnx.TensorProto.INT64: "INT64",
    }

    def tensor(info: onnx.ValueInfoProto) -> EngineTensor:
        kind = info.type.tensor_type
        dims = (dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
        return EngineTensor(info.name, names.get(kind.elem_type, "another type"), tuple(dims))

    return EngineTensors(
        tuple(tensor(info) for info in graph.input if info.name not in weights),
        tuple(tensor(info) for info in graph.output),
    )


def parse_tensor(option: str, text: str, default: tuple[int, ...]) -> EngineTensor:
    """NAME:TYPE or NAME:TYPE:DIMS, dims after the batch, such as output:FP32:2 or x:FP32:-1,384.

    An input has a `default`, an output none. Raises ConversionRefused.
    """
    name, _, rest = text.partition(":")
    dtype, _, sizes = rest.partition(":")
    try:
        dims = tuple(int(size) for size in sizes.split(",")) if sizes else default
    except ValueError:
        dims = ()
    if not name or dtype not in {*INPUT_DTYPES, *OUTPUT_DTYPES} or not dims:
        raise ConversionRefused(f"{option} must be {_AS_INPUT if default else _AS_OUTPUT}")
    return EngineTensor(name, dtype, (-1, *dims))


def input_tensors(
    given: Sequence[EngineTensor], roles: Mapping[str, str]
) -> tuple[InputTensor, ...]:
    """The inputs with their roles; `roles` names those that their names do not tell.

    Raises ConversionRefused for an input without a role, of another type, or of fixed shape, for
    two of one role, and where none takes the token ids.
    """
    for tensor in given:
        role = roles.get(tensor.name) or _ROLE_OF.get(tensor.name)
        if tensor.name.startswith(_UNFILLED):
            raise ConversionRefused(
                f"input '{tensor.name}' is none that a call of texts fills, whatever its role; "
                f"export the model again without it, or use '{command_line('convert')}'"
            )
        if role not in TOKEN_ROLES:
            known = ", ".join((*TOKEN_ROLES, *EXTRA_ROLES)[: len(TOKEN_ROLES)])
            raise ConversionRefused(
                f"input '{tensor.name}' has no role; say --role {tensor.name}=ROLE with one of "
                f"{known}"
            )
        if tensor.dtype not in INPUT_DTYPES:
            raise ConversionRefused(
                f"input '{tensor.name}' is {tensor.dtype}; token ids are "
                f"{' or '.join(INPUT_DTYPES)}"
            )
        if tensor.dims != (-1, -1):
            raise ConversionRefused(
                f"input '{tensor.name}' has the shape {list(tensor.dims)}; calls need free axes "
                f"for texts and tokens, [-1, -1]; {_EXPORT_AGAIN}"
            )
    found = tuple(
        InputTensor(tensor.name, roles.get(tensor.name) or _ROLE_OF[tensor.name], tensor.dtype)
        for tensor in given
    )
    _check_roles(found)
    return found


def _check_roles(inputs: Sequence[InputTensor]) -> None:
    """Raises ConversionRefused without token ids, or where two inputs have one role."""
    names: dict[str, str] = {}
    for tensor in inputs:
        if other := names.get(tensor.role):
            raise ConversionRefused(
                f"inputs '{other}' and '{tensor.name}' are both {tensor.role}; say which role one "
                f"of them has: --role {tensor.name}=ROLE with another of {', '.join(TOKEN_ROLES)}"
            )
        names[tensor.role] = tensor.name
    if _IDS not in names:
        raise ConversionRefused(
            f"no input takes {_IDS}; say which one does: --role NAME={_IDS}; of a plan state it: "
            f"--input-tensor {_IDS}:INT32"
        )


def head_and_output(
    task: str, given: Sequence[EngineTensor], wanted: str | None
) -> tuple[str, OutputTensor]:
    """The task's head that one of the outputs can be, the output `wanted` if it is named.

    Raises ConversionRefused when none fits; the other outputs are not asked for.
    """
    named = [tensor for tensor in given if wanted in (None, tensor.name)]
    # The output decides, as it does for who made the engine; a later one may fit a head better
    # liked, as a pooler's that no embedder was trained with does.
    for tensor in named:
        for head in TASK_HEADS[task]:
            axes = HEADS[head].outputs
            alone = len(axes) == 1 and not HEADS[head].extra_roles
            if alone and _fits(tensor, axes[0]) and _is_told_apart(task, head, tensor):
                return head, OutputTensor(tensor.name, tensor.dtype, tensor.dims[1:])
    shapes = "; ".join(f"{tensor.name} {tensor.dtype} {list(tensor.dims)}" for tensor in given)
    heads = " or ".join(
        "; ".join(f"[texts, {', '.join(axes)}]" for axes in HEADS[head].outputs)
        for head in TASK_HEADS[task]
    )
    raise ConversionRefused(
        f"{task} is answered from an output {heads}, and the engine has {shapes}; name another "
        f"--task, state the sizes with --output-tensor, or use '{command_line('convert')}'"
    )


def _fits(tensor: EngineTensor, axes: Sequence[str]) -> bool:
    sizes = tensor.dims[1:]
    return (
        tensor.dtype in ("FP32", "FP16")
        and len(sizes) == len(axes)
        and all((size == -1) == (axis == TOKENS) for size, axis in zip(sizes, axes, strict=True))
        and (axes[-1] != "ends" or sizes[-1] == 2)
    )


def _is_told_apart(task: str, head: str, tensor: EngineTensor) -> bool:
    """A pair's score and a text's vector differ by their columns alone: a score is one."""
    if not {"sequence", "vector"} <= set(TASK_HEADS[task]):
        return True
    return (head == "sequence") == (tensor.dims[-1] == 1)
