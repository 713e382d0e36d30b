"""From the body that the host parsed to a Request: checks only, nothing of the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import CHARACTERS_A_TEXT, Parameter, Parameters, is_unicode, told
from preprocess.raw_body import no_json, text_of
from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS
from transformer_serving.contract.endpoint import Limits
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of


class Request(NamedTuple):
    """The texts of one request, in order.

    `texts` are those of the task's first field, `pairs` those of its second. `many` tells a list
    from a single text. `pipeline_shape` is set when the body used the Inference API's `inputs`:
    then the answer is what `transformers.pipeline` returns; `objects` when its texts came as
    objects of the body's own fields. `truncate` is None when the caller did not say.
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    many: bool
    pipeline_shape: bool
    parameters: Any
    timeout_s: float | None
    truncate: bool | None
    objects: bool = False

    @property
    def text_field(self) -> str:
        """The field of its texts, of a task that has one such field."""
        return "inputs" if self.pipeline_shape and not self.objects else "text"

    @property
    def characters(self) -> int:
        """What tokenizing will cost, and making rows of it: characters of all texts together, and
        as many for each text and row as take as long.
        """
        first, second = self.texts, self.pairs or ()
        parameters: Parameters = self.parameters
        once = sum(map(len, first)) + sum(map(len, second))
        once += CHARACTERS_A_TEXT * (len(first) + len(second)) + parameters.characters
        return once + self.repeated[1] + parameters.rows(first, second)

    @property
    def repeated(self) -> tuple[str, int]:
        """The field that is read again with each text, and its characters of all times together."""
        parameters: Parameters = self.parameters
        return parameters.repeated(self.texts, self.pairs or ())


class Task(Protocol):
    """What a task says about its body; `answers` has one for each task."""

    @property
    def form(self) -> BodyForm: ...

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    def read_parameters(self, values: Mapping[str, Any]) -> Parameters: ...


def read_body(body: Any, task: Task, limits: Limits) -> Request:
    """Check the body against the task and the limits. Raises ServingError (400, 413)."""
    form = task.form
    if isinstance(body, bytes | bytearray):
        raw = bytes(body)
        if not form.is_one_text:
            raise no_json(raw)
        body = {form.first.name: text_of(raw, form.telling)}
    check_object(body)
    pipeline_shape = "inputs" in body
    allowed = form.inference_api if pipeline_shape else form.own
    refuse_unknown(body, allowed, parameters=task.parameters)
    found = (
        _inputs(body["inputs"], form, limits) if pipeline_shape else _own_fields(body, form, limits)
    )
    request = Request(
        texts=found.texts,
        pairs=found.pairs,
        many=found.many,
        pipeline_shape=pipeline_shape,
        parameters=task.read_parameters(_parameters(body, form)),
        timeout_s=read_timeout(body),
        truncate=_truncate(body),
        objects=found.objects,
    )
    check_repeats(*request.repeated, limits)
    return request


def check_object(body: Any) -> None:
    """Raises ServingError `malformed_body`."""
    # Nearly all are dicts, and what an abstract class is asked takes a microsecond.
    if not isinstance(body, dict | Mapping):
        raise ServingError("malformed_body", "the body must be a JSON object", got=kind_of(body))


def refuse_unknown(
    body: Mapping[str, Any], allowed: Collection[str], unnamed: Collection[str] = (),
    parameters: Collection[Parameter] = (),
) -> None:  # fmt: skip
    """Raises ServingError `invalid_field` for a field that is not allowed; what is `unnamed` is
    allowed, too. Of one of the task's `parameters` it says where those stand.
    """
    for name in body:
        if name not in allowed and name not in unnamed:
            if any(name == row.name for row in parameters):
                # By its name, which is one of ours then and no longer only the caller's.
                raise ServingError(
                    "invalid_field",
                    f"'{name}' is a parameter; put it into the object 'parameters'",
                    field=name,
                )
            raise ServingError(
                "invalid_field", f"an unknown field; allowed are {', '.join(allowed)}"
            )


# How often the longest text that is taken may be read again: a prompt before each text, a query
# beside each document.
_REPEATS = 10


def check_repeats(field: str, characters: int, limits: Limits) -> None:
    """Raises ServingError `too_large` where what stands in a body once is so many characters in
    all texts that it goes into.
    """
    most = _REPEATS * limits.max_characters
    if characters > most:
        raise ServingError(
            "too_large",
            f"'{field}' goes into each text, and is too many characters in all of them; shorten "
            "it or send fewer texts in a request",
            field=field,
            limit=most,
            got=characters,
        )


class _Found(NamedTuple):
    """The texts of a body; `objects` as in Request."""

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    many: bool
    objects: bool = False


def _inputs(value: Any, form: BodyForm, limits: Limits) -> _Found:
    """What the Inference API's `inputs` holds: texts, an object of fields, or a list of those."""
    rows = value if isinstance(value, list) else [value]
    if form.second is not None and dict in map(type, rows):
        if not isinstance(value, list):
            return _object(value, form, limits)
        if form.is_one_text:
            return _objects(value, form, limits)
    if not form.is_one_text:
        raise wrong("inputs", f"an object with {' and '.join(form.names)}", value)
    return _Found(_texts({"inputs": value}, _INPUTS, limits), None, isinstance(value, list))


_INPUTS = TextField("inputs")


def _object(value: Any, form: BodyForm, limits: Limits) -> _Found:
    if not isinstance(value, Mapping):
        raise wrong("inputs", f"a list of objects with {' and '.join(form.names)}", value)
    refuse_unknown(value, form.names)
    return _own_fields(value, form, limits)._replace(objects=True)


def _objects(rows: list[Any], form: BodyForm, limits: Limits) -> _Found:
    check_count(rows, "inputs", limits)
    found = [_object(row, form, limits) for row in rows]
    if any(row.many for row in found):
        raise wrong("inputs", "a list of objects that hold one text in a field", rows)
    # An empty second text is none, to transformers too.
    pairs = tuple(row.pairs[0] if row.pairs else "" for row in found)
    return _Found(tuple(row.texts[0] for row in found), pairs, many=True, objects=True)


def _own_fields(body: Mapping[str, Any], form: BodyForm, limits: Limits) -> _Found:
    first, second = form.first, form.second
    texts = _texts(body, first, limits)
    many = isinstance(body[first.name], list)
    if second is None or (not second.required and body.get(second.name) is None):
        return _Found(texts, None, many)
    pairs = _texts(body, second, limits)
    pairs_many = isinstance(body[second.name], list)
    if form.shares_second and not pairs_many:
        return _Found(texts, pairs * len(texts), many)
    if first.many and (pairs_many != many or len(pairs) != len(texts)):
        raise ServingError(
            "invalid_field",
            f"field '{second.name}' must hold as many texts as the texts it is paired with",
            field=second.name,
            limit=len(texts),
            got=len(pairs),
        )
    return _Found(texts, pairs, many)


def _texts(body: Mapping[str, Any], field: TextField, limits: Limits) -> tuple[str, ...]:
    if field.name not in body:
        raise ServingError("invalid_field", f"field '{field.name}' is missing", field=field.name)
    value = body[field.name]
    texts = value if isinstance(value, list) else [value]
    if not (field.many if isinstance(value, list) else field.one):
        raise wrong(field.name, field.wanted, value)
    check_count(texts, field.name, limits)
    for text in texts:
        check_text(text, field, limits)
    return tuple(texts)


def check_count(texts: list[Any], field: str, limits: Limits, called: str = "texts") -> None:
    """Raises ServingError for no texts and for too many of them, which it says of those `called`
    so."""
    if not texts:
        raise ServingError(
            "invalid_field", f"field '{field}' is an empty list", field=field, limit=1, got=0
        )
    if len(texts) > limits.max_texts:
        raise ServingError(
            "too_large",
            f"field '{field}' holds too many {called}; send them in several requests",
            field=field, limit=limits.max_texts, got=len(texts),
        )  # fmt: skip


def check_text(text: Any, field: TextField, limits: Limits) -> None:
    if not isinstance(text, str):
        raise wrong(field.name, field.wanted, text)
    if len(text) > limits.max_characters:
        raise ServingError(
            "too_large",
            f"a text of field '{field.name}' has too many characters",
            field=field.name,
            limit=limits.max_characters,
            got=len(text),
        )
    if not is_unicode(text):
        raise ServingError(
            "invalid_field",
            f"a text of field '{field.name}' holds a lone surrogate",
            field=field.name,
        )


def wrong(field: str, wanted: str, value: Any) -> ServingError:
    """The refusal of a field whose value is of another kind than is wanted."""
    return ServingError(
        "invalid_field", f"field '{field}' must be {wanted}", field=field, got=kind_of(value)
    )


def _parameters(body: Mapping[str, Any], form: BodyForm) -> Mapping[str, Any]:
    value = body.get("parameters")
    if value is None:
        value = {}
    elif not isinstance(value, Mapping):
        raise wrong("parameters", "an object", value)
    beside = {name: body[name] for name in form.beside if name in body}
    if any(name in value for name in beside):
        raise ServingError(
            "invalid_field", "a parameter is given twice, beside 'parameters' and in it",
            field="parameters",
        )  # fmt: skip
    return {**value, **beside} if beside else value


def read_timeout(body: Mapping[str, Any]) -> float | None:
    value = body.get("timeout_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TIMEOUT_MS:
        raise ServingError(
            "invalid_field",
            f"field 'timeout_ms' must be whole milliseconds from 1 to {MAX_TIMEOUT_MS}",
            field="timeout_ms",
            limit=MAX_TIMEOUT_MS,
            got=told(value),
        )
    return value / 1000


def _truncate(body: Mapping[str, Any]) -> bool | None:
    value = body.get("truncate")
    if value is not None and not isinstance(value, bool):
        raise wrong("truncate", "true or false", value)
    return value
