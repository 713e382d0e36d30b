"""Other protocols on the real app before a real Triton: answers, and each one's own errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.gateway.conftest import JSON, Reply, Server
from tests.gateway.text_serving import TextServing
from transformer_serving.contract.dialects import DIALECTS, dialect_of
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.keys import Key, digest_of, new_key, now
from transformer_serving.gateway.routes import ROUTES, Route
from transformer_serving.gateway.settings import MAX_BODY_BYTES

ALL, BOUND = new_key(), new_key()
ROWS = (
    Key("all", digest_of(ALL), now()),
    Key("bound", digest_of(BOUND), now(), ("vectors",)),
)
TEA, RAIN = "a kettle of tea", "rain fell on the roof"
# The fields of an error, of each dialect.
SHAPES = {
    "openai": {"error": {"message", "type", "param", "code"}},
    "tei": {"error", "error_type"},
    "tei_openai": {"message", "code", "type"},
    "tgi": {"error", "error_type"},
    "cohere": {"message"},
    "hf": {"error"},
    "v1": {"error"},
    "v2": {"error", "code"},
}
POSTS = [route for route in ROUTES if route.method == "POST"]
UNVERSIONED = [route for route in POSTS if "{version}" not in route.path]


@pytest.fixture(scope="module")
def door(text_serving: TextServing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, limit = tmp_path_factory.mktemp("dialects"), {MAX_BODY_BYTES.name: "20000"}
    with text_serving.behind_keys(folder, *ROWS, **limit) as server:
        yield server


def ask(server: Server, path: str, body: Any, key: str | None = ALL) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    # Without a content type, as some clients send it; our own form needs one.
    headers = JSON if path.startswith("/serve/") else {}
    if key is not None:
        headers = {**headers, "authorization": f"Bearer {key}"}
    return server.ask("POST", path, raw, headers)


def to(route: Route, name: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path, and the body, which may have to name the endpoint."""
    path = route.path.replace("{name}", name).replace("{version}", "9")
    return path, body if route.named_in is None else {route.named_in: name, **body}


def refused(reply: Reply, route: Route, code: str) -> None:
    """In the dialect's own form and status, nothing of the request in it."""
    dialect = dialect_of(route.operation)
    assert reply.status == dialect.status(ServingError(code, "")), reply.raw
    shape = SHAPES[dialect.name]
    if isinstance(shape, dict):
        assert set(reply.json) == set(shape)
        assert set(reply.json["error"]) == shape["error"]
    else:
        assert set(reply.json) == shape
    assert reply.headers["x-request-id"]
    assert b"kettle" not in reply.raw


def test_every_dialect_has_its_form() -> None:
    assert set(SHAPES) | {"ours"} == set(DIALECTS)


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path)
def test_errors_are_in_the_dialects_own_form(door: Server, route: Route) -> None:
    path, body = to(route, "texts", {"kettle": 1})
    without = ask(door, path, body, key=None)
    refused(without, route, "unauthorized")
    assert without.headers["www-authenticate"] == "Bearer"
    refused(ask(door, path, body, key=BOUND), route, "forbidden")
    refused(ask(door, path, b"{"), route, "malformed_body")
    refused(ask(door, path, b'["kettle"]'), route, "malformed_body")
    refused(ask(door, path, b'{"kettle": "' + b"k" * 30_000 + b'"}'), route, "too_large")
    refused(ask(door, *to(route, "kettle", {})), route, "unknown_endpoint")
    # One of the host's own, which speaks no other protocol.
    if route in UNVERSIONED:
        refused(ask(door, *to(route, "holdings", {})), route, "impossible")


@pytest.mark.parametrize("route", UNVERSIONED, ids=lambda route: route.path)
def test_a_bundle_of_older_code_says_what_to_do(gateway: Server, route: Route) -> None:
    reply = ask(gateway, *to(route, "ours", {}), key=None)
    refused(reply, route, "impossible")
    assert b"convert its model again" in reply.raw


def test_a_wrong_task_is_told_in_each_form(door: Server) -> None:
    embed = ask(door, "/tei/texts/embed", {"inputs": TEA})
    assert (embed.status, embed.json["error_type"]) == (424, "Backend")
    assert "sentence-embedding" in embed.json["error"]
    openai = ask(door, "/v1/embeddings", {"model": "texts", "input": TEA})
    assert (openai.status, openai.json["error"]["code"]) == (422, "refused")
    cohere = ask(door, "/v2/rerank", {"model": "texts", "query": TEA, "documents": [TEA]})
    assert (cohere.status, "rerank" in cohere.json["message"]) == (422, True)


def test_an_engine_that_is_not_there(door: Server) -> None:
    tei = ask(door, "/tei/missing/predict", {"inputs": TEA})
    assert (tei.status, tei.json["error_type"], tei.headers["retry-after"]) == (
        503, "Unhealthy", "2",
    )  # fmt: skip
    hf = ask(door, "/hf/missing", {"inputs": TEA})
    assert (hf.status, set(hf.json)) == (503, {"error"})


def test_a_fault_of_the_code_is_an_error_too(door: Server) -> None:
    reply = ask(door, "/tei/faulty/predict", {"inputs": [TEA]})
    assert reply.status == 200, "the operation's own task answers"
    broken = ask(door, "/hf/faulty", {"inputs": TEA})
    assert (broken.status, set(broken.json)) == (500, {"error"})
    assert b"kettle" not in broken.raw


def test_answers_are_those_of_serve(door: Server) -> None:
    served = ask(door, "/serve/vectors", {"text": [TEA, RAIN]})
    vectors = [row["embedding"] for row in served.json]
    body = {"model": "vectors", "input": [TEA, RAIN]}
    openai = ask(door, "/v1/embeddings", body)
    assert [row["embedding"] for row in openai.json["data"]] == vectors
    assert openai.headers["x-bundle-version"] == served.headers["x-bundle-version"]
    packed = ask(door, "/v1/embeddings", {**body, "encoding_format": "base64"})
    found = [base64.b64decode(row["embedding"]) for row in packed.json["data"]]
    assert [np.frombuffer(one, "<f4").tolist() for one in found] == vectors
    plain = {"inputs": [TEA, RAIN], "normalize": False}
    assert ask(door, "/tei/vectors/embed", plain).json == vectors
    assert ask(door, "/hf/vectors", plain).json == vectors
    v1 = ask(door, "/v1/models/vectors:predict", {"instances": [TEA, RAIN]})
    assert v1.json == {"predictions": served.json}


def test_tokens_need_no_engine(door: Server) -> None:
    for name in ("vectors", "missing"):
        reply = ask(door, f"/tei/{name}/tokenize", {"inputs": TEA})
        assert reply.status == 200, reply.raw
        assert "".join(row["text"] for row in reply.json[0] if not row["special"]) == "akettleoftea"


def test_a_key_for_one_endpoint_asks_it_through_the_body(door: Server) -> None:
    assert ask(door, "/v1/embeddings", {"model": "vectors", "input": TEA}, BOUND).status == 200
    assert ask(door, "/tei/vectors/embed", {"inputs": TEA}, BOUND).status == 200
    for name in ("texts", "nobody", "vectors2"):
        reply = ask(door, "/v1/embeddings", {"model": name, "input": TEA}, BOUND)
        assert (reply.status, reply.json["error"]["type"]) == (403, "permission_error")


def test_a_version_stands_after_the_name(door: Server) -> None:
    body = {"input": TEA, "model": "vectors/2"}
    assert ask(door, "/v1/embeddings", body).status == 404
    assert ask(door, "/v1/embeddings", {**body, "model": "vectors/"}).status == 200


def test_a_body_that_names_nobody(door: Server) -> None:
    for name in (None, "", 7, ["vectors"]):
        reply = ask(door, "/v1/embeddings", {"input": TEA, "model": name})
        assert (reply.status, reply.json["error"]["param"]) == (400, "model")
