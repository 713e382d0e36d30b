"""One row of a parity set: a text as token ids, and the reference's answer to it.

Tested by tests/engine/proof/test_parity_set.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields
from transformer_serving.contract.heads import TOKEN_ROLES
from transformer_serving.engine.proof.arrays import Array, narrowed, read_array, written

_NUMPY = {"INT32": "int32", "INT64": "int64"}

# How many axes each output has after the batch, and whether the first of them counts tokens.
KINDS: dict[str, tuple[tuple[int, bool], ...]] = {
    # Logits [labels]; answers are made of them by softmax, by sigmoid, or as they are.
    "softmax": ((1, False),),
    "sigmoid": ((1, False),),
    "scores": ((1, False),),
    # Logits [tokens, labels], softmaxed over the labels.
    "token_softmax": ((2, True),),
    # Logits of first and last token [tokens, 2], softmaxed over the tokens.
    "spans": ((2, True),),
    # Vectors [width], and one vector a token [tokens, width].
    "vector": ((1, False),),
    "token_vectors": ((2, True),),
    # Best scores and their token ids [masks, best], candidates' scores [masks, candidates].
    "masks": ((2, False), (2, False), (2, False)),
}


@dataclass(frozen=True)
class ProofInput:
    """An input of the engine; `pad` stands where a row has no value of its own."""

    name: str
    role: str
    dtype: str
    pad: int

    @property
    def numpy(self) -> str:
        return _NUMPY[self.dtype]


@dataclass(frozen=True)
class ParityRow:
    """One text: `inputs` by tensor name, unpadded; `outputs` as the reference gives them alone.

    `positions` are the tokens whose values an output with an axis of tokens has, None for all.
    """

    tokens: int
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    positions: Array | None = None


def written_row(row: ParityRow) -> dict[str, Any]:
    return {
        "tokens": row.tokens,
        "inputs": {name: written(narrowed(array)) for name, array in row.inputs.items()},
        "outputs": {name: written(array) for name, array in row.outputs.items()},
        "positions": None if row.positions is None else written(narrowed(row.positions)),
    }


@dataclass(frozen=True)
class RowForm:
    """What every row of a set must look like."""

    kind: str
    inputs: Sequence[ProofInput]
    outputs: Sequence[str]
    buckets: Sequence[int]

    def row(self, fields: Fields) -> ParityRow:
        tokens = fields.number("tokens", low=1, high=self.buckets[-1])
        inputs, outputs = fields.inner("inputs"), fields.inner("outputs")
        for part, count in ((inputs, len(self.inputs)), (outputs, len(self.outputs))):
            if len(part.values) != count:
                raise ContractError(
                    f"{part.where}: must hold {count} tensors, got {len(part.values)}"
                )
        positions = self._positions(fields, tokens)
        counted = tokens if positions is None else len(positions)
        return ParityRow(
            tokens,
            {tensor.name: _given(inputs, tensor, tokens) for tensor in self.inputs},
            {
                name: _expected(outputs, name, axes, counted if has_tokens else None)
                for name, (axes, has_tokens) in zip(self.outputs, KINDS[self.kind], strict=True)
            },
            positions,
        )

    def _positions(self, fields: Fields, tokens: int) -> Array | None:
        if fields.values.get("positions") is None:
            return None
        found = _whole(fields.inner("positions"), np.int32)
        if found.ndim != 1 or not len(found) or (found < 0).any() or (found >= tokens).any():
            raise ContractError(
                f"{fields.where}: field 'positions' must be places in the row's {tokens} tokens"
            )
        return found


def _whole(fields: Fields, dtype: Any) -> Array:
    found = read_array(fields)
    if found.dtype.kind == "f":
        raise ContractError(f"{fields.where}: field 'dtype' must be of whole numbers, got float32")
    return found.astype(dtype)


def _given(fields: Fields, tensor: ProofInput, tokens: int) -> Array:
    found = _whole(fields.inner(tensor.name), tensor.numpy)
    size = tokens if tensor.role in TOKEN_ROLES else None
    if found.ndim != 1 or not len(found) or (size is not None and len(found) != size):
        raise ContractError(
            f"{fields.where}: field '{tensor.name}' must be a list of {size or 'some'} numbers, "
            f"got shape {list(found.shape)}"
        )
    # A graph that reads outside of its tables may end the server.
    if (found < 0).any() or (tensor.role == "mask_positions" and (found >= tokens).any()):
        raise ContractError(
            f"{fields.where}: field '{tensor.name}' must not be negative or outside of the row"
        )
    return found


def _expected(fields: Fields, name: str, axes: int, counted: int | None) -> Array:
    found = read_array(fields.inner(name))
    if found.ndim != axes or 0 in found.shape or counted not in (None, found.shape[0]):
        wanted = f"{axes} axes" if counted is None else f"{axes} axes, the first of {counted}"
        raise ContractError(
            f"{fields.where}: field '{name}' must have {wanted}, got shape {list(found.shape)}"
        )
    return found
