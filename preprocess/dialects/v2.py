"""The Open Inference Protocol, V2: POST /v2/models/NAME/infer, and such bodies at /serve/NAME.

A tensor's name is a keyword of the pipeline, as in MLServer's Hugging Face runtime, and the answer
is the pipeline's: an element of its list a row, what is no list one row.

Tested by tests/preprocess/test_v2.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from preprocess.body_form import BodyForm, TextField
from preprocess.dialects.operation import Answered, Asked, Operation, check_repeated
from preprocess.dialects.v2_tensors import Given, parameters_of, read_tensors
from preprocess.dialects.v2_texts import one_tensor
from preprocess.parameters import Kind
from preprocess.request import check_object
from preprocess.response import Reply, answer_body
from preprocess.tensors import Array
from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of

# What the texts may be called beside the task's own name for them: MLServer's two, and what
# transformers calls the first argument of one pipeline or another.
TEXTS = ("args", "array_inputs", "inputs", "text_inputs", "sequences")
# A positional argument: one of it is a text, not a list of one.
_POSITIONAL = "args"
OUTPUT = "output"
CONTENT_TYPE = "hg_jsonlist"
HEADER = "inference-header-content-length"
_BINARY = "application/octet-stream"
_TIMEOUT = "timeout_ms"
_OF_OUR_BODY = (_TIMEOUT, "truncate")
# Of the request's parameters, those that are no pipeline's. `timeout` is in microseconds.
_OF_THE_PROTOCOL = frozenset({
    "binary_data_output", "content_type", "headers", "priority", "sequence_id", "sequence_start",
    "sequence_end", "timeout", "triton_enable_empty_final_response",
})  # fmt: skip
_WITHOUT_EFFECT = _OF_THE_PROTOCOL - {"timeout"}
# Of those, what also says nothing of how the texts are to be read.
_PLAIN = _WITHOUT_EFFECT - {"content_type"}
# The answer's one output as JSON, by what it holds and whether its bytes come after the JSON.
_ROWS = (
    f'{{"name":"{OUTPUT}","datatype":"BYTES","shape":[%d,1],'
    f'"parameters":{{"content_type":"{CONTENT_TYPE}"'
).encode()
_ROWS_HERE, _ROWS_BINARY = _ROWS + b'},"data":%b}', _ROWS + b',"binary_data_size":%d}}'
_VECTORS = f'{{"name":"{OUTPUT}","datatype":"FP32","shape":%b,'.encode()
_VECTORS_HERE = _VECTORS + b'"data":%b}'
_VECTORS_BINARY = _VECTORS + b'"parameters":{"binary_data_size":%d}}'


def is_v2(body: Any) -> bool:
    """Whether a body at /serve/NAME is one of this protocol."""
    if not isinstance(body, dict):
        return False
    inputs = body.get("inputs")
    return (
        isinstance(inputs, list)
        and bool(inputs)
        and isinstance(inputs[0], dict)
        and "datatype" in inputs[0]
    )


def _read(asked: Asked) -> dict[str, Any]:
    body = asked.body
    check_object(body)
    parameters = parameters_of(body, "parameters")
    if "outputs" in body:
        # What is wrong with them is said before the engine is asked.
        _wanted(body)
    check_repeated(body, "id")
    most, form = asked.endpoint.limits.max_texts, asked.task.form
    if parameters.keys() <= _PLAIN and not (form.second and form.second.required):
        plain = one_tensor(body, asked.binary, (form.first.name, *TEXTS), most)
        if plain is not None:
            name, texts = plain
            is_alone = name == _POSITIONAL and len(texts) == 1
            return {"inputs": texts[0] if is_alone else texts}
    default = parameters.get("content_type")
    given = read_tensors(body, asked.binary, most, default)
    own: dict[str, Any] = {"inputs": _inputs(given, asked)}
    if not given and parameters.keys() <= _WITHOUT_EFFECT:
        # Most say no more.
        return own
    told = _told(parameters)
    if given:
        _add(told, given, {row.name: row.kind for row in asked.task.parameters})
    if told:
        own |= {name: told.pop(name) for name in _OF_OUR_BODY if name in told}
        own["parameters"] = told
    return own


def _add(told: dict[str, Any], given: Mapping[str, Given], kinds: Mapping[str, Kind]) -> None:
    """The parameters that came as tensors, to those that came as such."""
    for name, tensor in given.items():
        if name in told and name != _TIMEOUT:
            raise ServingError(
                "invalid_field", "a parameter is given twice, by a tensor and by 'parameters'",
                field="parameters",
            )  # fmt: skip
        values = tensor.values
        takes_a_list = name in kinds and isinstance(values, list) and kinds[name].fits(values)
        value = values if not tensor.whole and takes_a_list else _one_or_all(values)
        told[name] = _sooner(told[name], value) if name in told else value


def _told(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The request's own parameters but the protocol's. Raises ServingError (400)."""
    told = {name: value for name, value in parameters.items() if name not in _OF_THE_PROTOCOL}
    timeout = parameters.get("timeout")
    if timeout is None:
        return told
    if type(timeout) is not int or timeout < 0:
        raise ServingError(
            "invalid_field",
            "parameter 'timeout' must be a whole number of microseconds, 0 for none",
            field="timeout", limit=0, got=kind_of(timeout),
        )  # fmt: skip
    if timeout:
        named_ms = min(max(1, timeout // 1000), MAX_TIMEOUT_MS)
        told[_TIMEOUT] = _sooner(told.get(_TIMEOUT, named_ms), named_ms)
    return told


def _sooner(one: Any, other: Any) -> Any:
    """Of two deadlines: a proxy, and the port of gRPC, sets one beside the caller's own.

    What is no number stays, to be refused.
    """
    if type(one) is not int:
        return one
    return min(one, other) if type(other) is int else other


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _inputs(given: dict[str, Given], asked: Asked) -> Any:
    """What the Inference API's `inputs` would hold; takes the tensors of it out of `given`."""
    form = asked.task.form
    name = _name_of_texts(given, asked)
    needs_both = form.second is not None and form.second.required
    first = given.pop(name)
    if first.whole:
        first.open()
    second = given.pop(form.second.name, None) if given and form.second else None
    if second is not None:
        if second.whole:
            second.open()
        is_alone = first.whole or name == _POSITIONAL or needs_both
        return _object(form, first, second, is_alone)
    if first.whole and isinstance(first.values[0], dict):
        # The pipeline's own object of both fields.
        return first.values[0]
    if needs_both:
        return _object(form, first, None, True)
    alone = first.whole or (name == _POSITIONAL and len(first.values) == 1)
    return first.values[0] if alone else first.values


def _object(form: BodyForm, first: Given, second: Given | None, is_alone: bool) -> dict[str, Any]:
    """Both fields; `is_alone` says whether one element of the first is no list of one."""
    one = is_alone and len(first.values) == 1
    found = {form.first.name: _shaped(form.first, first, one and not (second and _many(second)))}
    if second is not None and form.second is not None:
        found[form.second.name] = _shaped(form.second, second, one or form.shares_second)
    return found


def _many(tensor: Given) -> bool:
    return len(tensor.values) != 1


def _shaped(field: TextField, tensor: Given, alone: bool) -> Any:
    """One text as such where the field takes one, and where it also takes lists, if `alone`."""
    is_one = field.one and not _many(tensor) and (alone or not field.many)
    return tensor.values[0] if is_one else tensor.values


def _name_of_texts(given: Mapping[str, Given], asked: Asked) -> str:
    """The tensor of the task's first field. Raises ServingError (400)."""
    own = asked.task.form.first.name
    if own in given and len(given) == 1:
        return own
    names = [name for name in given if name == own or name in TEXTS]
    if not names and len(given) == 1:
        taken = {*(row.name for row in asked.task.parameters), *asked.task.form.names}
        names = [name for name in given if name not in taken]
    if len(names) != 1:
        raise ServingError(
            "invalid_field",
            f"there must be one tensor of texts; its name is '{own}' or one of {', '.join(TEXTS)}",
            field="inputs", limit=1, got=len(names),
        )  # fmt: skip
    return names[0]


def _wanted(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether the request names the output, and whether it wants it binary.

    Raises ServingError (400).
    """
    binary = (body.get("parameters") or {}).get("binary_data_output") is True
    outputs = body.get("outputs")
    if outputs is None:
        return False, binary
    if not isinstance(outputs, list) or not all(isinstance(row, dict) for row in outputs):
        raise ServingError(
            "invalid_field", "field 'outputs' must be a list of objects", field="outputs",
            got=kind_of(outputs),
        )  # fmt: skip
    for row in outputs:
        parameters = parameters_of(row, "outputs.parameters")
        if row.get("name") != OUTPUT:
            raise ServingError(
                "invalid_field", f"there is no such output; the one there is, is '{OUTPUT}'",
                field="outputs",
            )  # fmt: skip
        if parameters.get("classification"):
            raise ServingError(
                "invalid_field",
                "an output's 'classification' is not supported; leave it out: where the task gives "
                "labels they are in the answer, as many as its parameter top_k says",
                field="outputs",
            )  # fmt: skip
        binary = bool(parameters.get("binary_data", binary))
    return bool(outputs), binary


def _write(answered: Answered) -> Reply:
    named, binary = _wanted(answered.asked.body)
    numbers = _numbers(answered.answer) if named or binary else None
    if numbers is not None:
        shape = orjson.dumps(numbers.shape)
        if not binary:
            return _reply(answered.asked, _VECTORS_HERE % (shape, answer_body(numbers.ravel())))
        raw = numbers.tobytes()
        return _reply(answered.asked, _VECTORS_BINARY % (shape, len(raw)), raw)
    rows = [answer_body(row) for row in _rows(answered.answer)]
    if not binary:
        # One by one: of all together other threads would wait for the last.
        texts = b"[%b]" % b",".join([orjson.dumps(row.decode()) for row in rows])
        return _reply(answered.asked, _ROWS_HERE % (len(rows), texts))
    raw = b"".join([len(row).to_bytes(4, "little") + row for row in rows])
    return _reply(answered.asked, _ROWS_BINARY % (len(rows), len(raw)), raw)


def _reply(asked: Asked, output: bytes, raw: bytes | None = None) -> Reply:
    """What is answered, and by whom, which behind a canary's name is one of several; with the
    output's bytes, where they come after the JSON.
    """
    named = _named(asked.name, asked.version)
    if asked.body.get("id") is not None:
        named += b',"id":' + orjson.dumps(asked.body["id"])
    text = b'%b,"outputs":[%b]}' % (named, output)
    if raw is None:
        return Reply(text)
    return Reply(text + raw, _BINARY, {HEADER: str(len(text))})


@lru_cache(maxsize=256)
def _named(name: str, version: str | None) -> bytes:
    """The answer's beginning: the same for every answer of an endpoint."""
    told = {"model_name": name} | ({"model_version": version} if version else {})
    return orjson.dumps(told).removesuffix(b"}")


def _rows(answer: Any) -> Any:
    """The elements of a list; anything else, one text's vector too, is one row."""
    is_list = isinstance(answer, list) or (isinstance(answer, np.ndarray) and answer.ndim > 1)
    return answer if is_list else [answer]


def _numbers(answer: Any) -> Array | None:
    """Float32, where the answer is numbers of one shape: vectors, scores."""
    if isinstance(answer, list):
        if answer and type(answer[0]) is float:
            return np.array(answer, "<f4")
        if len(answer) != 1:
            # Those of several texts have as many vectors as each has tokens.
            return None
        answer = answer[0]
    if not isinstance(answer, np.ndarray):
        return None
    vectors = answer.astype("<f4", copy=False)
    return vectors[None] if vectors.ndim == 1 else vectors


OPERATIONS = (Operation("v2.infer", None, _read, _write),)
