"""Open Inference Protocol bodies: what is read of them, and how answers are written."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, strategies as st

from preprocess.answers import TASKS
from preprocess.answers.work import Work
from preprocess.dialects import Conversation
from preprocess.dialects.v2 import HEADER, TEXTS
from preprocess.dialects.v2_tensors import DATATYPES
from preprocess.dialects.v2_texts import one_tensor
from preprocess.request import Request, read_body
from preprocess.response import Reply
from tests.triton_text import endpoint
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.meanings import Classification, Masks
from transformer_serving.contract.worker.request_context import current_operation

SERVED = dataclasses.replace(
    read_endpoint(json.dumps(endpoint(4))),
    classification=Classification(("a", "b"), "single_label", "softmax", 0),
    masks=Masks("[MASK]", 4, 5),
)
SECRET = "a secret of the caller"


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    """No test leaves its operation to another one."""
    token = current_operation.set(None)
    yield
    current_operation.reset(token)


def conversation(body: Any, binary: bytes = b"", task: str = "text-classification") -> Conversation:
    current_operation.set(("v2.infer", binary))
    return Conversation(body, TASKS[task](SERVED), SERVED, "model", "2")


def read(body: Any, binary: bytes = b"", task: str = "text-classification") -> Request:
    made = conversation(body, binary, task).read()
    return read_body(made, TASKS[task](SERVED), SERVED.limits)


def own(body: Any, task: str) -> Request:
    return read_body(body, TASKS[task](SERVED), SERVED.limits)


def tensor(name: str, data: list[Any], kind: str = "BYTES", **parameters: Any) -> dict[str, Any]:
    row = {"name": name, "shape": [len(data)], "datatype": kind, "data": data}
    return {**row, "parameters": parameters} if parameters else row


def packed(*texts: str) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def binary_tensor(name: str, raw: bytes, shape: list[int], kind: str = "BYTES") -> dict[str, Any]:
    parameters = {"binary_data_size": len(raw)}
    return {"name": name, "shape": shape, "datatype": kind, "parameters": parameters}


CALLS: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("text-classification", [tensor("args", ["x"])], {"inputs": "x"}),
    ("text-classification", [tensor("array_inputs", ["x"])], {"inputs": ["x"]}),
    ("text-classification", [tensor("input-0", ["x", "y"])], {"inputs": ["x", "y"]}),
    (
        "text-classification",
        [tensor("text_pair", ["p", "q"]), tensor("text", ["x", "y"])],
        {"inputs": {"text": ["x", "y"], "text_pair": ["p", "q"]}},
    ),
    (
        "text-classification",
        [tensor("array_inputs", ["x"]), tensor("text_pair", ["p"])],
        {"inputs": {"text": ["x"], "text_pair": ["p"]}},
    ),
    (
        "text-classification",
        [tensor("args", ["x"]), tensor("text_pair", ["p"])],
        {"inputs": {"text": "x", "text_pair": "p"}},
    ),
    (
        "text-classification",
        [tensor("text", ["x"], content_type="raw"), tensor("text_pair", ["p"])],
        {"inputs": {"text": "x", "text_pair": "p"}},
    ),
    (
        "text-classification",
        [tensor("inputs", ['{"text": "x", "text_pair": "p"}'], content_type="hg_jsonlist")],
        {"inputs": [{"text": "x", "text_pair": "p"}]},
    ),
    (
        "text-classification",
        [tensor("inputs", ["x"]), tensor("top_k", ["null"], content_type="hg_json")],
        {"inputs": ["x"], "parameters": {"top_k": None}},
    ),
    ("token-classification", [tensor("text", ["x"], content_type="raw")], {"inputs": "x"}),
    (
        "token-classification",
        [tensor("inputs", ["x"]), tensor("ignore_labels", ["O"])],
        {"inputs": ["x"], "parameters": {"ignore_labels": ["O"]}},
    ),
    (
        "question-answering",
        [tensor("question", ["q"]), tensor("context", ["c"]), tensor("top_k", [2], "INT32")],
        {"inputs": {"question": "q", "context": "c"}, "parameters": {"top_k": 2}},
    ),
    (
        "question-answering",
        [tensor("question", ["q", "r"]), tensor("context", ["c"])],
        {"inputs": {"question": ["q", "r"], "context": "c"}},
    ),
    (
        "question-answering",
        [tensor("inputs", ['{"question": "q", "context": "c"}'], content_type="hg_json")],
        {"inputs": {"question": "q", "context": "c"}},
    ),
    (
        "fill-mask",
        [tensor("inputs", ["x"]), tensor("targets", ["a", "b"]), tensor("top_k", [1], "INT8")],
        {"inputs": ["x"], "parameters": {"targets": ["a", "b"], "top_k": 1}},
    ),
    (
        "zero-shot-classification",
        [
            tensor("sequences", ["x", "y"]),
            tensor("candidate_labels", ["one, two"]),
            tensor("multi_label", [True], "BOOL"),
        ],
        {
            "inputs": ["x", "y"],
            "parameters": {"candidate_labels": ["one, two"], "multi_label": True},
        },
    ),
    (
        "zero-shot-classification",
        [tensor("args", ["x"]), tensor("candidate_labels", ["one, two"], content_type="raw")],
        {"inputs": "x", "parameters": {"candidate_labels": "one, two"}},
    ),
    ("feature-extraction", [tensor("inputs", ["x", "y"])], {"inputs": ["x", "y"]}),
    (
        "sentence-embedding",
        [tensor("text", ["x"]), tensor("truncate_dim", [2], "UINT64")],
        {"inputs": ["x"], "parameters": {"truncate_dim": 2}},
    ),
    (
        "sentence-similarity",
        [tensor("source_sentence", ["x"]), tensor("sentences", ["y"])],
        {"inputs": {"source_sentence": "x", "sentences": ["y"]}},
    ),
    (
        "rerank",
        [tensor("query", ["x"]), tensor("texts", ["y", "z"]), tensor("timeout_ms", [90], "INT32")],
        {"inputs": {"query": "x", "texts": ["y", "z"]}, "timeout_ms": 90},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("task", "tensors", "wanted"), CALLS)
def test_a_tensor_is_a_keyword_of_the_pipeline(
    task: str, tensors: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    assert read({"inputs": tensors}, task=task) == own(wanted, task)


def test_every_task_is_asked() -> None:
    assert {task for task, *_ in CALLS} == set(TASKS)


@pytest.mark.parametrize("name", TEXTS)
def test_names_of_the_texts(name: str) -> None:
    found = read({"inputs": [tensor("top_k", [1], "INT32"), tensor(name, ["x", "y"])]})
    assert found.texts == ("x", "y")


TEXT_LISTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=5
)


@given(
    TEXT_LISTS, st.sampled_from(["flat", "nested", "binary", "base64", "hg_json", "hg_jsonlist"])
)
def test_texts_come_as_they_were_sent(texts: list[str], way: str) -> None:
    count = len(texts)
    row, binary = tensor("array_inputs", texts), b""
    match way:
        case "nested":
            row |= {"shape": [count, 1], "data": [[text] for text in texts]}
        case "binary":
            binary = packed(*texts)
            row = binary_tensor("array_inputs", binary, [count, 1])
        case "base64":
            encoded = [base64.b64encode(text.encode()).decode() for text in texts]
            row = tensor("array_inputs", encoded, content_type="base64")
        case "hg_json":
            # MLServer's codec writes the text's length as its shape.
            text = json.dumps(texts)
            row = {**tensor("array_inputs", [text], content_type=way), "shape": [len(text), 1]}
        case "hg_jsonlist":
            row = tensor("array_inputs", list(map(json.dumps, texts)), content_type=way)
    found = read({"inputs": [row]}, binary)
    assert (found.texts, found.many) == (tuple(texts), True)


@pytest.mark.parametrize("shape", [[1], [1, 1]])
@pytest.mark.parametrize("data", [["a", "b", "c"], [["a"], ["b"], ["c"]]], ids=["flat", "nested"])
def test_texts_may_be_more_than_the_one_that_their_shape_says(
    shape: list[int], data: list[Any]
) -> None:
    """As MLServer's own documentation sends them."""
    row = {"name": "text_inputs", "shape": shape, "datatype": "BYTES", "data": data}
    found = read({"inputs": [row]})
    assert (found.texts, found.many) == (("a", "b", "c"), True)


@pytest.mark.parametrize("shape", [[2], [1, 2], [2, 1], [0], [1, 1, 1]])
def test_any_other_shape_is_kept_to(shape: list[int]) -> None:
    with pytest.raises(ServingError) as caught:
        read({"inputs": [{**tensor("text_inputs", ["a", "b", "c"]), "shape": shape}]})
    assert (caught.value.kind.code, caught.value.got) == ("invalid_field", 3)


def test_what_is_said_to_be_one_is_one_where_it_is_binary_or_a_number() -> None:
    raw = packed("a", "b")
    rows = (
        [binary_tensor("args", raw, [1])],
        [tensor("args", ["a"]), {**tensor("top_k", [1, 2], "INT64"), "shape": [1]}],
        [{**tensor("args", []), "shape": [1]}],
    )
    for inputs in rows:
        with pytest.raises(ServingError):
            read({"inputs": inputs}, raw if inputs == rows[0] else b"")


@given(st.lists(st.booleans() | st.integers(0, 9), min_size=1, max_size=4), st.data())
def test_numbers_come_as_they_were_sent(values: list[int], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([name for name in DATATYPES if name != "BYTES"]))
    types = {"BOOL": np.bool_, "FP": np.float64, "INT": np.int64, "UINT": np.int64}
    listed = np.array(values, types[kind.rstrip("0123456789")]).tolist()
    name = {"FP16": "f2", "FP32": "f4", "FP64": "f8", "BOOL": "?"}.get(kind)
    array = np.array(
        listed, name or f"{'u' if kind[0] == 'U' else 'i'}{int(kind[-2:].strip('T')) // 8}"
    )
    texts = packed("x")
    raw = array.tobytes()
    rows = [binary_tensor("inputs", texts, [1]), binary_tensor("top_k", raw, [len(values)], kind)]
    as_bytes = conversation({"inputs": rows}, texts + raw).read()
    as_json = conversation(
        {"inputs": [tensor("inputs", ["x"]), tensor("top_k", listed, kind)]}
    ).read()
    assert as_bytes == as_json
    wanted = listed[0] if len(listed) == 1 else listed
    assert as_json["parameters"] == {"top_k": wanted}
    assert type(as_json["parameters"]["top_k"]) is type(wanted)


def test_parameters_of_the_request() -> None:
    body = {
        "inputs": [tensor("inputs", ["x"])],
        "parameters": {"top_k": 2, "timeout": 2_500_000, "priority": 1, "content_type": "str"},
    }
    assert read(body) == own(
        {"inputs": ["x"], "parameters": {"top_k": 2}, "timeout_ms": 2500}, "text-classification"
    )


@pytest.mark.parametrize(
    ("told", "given", "wanted"),
    [
        ({"timeout": 100_000, "timeout_ms": 60_000}, None, 100),
        ({"timeout": 90_000_000, "timeout_ms": 60_000}, None, 60_000),
        ({"timeout_ms": 60_000}, 500, 500),
        ({"timeout_ms": 400}, 500, 400),
        ({"timeout": 300_000}, 500, 300),
    ],
)
def test_of_two_deadlines_the_sooner_one_counts(
    told: dict[str, int], given: int | None, wanted: int
) -> None:
    rows = [tensor("inputs", ["x"])]
    if given is not None:
        rows.append(tensor("timeout_ms", [given], "INT32"))
    assert read({"inputs": rows, "parameters": told}).timeout_s == wanted / 1000


@pytest.mark.parametrize(("told", "given"), [("soon", 500), (500, -1), (True, 500), (500, True)])
def test_of_two_deadlines_neither_may_be_wrong(told: Any, given: Any) -> None:
    kind = "BOOL" if isinstance(given, bool) else "INT32"
    rows = [tensor("inputs", ["x"]), tensor("timeout_ms", [given], kind)]
    with pytest.raises(ServingError) as refusal:
        read({"inputs": rows, "parameters": {"timeout_ms": told}})
    assert (refusal.value.kind.code, refusal.value.field) == ("invalid_field", "timeout_ms")


@pytest.mark.parametrize("timeout", ["5", 5000.0, 0.5, -1, True, [5], {}])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(ServingError) as refusal:
        read({"inputs": [tensor("inputs", ["x"])], "parameters": {"timeout": timeout}})
    assert (refusal.value.kind.code, refusal.value.field) == ("invalid_field", "timeout")
    assert "microseconds" in refusal.value.message


@pytest.mark.parametrize(
    ("timeout", "wanted"), [(None, None), (0, None), (1, 0.001), (2**63, 86_400)]
)
def test_a_timeout_is_microseconds_as_triton_has_it(timeout: Any, wanted: float | None) -> None:
    body = {"inputs": [tensor("inputs", ["x"])], "parameters": {"timeout": timeout}}
    assert read(body).timeout_s == wanted


@pytest.mark.parametrize(
    ("output", "said", "unsaid"),
    [
        ({"name": "output", "parameters": {"classification": 3}}, "top_k", "no such output"),
        ({"name": "output-0"}, "no such output; the one there is, is 'output'", "classification"),
        ({"name": "output-0", "parameters": {"classification": 3}}, "no such output", "top_k"),
    ],
)
def test_what_is_wrong_with_an_output_is_told(
    output: dict[str, Any], said: str, unsaid: str
) -> None:
    with pytest.raises(ServingError) as refusal:
        read({"inputs": [tensor("inputs", ["x"])], "outputs": [output]})
    assert (refusal.value.kind.code, refusal.value.field) == ("invalid_field", "outputs")
    assert said in refusal.value.message
    assert unsaid not in refusal.value.message


def test_a_content_type_of_the_request() -> None:
    row = tensor("inputs", ['"x"'])
    body = {"inputs": [row], "parameters": {"content_type": "hg_jsonlist"}}
    assert read(body).texts == ("x",)
    # One that MLServer does not know either is its default.
    assert read({**body, "parameters": {"content_type": "np"}}).texts == ('"x"',)


WHOLE, TWO = packed(SECRET), packed("x", SECRET)
REFUSED: list[tuple[Any, bytes, str]] = [
    ({}, b"", "invalid_field"),
    ({"inputs": {}}, b"", "invalid_field"),
    ([SECRET], b"", "malformed_body"),
    ({"inputs": [SECRET]}, b"", "invalid_field"),
    ({"inputs": [tensor("x", [SECRET]), tensor(SECRET, [SECRET])]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET]), tensor("inputs", [SECRET])]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET]), tensor("args", [SECRET])]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET]), tensor(SECRET, [SECRET])]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET], SECRET)]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET], "INT32")]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [True], "INT32")]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [7])]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [[SECRET], SECRET])]}, b"", "invalid_field"),
    ({"inputs": [{**tensor("args", [SECRET]), "shape": [2]}]}, b"", "invalid_field"),
    ({"inputs": [{**tensor("args", [SECRET]), "shape": [1, -2]}]}, b"", "invalid_field"),
    ({"inputs": [{**tensor("args", [SECRET]), "shape": [1.0]}]}, b"", "invalid_field"),
    ({"inputs": [{**tensor("args", [SECRET]), "shape": [1] * 9}]}, b"", "invalid_field"),
    ({"inputs": [{**tensor("args", [SECRET]), "data": SECRET}]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET] * 101)]}, b"", "too_large"),
    ({"inputs": [tensor("args", [SECRET], content_type="hg_json")]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", ["," * 100_001], content_type="hg_json")]}, b"", "too_large"),
    ({"inputs": [tensor("args", [SECRET], content_type="base64")]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET] * 2, content_type="raw")]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET], shared_memory_region=SECRET)]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET])], "id": [SECRET]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET])], "id": SECRET + "\ud800"}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET])], "outputs": [{"name": SECRET}]}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET])], "outputs": {"name": SECRET}}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET])], "parameters": SECRET}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET])], "parameters": {SECRET: 1}}, b"", "invalid_field"),
    ({"inputs": [tensor("args", [SECRET])]}, b"more", "malformed_body"),
    ({"inputs": [binary_tensor("args", WHOLE, [1])]}, WHOLE[:-1], "malformed_body"),
    ({"inputs": [binary_tensor("args", WHOLE, [2])]}, WHOLE, "malformed_body"),
    ({"inputs": [binary_tensor("args", WHOLE, [-1])]}, WHOLE, "invalid_field"),
    ({"inputs": [binary_tensor("args", TWO, [1])]}, TWO, "malformed_body"),
    ({"inputs": [binary_tensor("args", b"\xff" * 9, [1])]}, b"\xff" * 9, "malformed_body"),
    ({"inputs": [binary_tensor("args", b"\1\0\0\0\xff", [1])]}, b"\1\0\0\0\xff", "invalid_field"),
    ({"inputs": [binary_tensor("args", b"\1\0\0\0", [1], "INT64")]}, b"\1\0\0\0", "malformed_body"),
    ({"inputs": [binary_tensor("args", b"", [2**62] * 8)]}, b"", "too_large"),
    ({"inputs": [{**binary_tensor("args", WHOLE, [1]), "data": ["x"]}]}, WHOLE, "invalid_field"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "binary", "code"), REFUSED)
def test_a_wrong_body_is_refused_without_its_data(body: Any, binary: bytes, code: str) -> None:
    with pytest.raises(ServingError) as refusal:
        read(body, binary)
    assert refusal.value.kind.code == code
    assert SECRET not in json.dumps(refusal.value.body())


LISTS = "[" + "[]," * 30_000 + "0]"


@pytest.mark.parametrize(
    "rows",
    [
        [tensor("args", [LISTS] * 2, content_type="hg_jsonlist")],
        [tensor("args", ["x"])]
        + [
            tensor(name, [LISTS], content_type="hg_json") for name in ("top_k", "function_to_apply")
        ],
    ],
    ids=["elements", "tensors"],
)
def test_the_json_of_a_request_is_counted_together(rows: list[dict[str, Any]]) -> None:
    assert LISTS.count("[") + LISTS.count(",") < 100_000
    with pytest.raises(ServingError) as refusal:
        read({"inputs": rows})
    assert refusal.value.kind.code == "too_large"
    assert refusal.value.limit == 100_000


@pytest.mark.parametrize("size", [-1, 10**30, "5", 5.0, True, None, {}])
def test_a_size_that_is_none(size: Any) -> None:
    row = binary_tensor("args", packed("x"), [1])
    row["parameters"]["binary_data_size"] = size
    with pytest.raises(ServingError):
        read({"inputs": [row]}, packed("x"))


def is_read(body: Any, binary: bytes = b"") -> bool:
    """Else it is refused as documented."""
    refusal: ServingError | None = None
    try:
        read(body, binary)
    except ServingError as error:
        refusal = error
    assert refusal is None or refusal.kind.status in (400, 413)
    assert refusal is None or orjson.dumps(refusal.body())
    return refusal is None


# Texts as they are packed, and their shape.
NEAR = st.lists(st.text(max_size=5), min_size=1, max_size=3).map(
    lambda texts: (packed(*texts), [len(texts)])
)
FAR = st.tuples(st.binary(max_size=60), st.lists(st.integers(-2, 5), max_size=3))


def test_no_bytes_are_too_strange() -> None:
    seen = set()

    @given(
        NEAR, FAR, st.just("BYTES") | st.sampled_from(DATATYPES),
        st.sampled_from(["str", "raw", "hg_json", "hg_jsonlist", "base64"]),
        st.just(0) | st.integers(-3, 3),
    )  # fmt: skip
    def check(
        near: tuple[bytes, list[int]], far: tuple[bytes, list[int]], kind: str, content: str,
        off: int,
    ) -> None:  # fmt: skip
        for binary, shape in (near, far):
            row = binary_tensor("args", binary, shape, kind)
            row["parameters"] |= {"content_type": content, "binary_data_size": len(binary) + off}
            seen.add(is_read({"inputs": [row]}, binary))

    check()
    assert seen == {True, False}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["name", "shape", "datatype", "data", "parameters", "content_type"]), inner
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON, JSON, JSON)
def test_no_json_is_too_strange(row: Any, parameters: Any, outputs: Any) -> None:
    rows = row if isinstance(row, list) else [row]
    good = tensor("args", ["x"])
    merged = [{**good, **one} if isinstance(one, dict) else one for one in rows]
    for body in (
        {"inputs": merged, "parameters": parameters, "outputs": outputs},
        {"inputs": [good], "parameters": parameters}, {"inputs": merged},
    ):  # fmt: skip
        is_read(body)


# Close to a request of one tensor of texts, so that many are.
SHAPES = st.sampled_from([[1], [2], [1, 1], [2, 1], [1, 2], [0], [-1], [1, True], [1.0], [], None])
PLAIN = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["text", "args", "inputs", "top_k", None]),
        "shape": SHAPES,
        "datatype": st.sampled_from(["BYTES", "BYTES", "FP32", None]),
    },
    optional={
        "data": st.lists(st.text(max_size=2) | st.integers() | JSON, max_size=2),
        "parameters": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "binary_data_size": st.sampled_from([0, 4, 5, 9, 10, True, None]),
                "content_type": st.sampled_from(["str", "raw", None]),
            },
        ),
    },
)
BYTES = st.sampled_from([b"", packed(""), packed("a"), packed("a", "b"), packed("a") + b"!"])
TOLD = st.sampled_from([None, {}, {"binary_data_output": True}, {"content_type": "raw"}, {"a": 1}])


@given(row=PLAIN, binary=BYTES | st.binary(max_size=6), told=TOLD, task=st.sampled_from([*TASKS]))
def test_texts_read_in_one_step_are_read_as_ever(
    row: Any, binary: bytes, told: Any, task: str
) -> None:
    body = {"inputs": [row], "parameters": told}
    in_one_step = as_told(body, binary, task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("preprocess.dialects.v2.one_tensor", lambda *request: None)
        assert as_told(body, binary, task) == in_one_step


def test_texts_are_read_in_one_step() -> None:
    rows = (
        tensor("args", ["x"]),
        tensor("text", ["x", "y"]),
        binary_tensor("text", packed("é"), [1, 1]),
    )
    for row, binary in zip(rows, (b"", b"", packed("é")), strict=True):
        assert one_tensor({"inputs": [row]}, binary, ("text", *TEXTS), 2) is not None


def as_told(body: Any, binary: bytes, task: str) -> Any:
    """The request, or all that its refusal says."""
    try:
        return conversation(body, binary, task).read()
    except ServingError as error:
        return error.kind.code, error.message, error.field, error.limit, error.got


def test_such_a_body_is_known_without_its_path() -> None:
    current_operation.set(None)
    body = {"inputs": [tensor("args", ["x"])]}
    assert Conversation(body, TASKS["rerank"](SERVED), SERVED).operation.name == "v2.infer"
    others: list[Any] = [
        {"inputs": [{"text": "x"}]},
        {"inputs": []},
        {"inputs": "x"},
        {"text": "x"},
    ]
    for other in (*others, b"x"):
        assert Conversation(other, TASKS["rerank"](SERVED), SERVED).operation.name == "ours"


def reply(answer: Any, **body: Any) -> Reply:
    asked = conversation({"inputs": [tensor("args", ["x"])], **body})
    return asked.reply(answer, Work(None, []))  # type: ignore[arg-type]


ROWS = [{"label": "é", "score": 0.25}, {"label": "b", "score": 0.5}]
VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3) / 4
NAMED = [{"name": "output", "parameters": {"binary_data": False}}]
BINARY = [{"name": "output", "parameters": {"binary_data": True}}]


@pytest.mark.parametrize(
    ("answer", "rows"),
    [
        (ROWS, ROWS),
        (ROWS[0], ROWS[:1]),
        ([], []),
        ([0.5, 0.25], [0.5, 0.25]),
        (VECTORS, VECTORS.tolist()),
        (VECTORS[0], [VECTORS[0].tolist()]),
        ([VECTORS[None], VECTORS[None, :1]], [[VECTORS.tolist()], [VECTORS[:1].tolist()]]),
    ],
)
def test_an_answer_is_a_row_of_json_each(answer: Any, rows: list[Any]) -> None:
    written = reply(answer, id="7")
    header = orjson.loads(written.body)
    (output,) = header.pop("outputs")
    assert header == {"model_name": "model", "model_version": "2", "id": "7"}
    assert "id" not in orjson.loads(reply(answer, id=None).body)
    found = [orjson.loads(text) for text in output.pop("data")]
    assert found == rows
    assert output == {
        "name": "output", "datatype": "BYTES", "shape": [len(rows), 1],
        "parameters": {"content_type": "hg_jsonlist"},
    }  # fmt: skip


def taken_apart(written: Reply) -> tuple[Any, bytes]:
    size = int(written.headers[HEADER])
    header = orjson.loads(written.body[:size])
    (output,) = header["outputs"]
    raw = written.body[size:]
    assert output["parameters"]["binary_data_size"] == len(raw)
    return output, raw


@pytest.mark.parametrize(
    "asks", [{"outputs": BINARY}, {"parameters": {"binary_data_output": True}}]
)
def test_binary_answers(asks: dict[str, Any]) -> None:
    output, raw = taken_apart(reply(ROWS, **asks))
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 1])
    assert raw == packed(*(orjson.dumps(row).decode() for row in ROWS))
    output, raw = taken_apart(reply(VECTORS, **asks))
    assert (output["datatype"], output["shape"]) == ("FP32", [2, 3])
    assert np.frombuffer(raw, "<f4").tolist() == VECTORS.ravel().tolist()


@pytest.mark.parametrize(
    ("answer", "shape"),
    [
        (VECTORS, [2, 3]),
        (VECTORS[0], [1, 3]),
        ([VECTORS[None]], [1, 2, 3]),
        ([0.5, 0.25], [2]),
    ],
)
def test_numbers_where_the_output_is_named(answer: Any, shape: list[int]) -> None:
    (output,) = orjson.loads(reply(answer, outputs=NAMED).body)["outputs"]
    assert (output["datatype"], output["shape"]) == ("FP32", shape)
    assert output["data"] == np.ravel(np.float32(answer[0] if len(shape) == 3 else answer)).tolist()


def test_token_vectors_of_several_texts_have_no_common_shape() -> None:
    answer = [VECTORS[None], VECTORS[None, :1]]
    output, raw = taken_apart(reply(answer, outputs=BINARY))
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 1])
    assert json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "little")])[0][1][0] == 0.75
