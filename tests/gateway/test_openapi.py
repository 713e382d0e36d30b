"""The OpenAPI document: what it says of an endpoint's body is what is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema_rs import Draft202012Validator, meta

from preprocess.answers import TASKS
from preprocess.card import card_of
from preprocess.generation.request import TextTask, read_wanted
from preprocess.request import read_body
from tests.gateway.conftest import Server
from tests.text_engine import fields as text_fields
from transformer_serving.contract.dialects import DIALECTS
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import KINDS, ServingError
from transformer_serving.contract.heads import TASK_HEADS, TASKS as TASK_NAMES
from transformer_serving.contract.keys import Key
from transformer_serving.gateway.keys import WITHOUT_KEY
from transformer_serving.gateway.openapi.answers import answer_schema
from transformer_serving.gateway.openapi.bodies import example, request_body
from transformer_serving.gateway.openapi.document import document
from transformer_serving.gateway.openapi.responses import responses
from transformer_serving.gateway.routes import ROUTES

HOST = {"openapi": "3.1.0", "info": {"title": "host", "version": "1.3.5"}, "paths": {
    "/serve/{model_id}": {"post": {"responses": {"200": {"description": "ok"}}}},
}}  # fmt: skip
KEY = Key("all", "0" * 64, "2026-11-23T00:00:00Z")
PROMPTS = {"query": "query: ", "document": "passage: "}


def endpoint_for(task: str, fields: dict[str, Any]) -> Endpoint:
    """One of the task with small limits; what the head needs and a form does not is any."""
    head = next(iter(TASK_HEADS[task]))
    made = replace(read_endpoint(json.dumps(fields)), task=task, head=head, classification=None)
    made = replace(made, limits=replace(made.limits, max_texts=3, max_characters=20))
    labels = fields["classification"] | {"entailment": 1}
    if task == "rerank":
        labels = {**labels, "labels": ["LABEL_0"], "activation": "sigmoid", "entailment": None}
    if head == "vector":
        vector = {"pooling": "engine", "normalize": False, "dimensions": 4, "prompts": PROMPTS}
        return replace(made, embedding=_embedding(vector))
    if head == "masks":
        return replace(made, masks=_masks())
    return replace(made, classification=_classification(labels))


def _embedding(values: dict[str, Any]) -> Any:
    from transformer_serving.contract.meanings import Embedding

    return Embedding(similarity="cosine", default_prompt=None, **values)


def _masks() -> Any:
    from transformer_serving.contract.meanings import Masks

    return Masks("[MASK]", 4, 5)


def _classification(values: dict[str, Any]) -> Any:
    from transformer_serving.contract.meanings import Classification

    return Classification(**{**values, "labels": tuple(values["labels"])})


@pytest.fixture(params=TASK_NAMES)
def endpoint(request: pytest.FixtureRequest, endpoint_fields: dict[str, Any]) -> Endpoint:
    return endpoint_for(request.param, endpoint_fields)


def card(endpoint: Endpoint) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(card_of(endpoint, TASKS[endpoint.task](endpoint))))
    return made


# Bodies near the right ones: names that some task has, values that some field takes.
TEXT = st.text(st.characters(codec="utf-8"), max_size=25)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | TEXT | st.sampled_from(["softmax", "query"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=5,
)
NAMES = (
    "text", "text_pair", "question", "context", "query", "texts", "source_sentence", "sentences",
    "candidate_labels", "inputs", "truncate", "timeout_ms", "top_k", "multi_label",
)  # fmt: skip
OBJECT = st.dictionaries(st.sampled_from(NAMES), VALUE, max_size=3)


def bodies(fields: list[str], needed: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Most have what the task needs."""
    texts = TEXT | st.lists(TEXT, min_size=1, max_size=4)
    more = {**dict.fromkeys(NAMES, VALUE), "parameters": OBJECT, "inputs": VALUE | OBJECT}
    names = [*fields, *needed]
    others = {name: value for name, value in more.items() if name not in names}
    required = dict.fromkeys(names, texts)
    inputs = texts | OBJECT | st.fixed_dictionaries(dict.fromkeys(fields, texts))
    few = {name: others[name] for name in ("parameters", "truncate", "timeout_ms")}
    return (
        st.fixed_dictionaries(required, optional=few)
        | st.fixed_dictionaries(required, optional=others)
        | st.fixed_dictionaries({"inputs": inputs, **dict.fromkeys(needed, texts)}, optional=few)
        | st.fixed_dictionaries({"inputs": inputs, "parameters": OBJECT})
        | st.fixed_dictionaries({}, optional=more)
    )


def test_what_the_schema_takes_is_read_and_nothing_else(endpoint: Endpoint) -> None:
    made = card(endpoint)
    schema = request_body(made)["content"]["application/json"]["schema"]
    meta.validate(schema)
    validator = Draft202012Validator(schema)
    task = TASKS[endpoint.task](endpoint)
    needed = [row["name"] for row in made["parameters"] if row["required"]]

    @settings(max_examples=150)
    @given(bodies([row["name"] for row in made["fields"]], needed))
    def agree(body: dict[str, Any]) -> None:
        fits = validator.is_valid(body)
        error = _refusal(body, task, endpoint)
        if error is None:
            assert fits, "read, though the schema does not have it"
        elif not _beyond_a_schema(error):
            assert not fits, error

    agree()


def _refusal(body: dict[str, Any], task: Any, endpoint: Endpoint) -> ServingError | None:
    try:
        read_body(body, task, endpoint.limits)
    except ServingError as error:
        return error
    return None


def _beyond_a_schema(error: ServingError) -> bool:
    """Counts that depend on one another, one thing given twice, a task's own sense of a value."""
    return (
        "as many texts" in error.message
        or "given twice" in error.message
        or "texts times" in error.message
        or error.kind.code == "impossible"
    )


def test_every_parameter_says_its_type(endpoint: Endpoint) -> None:
    for row in card(endpoint)["parameters"]:
        meta.validate(row["schema"])
        assert row["schema"], row["name"]
        default = row["default"]
        assert default is None or Draft202012Validator(row["schema"]).is_valid(default)


def test_the_example_is_the_golden_request(endpoint: Endpoint) -> None:
    golden = {"text": "ready"}
    made = card(replace(endpoint, golden=golden))
    assert request_body(made)["content"]["application/json"]["example"] == golden
    assert list(example(card(endpoint))) == [made["fields"][0]["name"]]


def test_every_task_has_the_form_of_its_answer() -> None:
    for task in TASK_NAMES:
        assert answer_schema(task)
        meta.validate(answer_schema(task))
    assert answer_schema("a task of a later kit") == {}


def test_the_paths_of_other_protocols(endpoint: Endpoint) -> None:
    made = card(endpoint)
    cards = {"a": made, "b/2": made, "stranger": None}
    paths = document(HOST, cards, None)["paths"]
    for route in ROUTES:
        if "{version}" in route.path or "{name}" in route.path or route.method == "POST":
            asked = route.method == "GET" or route.operation in made["operations"]
        else:
            asked = True
        operation = paths.get(route.path, {}).get(route.method.lower())
        assert (operation is not None) == asked, route
        if operation is not None:
            assert operation["summary"]
            found = {row["name"]: row["schema"]["enum"] for row in operation.get("parameters", ())}
            if "{version}" in route.path:
                assert found == {"name": ["b"], "version": ["2"]}
            elif "{name}" in route.path:
                assert found == {"name": ["a"]}
    identities = [one["operationId"] for path in paths.values() for one in path.values()
                  if "operationId" in one]  # fmt: skip
    assert len(identities) == len(set(identities))


def text_card() -> dict[str, Any]:
    endpoint = read_endpoint(json.dumps(text_fields()))
    assert endpoint.generation is not None
    made: dict[str, Any] = json.loads(json.dumps(card_of(endpoint, TextTask(endpoint.generation))))
    return made


EVENTS, BYTES, PLAIN = "text/event-stream", "application/octet-stream", "application/json"


def types_of(operation: Any) -> tuple[set[str], set[str]]:
    """Of the request and of the answer."""
    given = operation["responses"]["200"]["content"]
    return set(operation["requestBody"]["content"]), set(given)


def test_every_path_says_its_media_types() -> None:
    made = text_card()
    paths = document(HOST, {"a": made, "b/2": made}, None)["paths"]
    others = [path for path, row in paths.items() if "post" in row and path[:7] != "/serve/"]
    found = {path: types_of(paths[path]["post"]) for path in others}
    streams = {path for path, (_, given) in found.items() if EVENTS in given and PLAIN in given}
    assert streams == {
        f"{base}{path}" for base, below in {
            "/v1": ("/completions", "/chat/completions"),
            **dict.fromkeys(("/hf/{name}", "/hf/{name}/{version}"),
                            ("", "/", "/v1/completions", "/v1/chat/completions")),
            **dict.fromkeys(
                ("/tgi/{name}", "/tgi/{name}/versions/{version}"),
                ("", "/", "/v1/completions", "/v1/chat/completions"),
            ),
        }.items() for path in below
    }  # fmt: skip
    for path, types in found.items():
        if path.endswith("/infer"):
            assert types == ({PLAIN, BYTES}, {PLAIN, BYTES})
        elif path.endswith("generate_stream"):
            assert types == ({PLAIN}, {EVENTS})
        elif path not in streams:
            assert types == ({PLAIN}, {PLAIN})


def test_no_events_where_no_text_is_generated(endpoint: Endpoint) -> None:
    paths = document(HOST, {"a": card(endpoint)}, None)["paths"]
    assert EVENTS not in types_of(paths["/hf/{name}"]["post"])[1]


def test_the_path_of_a_setting_is_there_for_who_may_ask_it(endpoint: Endpoint) -> None:
    cards = {"a": text_card(), "b": card(endpoint), "stranger": None}
    served = document(HOST, cards, None, {"/generate": "a", "/": "b"})["paths"]
    one = served["/generate"]["post"]
    assert types_of(one)[1] == {PLAIN, EVENTS}
    assert one["requestBody"] == served["/serve/a"]["post"]["requestBody"]
    assert one["operationId"] != served["/serve/a"]["post"]["operationId"]
    assert served["/"]["post"]["requestBody"] == served["/serve/b"]["post"]["requestBody"]
    assert "/" in document(HOST, cards, None, {"/": "stranger"})["paths"]
    for named in ({}, {"/": "nobody", "/generate": "nobody"}):
        assert not {"/", "/generate"} & document(HOST, cards, None, named)["paths"].keys()


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda row: row.name)
def test_every_status_of_a_dialect(dialect: Any) -> None:
    statuses = {dialect.status(ServingError(code, "")) for code in KINDS}
    found = responses({}, dialect)
    assert found.keys() == {"200", *map(str, statuses)}
    for code in KINDS:
        error = ServingError(code, "a message")
        schema = found[str(dialect.status(error))]["content"]["application/json"]["schema"]
        if "$ref" not in schema:
            Draft202012Validator(schema).validate(dialect.error_body(error))


def test_a_key_sees_what_it_may_ask(endpoint: Endpoint) -> None:
    cards = {"a": card(endpoint)}
    everything = document(HOST, cards, KEY)
    assert everything["security"] == [{"bearer": []}, {"key": []}]
    assert everything["paths"]["/health/live"]["get"]["security"] == []
    assert {"/serve/a", "/serve/{model_id}", "/health/endpoints"} <= set(everything["paths"])
    assert "/metrics" not in everything["paths"]
    bound = document(HOST, cards, replace(KEY, endpoints=("a",)))["paths"]
    assert {"/serve/a", "/health/endpoints/{name}"} <= set(bound)
    assert not {"/serve/{model_id}", "/health/endpoints"} & set(bound)
    assert "security" not in document(HOST, cards, None)


def test_no_key_is_asked_where_none_is_needed(endpoint: Endpoint) -> None:
    paths = document(HOST, {"a": card(endpoint)}, KEY)["paths"]
    open_paths = {path for path, row in paths.items() if row.get("get", {}).get("security") == []}
    assert open_paths == WITHOUT_KEY
    for path in WITHOUT_KEY:
        assert not {"401", "403"} & paths[path]["get"]["responses"].keys()


def test_the_hosts_document_stays_as_it_was() -> None:
    before = json.dumps(HOST)
    document(HOST, {}, None)
    assert json.dumps(HOST) == before


def test_endpoints_of_other_kinds_are_there_too(gateway: Server) -> None:
    found = gateway.ask("GET", "/openapi.json").json
    assert {"/serve/ours", "/serve/ours/2", "/serve/other"} <= set(found["paths"])
    assert found["info"] == {
        "title": "transformer-serving", "version": found["info"]["version"],
        "description": found["info"]["description"],
    }  # fmt: skip


TEXT_BODIES: tuple[Any, ...] = (
    {"text": "a"}, {"text": ["a", "b"]}, {"inputs": "a", "stream": True}, {"text": "a" * 10_001},
    {"messages": [{"role": "user", "content": "a"}]}, {"messages": []}, {"messages": [{}]}, {},
    {"messages": [{"role": "r" * 64, "content": "a"}]},
    {"messages": [{"role": "r" * 65, "content": "a"}]},
    {"text": "a", "truncate": True}, {"text": "a", "stream": None, "timeout_ms": 5},
    {"text": "a", "parameters": {"max_new_tokens": 3, "stop": ["a", "b"], "top_p": 0.5}},
    {"text": "a", "parameters": {"max_new_tokens": 0}}, {"text": "a", "parameters": {"top_p": 0}},
    {"text": "a", "parameters": {"temperature": 100}}, {"text": "a", "parameters": {"stop": ""}},
    {"text": "a", "parameters": {"min_p": 1}}, {"text": "a", "parameters": {"min_p": 1.01}},
    {"text": "a", "parameters": {"frequency_penalty": 0}},
    {"text": "a", "parameters": {"frequency_penalty": 0.5}},
    {"text": "a", "parameters": {"seed": 2**63}}, {"text": "a", "parameters": {"nothing": 1}},
    {"text": "a", "stream": 1}, {"text": 1}, {"text": []},
)  # fmt: skip


@pytest.mark.parametrize("body", TEXT_BODIES, ids=lambda body: json.dumps(body)[:60])
def test_bodies_of_text_generation_too(body: Any) -> None:
    made = read_endpoint(json.dumps(text_fields()))
    assert made.generation is not None
    task = TextTask(made.generation)
    schema = request_body(json.loads(json.dumps(card_of(made, task))))
    validator = Draft202012Validator(schema["content"]["application/json"]["schema"])
    try:
        read_wanted(body, task, made.limits)
    except ServingError:
        assert not validator.is_valid(body)
    else:
        assert validator.is_valid(body)
