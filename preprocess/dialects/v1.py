"""KServe's V1 protocol, TensorFlow Serving's before it: POST /v1/models/NAME:predict.

An instance is a text, or an object of the endpoint's own fields. What counts for the whole request
stands beside `instances`.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from preprocess.body_form import BodyForm
from preprocess.dialects.operation import Answered, Asked, Operation, read_fields
from preprocess.parameters import Parameter
from preprocess.request import wrong
from preprocess.response import Reply, answer_body
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import TASKS

_OF_ALL = ("parameters", "truncate")


def _read(asked: Asked) -> dict[str, Any]:
    body = read_fields(asked.body, ("instances", *_OF_ALL))
    instances = body.get("instances")
    if not isinstance(instances, list) or not instances:
        raise wrong("instances", "a list with texts or objects in it", instances)
    form = asked.task.form
    rows = _said([_row(instance, form) for instance in instances], form)
    if any(row.keys() != rows[0].keys() for row in rows):
        raise wrong("instances", "a list of objects that have the same fields", instances)
    own = {name: body[name] for name in _OF_ALL if body.get(name) is not None}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name not in form.names:
            own[name] = _shared(name, values, asked.task.parameters)
        else:
            own[name] = values if name in _required(form) else _filled(values)
    return own if form.first.many else _alone(own, form)


def _row(instance: Any, form: BodyForm) -> Mapping[str, Any]:
    if form.is_one_text and isinstance(instance, str):
        return {form.first.name: instance}
    if not isinstance(instance, dict):
        wanted = "texts or objects" if form.is_one_text else "objects"
        raise wrong("instances", f"a list of {wanted} with {' and '.join(form.names)}", instance)
    return read_fields(instance, (*form.names, *form.beside))


def _required(form: BodyForm) -> list[str]:
    return [field.name for field in (form.first, form.second) if field and field.required]


def _filled(values: list[Any]) -> list[Any]:
    """An empty second text is none, as null is."""
    return ["" if value is None else value for value in values]


def _said(rows: list[Mapping[str, Any]], form: BodyForm) -> list[Mapping[str, Any]]:
    """Without what need not be sent and is null in every row that has it."""
    kept = {name for row in rows for name, value in row.items() if value is not None}
    kept.update(_required(form))
    return [{name: value for name, value in row.items() if name in kept} for row in rows]


def _shared(name: str, values: list[Any], table: Sequence[Parameter]) -> Any:
    """The one value of a parameter: a request has one."""
    parameter = next(row for row in table if row.name == name)
    for value in values:
        # One that nests deep, which is none, cannot be compared.
        parameter.read({name: value})
    if any(value != values[0] for value in values):
        raise ServingError(
            "invalid_field", f"field '{name}' must be the same in every instance", field=name
        )
    return values[0]


def _alone(own: dict[str, Any], form: BodyForm) -> dict[str, Any]:
    """Of a task that answers one body at a time: its fields as they are."""
    texts = own.get(form.first.name, [None])
    if len(texts) != 1:
        raise ServingError(
            "too_large", "the endpoint answers one instance a request; send several requests",
            field="instances", limit=1, got=len(texts),
        )  # fmt: skip
    return {name: value[0] if name in form.names else value for name, value in own.items()}


def _write(answered: Answered) -> Reply:
    request = answered.work.request
    predictions = answered.answer if request.many else [answered.answer]
    return Reply(b'{"predictions":%b}' % answer_body(predictions))


OPERATIONS = (Operation("v1.predict", frozenset(TASKS), _read, _write),)
