"""model/parity.json of a bundle: rows of tokens, and what the reference answers to each."""

from __future__ import annotations

import json
from dataclasses import dataclass

from transformer_serving.contract.endpoint import INPUT_DTYPES
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, kind_of, parse_object
from transformer_serving.contract.heads import EXTRA_ROLES, TOKEN_ROLES
from transformer_serving.contract.manifest import PRECISIONS
from transformer_serving.engine.proof.rows import KINDS, ParityRow, ProofInput, RowForm, written_row

SCHEMA = 1
FILE_NAME = "parity.json"
MOST_BYTES = 1 << 27
_MOST_TOKENS = 1_000_000
_MOST_ROWS = 10_000
_MOST_NAMES = 16


@dataclass(frozen=True)
class Tolerance:
    """How far an answer may be: `difference` of a score or vector element, relative where they are
    larger than 1; `cosine` at least, of a vector's direction; `raw` of a logit, as a part of the
    largest logit that the set has. A softmax hides what logits show."""

    difference: float
    cosine: float
    raw: float


@dataclass(frozen=True)
class ParitySet:
    """`kind` is how outputs are compared, `outputs` their names in the order of the head."""

    reference: str
    precision: str
    tolerance: Tolerance
    kind: str
    inputs: tuple[ProofInput, ...]
    outputs: tuple[str, ...]
    padding_side: str
    buckets: tuple[int, ...]
    max_batch_size: int
    max_call_tokens: int | None
    rows: tuple[ParityRow, ...]
    schema: int = SCHEMA

    def to_json(self) -> str:
        """The same text for the same set, on every machine."""
        values = {
            "schema": self.schema,
            "reference": self.reference,
            "precision": self.precision,
            "tolerance": vars(self.tolerance),
            "kind": self.kind,
            "inputs": [vars(tensor) for tensor in self.inputs],
            "outputs": list(self.outputs),
            "padding_side": self.padding_side,
            "buckets": list(self.buckets),
            "max_batch_size": self.max_batch_size,
            "max_call_tokens": self.max_call_tokens,
        }
        # One line a row: nobody reads base64, and a difference of two files shows which rows.
        rows = ",\n".join(json.dumps(written_row(row), sort_keys=True) for row in self.rows)
        head = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False)[:-2]
        return f'{head},\n "rows": [\n{rows}\n]\n}}\n'


def read_parity_set(raw: bytes) -> ParitySet:
    """Parse and check model/parity.json. Raises ContractError naming field, limit and got."""
    if len(raw) > MOST_BYTES:
        raise ContractError(f"{FILE_NAME}: must be of at most {MOST_BYTES} bytes, got {len(raw)}")
    fields = parse_object(raw, FILE_NAME)
    fields.number("schema", low=SCHEMA, high=SCHEMA)
    kind = fields.choice("kind", tuple(KINDS))
    inputs = _inputs(fields)
    outputs = fields.texts("outputs")
    if len(set(outputs)) != len(KINDS[kind]) or len(outputs) != len(KINDS[kind]):
        raise ContractError(
            f"{FILE_NAME}: field 'outputs' must be {len(KINDS[kind])} names for kind '{kind}', got "
            f"{len(outputs)}"
        )
    buckets = _buckets(fields)
    shape = RowForm(kind, inputs, outputs, buckets)
    rows = fields.rows("rows")
    if not 1 <= len(rows) <= _MOST_ROWS:
        raise ContractError(
            f"{FILE_NAME}: field 'rows' must be 1 to {_MOST_ROWS} rows, got {len(rows)}"
        )
    absent = fields.values.get("max_call_tokens") is None
    found = ParitySet(
        reference=fields.take("reference", str),
        precision=fields.choice("precision", PRECISIONS),
        tolerance=_tolerance(fields.inner("tolerance")),
        kind=kind,
        inputs=inputs,
        outputs=outputs,
        padding_side=fields.choice("padding_side", ("right", "left")),
        buckets=buckets,
        max_batch_size=fields.number("max_batch_size", low=1, high=65_536),
        max_call_tokens=None
        if absent
        else fields.number("max_call_tokens", low=1, high=100_000_000),
        rows=tuple(shape.row(row) for row in rows),
    )
    _check_covered(found)
    return found


def _check_covered(found: ParitySet) -> None:
    below = 0
    for bucket in found.buckets:
        if not any(below < row.tokens <= bucket for row in found.rows):
            raise ContractError(
                f"{FILE_NAME}: field 'rows' must hold one of {below + 1} to {bucket} tokens"
            )
        below = bucket


def _tolerance(fields: Fields) -> Tolerance:
    return Tolerance(
        difference=_share(fields, "difference"),
        cosine=_share(fields, "cosine"),
        raw=_share(fields, "raw"),
    )


def _share(fields: Fields, name: str) -> float:
    value = fields.values.get(name)
    # Compared before it becomes a float: JSON's whole numbers have no end.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        got = "a number" if isinstance(value, int | float) else kind_of(value)
        raise ContractError(f"{fields.where}: field '{name}' must be above 0 and at most 1: {got}")
    return float(value)


def _buckets(fields: Fields) -> tuple[int, ...]:
    buckets = fields.take("buckets", list)
    if (
        not buckets
        or not all(type(size) is int and 0 < size <= _MOST_TOKENS for size in buckets)
        or buckets != sorted(set(buckets))
    ):
        raise ContractError(
            f"{fields.where}: field 'buckets' must rise strictly from 1 to at most {_MOST_TOKENS}"
        )
    return tuple(buckets)


def _inputs(fields: Fields) -> tuple[ProofInput, ...]:
    inputs = tuple(
        ProofInput(
            row.take("name", str),
            row.choice("role", (*TOKEN_ROLES, *EXTRA_ROLES)),
            row.choice("dtype", INPUT_DTYPES),
            row.number("pad", low=0, high=2**31 - 1),
        )
        for row in fields.rows("inputs")[:_MOST_NAMES]
    )
    roles, names = {tensor.role for tensor in inputs}, {tensor.name for tensor in inputs}
    if not len(roles) == len(names) == len(fields.values["inputs"]) or "input_ids" not in roles:
        raise ContractError(
            f"{fields.where}: field 'inputs' must name input_ids, and no role or name twice"
        )
    return inputs
