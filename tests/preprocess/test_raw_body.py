"""Bodies that came as bytes: texts, and JSON that nobody said to be JSON."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, strategies as st

from preprocess.answers import TASKS
from preprocess.dialects import OURS_OPERATION, operation_by_body
from preprocess.generation.request import PROMPTS, TextTask, read_wanted
from preprocess.raw_body import as_meant
from preprocess.request import read_body
from tests.gateway.test_json_body import ENCODINGS
from tests.preprocess.speaking import endpoint_of
from tests.text_engine import fields
from tests.triton_text import endpoint as text_endpoint
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import UntypedBody, mirrored_body

TEXTS = read_endpoint(json.dumps(text_endpoint(2)))
TEXT = TASKS["text-classification"](TEXTS)
GENERATION = read_endpoint(json.dumps(fields()))
assert GENERATION.generation is not None
GENERATED = TextTask(GENERATION.generation)
BODIES: dict[str, dict[str, Any]] = {
    "own": {"text": "good"},
    "several": {"truncate": True, "text": ["good", "bad"]},
    "inputs": {"parameters": {"top_k": 1}, "inputs": "good"},
    "nested": {"inputs": {"text": "good", "text_pair": "bad"}},
    "wrong": {"text": 7, "colour": "red"},
}
V2 = {"inputs": [{"name": "args", "shape": [1], "datatype": "BYTES", "data": ["good"]}]}


def read(body: Any, task: Any = TEXT) -> Any:
    return read_body(body, task, TEXTS.limits)


def refusal(body: Any, task: Any = TEXT) -> ServingError:
    with pytest.raises(ServingError) as caught:
        read(body, task)
    return caught.value


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("blank", ["", " \r\n\t", " " * 65], ids=["none", "some", "many"])
@pytest.mark.parametrize("encoding", ["utf-8", *ENCODINGS])
def test_json_of_the_form_is_no_text(name: str, blank: str, encoding: str) -> None:
    raw = (blank + json.dumps(BODIES[name])).encode(encoding)
    error = refusal(raw)
    assert error.kind.code == "malformed_body"
    assert "Content-Type: application/json" in error.message
    assert "good" not in error.message
    # Where nobody said what it is, it is what it looks like; also to the bundle that is tried.
    for untyped in (UntypedBody(raw), mirrored_body(UntypedBody(raw))):
        meant = as_meant(untyped, TEXT.form.telling)
        assert meant == BODIES[name]
        # Who is counted, and who is not, stays so.
        assert getattr(meant, "is_golden", False) is getattr(untyped, "is_golden", False)
        assert not hasattr(meant, "goes_first")
    assert as_meant(raw, TEXT.form.telling) is raw


@pytest.mark.parametrize(
    "text",
    [
        "{", "{}", '{"text": "good"', '{"text": "good"} and more', "{'text': 'good'}", "{text}",
        '{"colour": "red"}', '{"truncate": true}', '["text"]', '"text"', "text", '{"text": NaN}',
        '{"text": "' + "a" * 500 + '"}' + "[" * 5, '{"question": "who?"}',
    ],
)  # fmt: skip
def test_everything_else_is_a_text(text: str) -> None:
    for body in (text.encode(), UntypedBody(text.encode())):
        assert as_meant(body, TEXT.form.telling) is body
        assert read(body).texts == (text,)


@given(st.text(alphabet='{}[]":, text\\a\n') | st.text(max_size=40))
def test_what_is_no_json_stays_as_it_is(text: str) -> None:
    body = UntypedBody(text.encode("utf-8", "surrogatepass"))
    meant = as_meant(body, TEXT.form.telling)
    assert meant is body or json.loads(text) == meant


def test_a_mark_is_none_of_a_text() -> None:
    assert read("\ufeffgood \ufeff".encode()).texts == ("good \ufeff",)


@pytest.mark.parametrize("begin", ["\uff01", "\ufeff\ufeff{}", "\0{", "\uf8ff{"])
def test_what_begins_as_another_encoding_is_a_text(begin: str) -> None:
    raw = (begin + '"text": "good"}').encode()
    assert as_meant(UntypedBody(raw), TEXT.form.telling) == raw
    assert read(raw).texts == (raw.decode().removeprefix("\ufeff"),)


@pytest.mark.parametrize("raw", [b"\xff\xfe{", b"\xff{}", b"\xfe\xff \0{", b"\xef\xbb{}"])
def test_what_is_in_no_encoding_is_refused(raw: bytes) -> None:
    assert as_meant(UntypedBody(raw), TEXT.form.telling) == raw
    assert refusal(raw).message == "the raw body is not UTF-8"


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"], ids=["plain", "mark"])
def test_blanks_are_not_copied_for_what_is_behind_them(begin: bytes) -> None:
    body = UntypedBody(begin + b" " * 4_000_000 + b"good")
    tracemalloc.start()
    try:
        assert as_meant(body, TEXT.form.telling) is body
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["utf-8", *ENCODINGS])
def test_too_many_elements_are_not_parsed(encoding: str) -> None:
    raw = ('{"text": ["\\"", ' + "0," * 100_001 + '"\\""]}').encode(encoding)
    assert as_meant(UntypedBody(raw), TEXT.form.telling) == raw


def test_a_text_of_too_many_elements_is_too_long() -> None:
    assert refusal(b'{"text": [' + b"0," * 100_001 + b"0]}").kind.code == "too_large"


@pytest.mark.parametrize("task", TASKS)
def test_the_fields_are_the_tasks_own(task: str) -> None:
    form = TASKS[task](endpoint_of(task)).form
    for name in (form.first.name, "inputs", *form.beside):
        sent = {name: "x"}
        assert as_meant(UntypedBody(json.dumps(sent).encode()), form.telling) == sent


@pytest.mark.parametrize("task", ["question-answering", "rerank", "sentence-similarity"])
def test_where_a_text_alone_is_no_body_it_is_told_what_is_wrong(task: str) -> None:
    one = TASKS[task](endpoint_of(task))
    sent = dict.fromkeys(one.form.names, "tea")
    advice = "the endpoint takes JSON alone: send it with 'Content-Type: application/json'"
    for raw in (json.dumps(sent).encode(), b"tea", b'["tea"]', b"{}", b"\xff", b"\xef\xbb\xbf[{"):
        error = refusal(raw, one)
        assert (error.kind.code, error.message, error.got) == ("malformed_body", advice, None)
    broken = json.dumps(sent)[:-1] + ",}"
    for encoding in ("utf-8", *ENCODINGS):
        error = refusal(UntypedBody(broken.encode(encoding)), one)
        place = f"(at character {len(broken) - 2}); "
        assert error.message == f"the body cannot be read as JSON {place}{advice}"


def test_a_body_of_v2_is_known_by_what_it_is() -> None:
    meant = as_meant(UntypedBody(json.dumps(V2).encode()), TEXT.form.telling)
    assert operation_by_body(meant) is not OURS_OPERATION


@pytest.mark.parametrize("name", ["text", "inputs", "messages"])
def test_a_prompt_is_no_json(name: str) -> None:
    sent = {name: [{"role": "user", "content": "w20"}] if name == "messages" else "w20"}
    raw = json.dumps(sent).encode()
    with pytest.raises(ServingError, match="Content-Type: application/json"):
        read_wanted(raw, GENERATED, GENERATION.limits)
    assert as_meant(UntypedBody(raw), PROMPTS) == sent
    assert read_wanted(b'{"prompt": "w20"}', GENERATED, GENERATION.limits).prompts == (
        '{"prompt": "w20"}',
    )
