"""model/parity.json of a language model: prompts as ids, and the reference's own continuations.

Tested by tests/engine/proof/test_greedy.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, parse_object
from transformer_serving.contract.manifest import PRECISIONS
from transformer_serving.engine.proof.parity_set import FILE_NAME, MOST_BYTES, SCHEMA

KIND = "greedy"
_MOST_ROWS = 1000
_MOST_TOKENS = 1_000_000
_HIGHEST = 2**31 - 1


@dataclass(frozen=True)
class GreedyTolerance:
    """How far an engine's continuations may be.

    `equal` is the share of tokens that must be the reference's after the same tokens before.
    Another one is only taken where the reference's two best scores are within `margin`, and a
    log-probability may differ by `difference`: both in parts of the set's spread.
    """

    equal: float
    margin: float
    difference: float


@dataclass(frozen=True)
class GreedyRow:
    """A prompt and what the reference goes on with, `eos_ids` ending it.

    `logprobs` are those of the continuation's tokens, of raw scores; `margins` how far the best
    score was above the next, after the penalty, 0 where they are the same.

    `texts` are for an engine that takes no ids, and empty for others: of the prompt, and of it with
    each number of the continuation's tokens behind it, a text that has exactly these ids; None
    where no text has them.
    """

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    eos_ids: tuple[int, ...]
    repetition_penalty: float
    texts: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class GreedySet:
    """`spread` is the mean standard deviation of the reference's scores over the vocabulary."""

    reference: str
    precision: str
    tolerance: GreedyTolerance
    spread: float
    rows: tuple[GreedyRow, ...]

    def to_json(self) -> str:
        """The same text for the same set, on every machine."""
        head = {
            "schema": SCHEMA,
            "kind": KIND,
            "reference": self.reference,
            "precision": self.precision,
            "tolerance": asdict(self.tolerance),
            "spread": self.spread,
        }
        rows = ",\n".join(json.dumps(_stated(row), sort_keys=True) for row in self.rows)
        text = json.dumps(head, indent=1, sort_keys=True, ensure_ascii=False)[:-2]
        return f'{text},\n "rows": [\n{rows}\n]\n}}\n'


def _stated(row: GreedyRow) -> dict[str, Any]:
    """Without texts where there are none."""
    found = asdict(row)
    return found if row.texts else {name: found[name] for name in found if name != "texts"}


def is_greedy_set(raw: bytes) -> bool:
    """Whether a parity.json is of this kind; what it says is not checked.

    Raises ContractError for what is no JSON object, or too much of one.
    """
    return _parsed(raw).values.get("kind") == KIND


def read_greedy_set(raw: bytes) -> GreedySet:
    """Parse and check it. Raises ContractError naming field, limit and got."""
    fields = _parsed(raw)
    fields.number("schema", low=SCHEMA, high=SCHEMA)
    fields.choice("kind", (KIND,))
    rows = fields.rows("rows")
    if not 1 <= len(rows) <= _MOST_ROWS:
        raise ContractError(
            f"{FILE_NAME}: field 'rows' must be 1 to {_MOST_ROWS} rows, got {len(rows)}"
        )
    tolerance = fields.inner("tolerance")
    return GreedySet(
        reference=fields.take("reference", str),
        precision=fields.choice("precision", PRECISIONS),
        tolerance=GreedyTolerance(
            equal=_number(tolerance, "equal", 1.0),
            margin=_number(tolerance, "margin", 1.0),
            difference=_number(tolerance, "difference", 1.0),
        ),
        spread=_number(fields, "spread", 1e6),
        rows=tuple(_row(row) for row in rows),
    )


def _parsed(raw: bytes) -> Fields:
    if len(raw) > MOST_BYTES:
        raise ContractError(f"{FILE_NAME}: must be of at most {MOST_BYTES} bytes, got {len(raw)}")
    return parse_object(raw, FILE_NAME)


def _row(fields: Fields) -> GreedyRow:
    row = GreedyRow(
        prompt=_list(fields, "prompt", _is_id),
        continuation=_list(fields, "continuation", _is_id),
        logprobs=_list(fields, "logprobs", _is_number),
        margins=_list(fields, "margins", _is_number),
        eos_ids=_list(fields, "eos_ids", _is_id),
        repetition_penalty=_number(fields, "repetition_penalty", 100.0),
        texts=_list(fields, "texts", _is_text) if "texts" in fields.values else (),
    )
    new = len(row.continuation)
    if not row.prompt or not new or len(row.logprobs) != new or len(row.margins) != new:
        raise ContractError(
            f"{fields.where}: must have a prompt, a continuation, and as many logprobs and margins"
        )
    if row.texts and (len(row.texts) != new or row.texts[0] is None):
        raise ContractError(
            f"{fields.where}: field 'texts' must have one of the prompt, and as many as tokens"
        )
    return row


def _list(fields: Fields, name: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
    values: list[Any] = fields.take(name, list)
    if len(values) > _MOST_TOKENS or not all(map(fits, values)):
        raise ContractError(
            f"{fields.where}: field '{name}' must be a list of at most {_MOST_TOKENS} such values"
        )
    return tuple(values)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _HIGHEST


def _is_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value != "")


def _is_number(value: Any) -> bool:
    """Also false for NaN and infinities."""
    return type(value) in (int, float) and abs(value) < 1e9


def _number(fields: Fields, name: str, most: float) -> float:
    value = fields.values.get(name)
    if not _is_number(value) or value is None or not 0 < value <= most:
        raise ContractError(f"{fields.where}: field '{name}' must be above 0 and at most {most:g}")
    return float(value)
