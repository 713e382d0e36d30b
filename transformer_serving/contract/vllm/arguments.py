"""model.json of a bundle for vLLM: the arguments that Triton's backend starts the engine with.

vLLM takes whatever stands there, and some of its arguments run code of the model's writer or read
files and addresses elsewhere. So a bundle has those of the rows and no others. Its `model` is the
bundle's own folder, whose path only the machine knows that serves it: the controller puts it in.

Tested by tests/contract/test_vllm_arguments.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from transformer_serving.contract.engine_parameters import ON, VLLM, EngineParameter, parameters_of
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, parse_object
from transformer_serving.contract.generation import MAX_POSITIONS

FILE_NAME = "model.json"
HERE = "."
# By a bundle's names. Pickles are not looked for where safetensors are named.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_FIXED = {"model": HERE, "load_format": "safetensors"}
_OF_THE_MODEL = ("dtype", "max_model_len")


def arguments_of(precision: str, max_positions: int, given: Mapping[str, str]) -> str:
    """The file's text; `given` are engine parameters, checked."""
    rows = parameters_of(VLLM)
    values = {name: row.default for name, row in rows.items() if row.default} | dict(given)
    arguments = {
        **_FIXED,
        "dtype": DTYPES[precision],
        "max_model_len": max_positions,
        **{name: _argument(rows[name], value) for name, value in values.items()},
    }
    return json.dumps(arguments, indent=2, sort_keys=True) + "\n"


def check_arguments(text: str | bytes) -> Mapping[str, Any]:
    """The arguments, which are the rows' and within their limits.

    Raises ContractError naming field, limit and got.
    """
    fields = parse_object(text, FILE_NAME)
    for name, value in _FIXED.items():
        fields.choice(name, (value,))
    fields.choice("dtype", tuple(DTYPES.values()))
    fields.number("max_model_len", low=2, high=MAX_POSITIONS)
    rows = parameters_of(VLLM)
    for name in fields.values:
        if name in rows:
            rows[name].check(_said(rows[name], fields))
        elif name not in (*_FIXED, *_OF_THE_MODEL):
            raise ContractError(
                f"{FILE_NAME}: argument '{name}' is none that a bundle may have; there are "
                f"{', '.join((*_FIXED, *_OF_THE_MODEL, *rows))}"
            )
    return fields.values


def filled_in(text: bytes, folder: str) -> bytes | None:
    """The text with the folder's path; None for one that names a model of its own."""
    try:
        values = parse_object(text, FILE_NAME).values
    except ContractError:
        return None
    if values.get("model") != HERE:
        return None
    return (json.dumps({**values, "model": folder}, indent=2) + "\n").encode()


def _argument(row: EngineParameter, value: str) -> bool | float | int:
    if row.choices:
        return value == ON
    return float(value) if row.fraction else int(value)


def _said(row: EngineParameter, fields: Fields) -> str:
    """The value in the row's words."""
    if row.choices:
        return "on" if fields.take(row.name, bool) else "off"
    if row.fraction:
        return f"{fields.take(row.name, float):.4g}"
    return str(fields.take(row.name, int))
