"""What an endpoint's request may hold, in JSON Schema, from its card (preprocess/card.py).

That two fields must hold as many texts as one another cannot be said there.

Tested by tests/gateway/test_openapi.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS
from transformer_serving.contract.generation import MAX_ROLE_CHARACTERS
from transformer_serving.contract.heads import GENERATION

Schema = dict[str, Any]
Card = Mapping[str, Any]

_NULL: Schema = {"type": "null"}
# As preprocess/request.py reads them.
_COMMON: dict[str, Schema] = {
    "truncate": {
        "type": ["boolean", "null"],
        "description": "whether a text that is too long is cut (true) or refused (false)",
    },
    "timeout_ms": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MAX_TIMEOUT_MS,
        "description": "milliseconds after which the answer is 504",
    },
}
_OF_TEXT: dict[str, Schema] = {
    "stream": {"type": ["boolean", "null"], "description": "whether the answer comes in events"},
    "timeout_ms": _COMMON["timeout_ms"],
}


def request_body(card: Card) -> Schema:
    """The request of POST /serve/NAME with a body that it can answer as its example."""
    content: Schema = {
        "application/json": {
            "schema": {"anyOf": list(_forms(card))},
            "example": example(card),
        }
    }
    if _is_one_text(card):
        content["text/plain"] = {"schema": {"type": "string", **_at_most(card)}}
    return {"required": True, "content": content}


def example(card: Card) -> Any:
    """The bundle's golden request; where it has none any short text will do."""
    return card["golden"] or {card["fields"][0]["name"]: "A short text."}


def _forms(card: Card) -> Iterable[Schema]:
    yield _own_form(card)
    yield _inference_api(card)
    if card["task"] == GENERATION:
        message = {
            "type": "object",
            "properties": {"role": {"type": "string", "maxLength": MAX_ROLE_CHARACTERS}},
            "required": ["role", "content"],
        }
        messages = {"type": "array", "items": message, "minItems": 1}
        yield _object({"messages": messages, **_beside(card)}, ["messages"], "A conversation")


def _own_form(card: Card) -> Schema:
    fields = {row["name"]: _texts(row, card) for row in card["fields"]}
    required = [row["name"] for row in card["fields"] if row["required"]]
    own = _object({**fields, **_beside(card)}, required, "The task's own fields")
    return own | _needed(card)


def _inference_api(card: Card) -> Schema:
    inputs = {"anyOf": list(_inputs(card))}
    whole = {"inputs": inputs, **_beside(card)}
    return _object(whole, ["inputs"], "As the Inference API has it") | _needed(card)


def _inputs(card: Card) -> Iterable[Schema]:
    fields = card["fields"]
    one_text = _is_one_text(card)
    if one_text:
        yield from (_one(card), _many(_one(card), card))
    if len(fields) > 1:
        required = [row["name"] for row in fields if row["required"]]
        yield _object({row["name"]: _texts(row, card) for row in fields}, required)
        if one_text:
            single = {row["name"]: _texts({**row, "many": False}, card) for row in fields}
            yield _many(_object(single, required), card)


def _is_one_text(card: Card) -> bool:
    """Whether a text alone makes a body."""
    first, *others = card["fields"]
    return bool(first["one"]) and not any(row["required"] for row in others)


def _texts(field: Mapping[str, Any], card: Card) -> Schema:
    one = _one(card)
    forms = [one] * field["one"] + [_many(one, card)] * field["many"]
    if not field["required"]:
        forms.append(_NULL)
    return {"anyOf": forms} if len(forms) > 1 else forms[0]


def _one(card: Card) -> Schema:
    return {"type": "string", **_at_most(card)}


def _at_most(card: Card) -> Schema:
    return {"maxLength": card["limits"]["max_characters"]}


def _many(item: Schema, card: Card) -> Schema:
    return {
        "type": "array", "items": item, "minItems": 1, "maxItems": card["limits"]["max_texts"]
    }  # fmt: skip


def _beside(card: Card) -> dict[str, Schema]:
    """What any body of the endpoint may have beside its texts."""
    rows = {row["name"]: _parameter(row) for row in card["parameters"]}
    parameters = {"anyOf": [_object(rows, []), _NULL]}
    common = _OF_TEXT if card["task"] == GENERATION else _COMMON
    return {"parameters": parameters, **{name: rows[name] for name in card["beside"]}, **common}


def _needed(card: Card) -> Schema:
    """That a required parameter stands in `parameters`, or beside it where it may."""
    found = []
    for row in card["parameters"]:
        if row["required"]:
            inside = {"type": "object", "required": [row["name"]]}
            places: list[Schema] = [
                {"required": ["parameters"], "properties": {"parameters": inside}}
            ]
            if row["name"] in card["beside"]:
                places.append({"required": [row["name"]]})
            found.append({"anyOf": places})
    return {"allOf": found} if found else {}


def _parameter(row: Mapping[str, Any]) -> Schema:
    told: Schema = {"description": row["wanted"]}
    if row["default"] is not None:
        told["default"] = row["default"]
    schema = row["schema"]
    return {**schema, **told} if row["required"] else {"anyOf": [schema, _NULL], **told}


def _object(properties: dict[str, Schema], required: list[str], title: str = "") -> Schema:
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        made["required"] = required
    return {"title": title, **made} if title else made
