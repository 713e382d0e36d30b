"""The Open Inference Protocol over the real app and a real Triton; without the gateway too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Headers, Reply, Server
from tests.gateway.text_serving import MISSING, TextServing
from tests.triton_text import VERSION
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.gateway.access import KEYS_FILE

HEADER = "inference-header-content-length"
TEXTS = ["a kettle of tea", "two"]
BINARY = [{"name": "output", "parameters": {"binary_data": True}}]
KEY, OTHER = new_key(), new_key()


@pytest.fixture(scope="module")
def ways(text_gateway: Server, text_serving: TextServing) -> Iterator[dict[str, Server]]:
    stock = text_serving.stock().start()
    try:
        yield {"gateway": text_gateway, "stock": stock.wait_for("/docs")}
    finally:
        stock.stop()


@pytest.fixture
def server(text_gateway: Server) -> Server:
    return text_gateway


def tensor(name: str, *data: Any, kind: str = "BYTES") -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": kind, "data": list(data)}


def packed(texts: list[str]) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text.encode() for text in texts)


def infer(
    server: Server,
    name: str,
    body: dict[str, Any],
    binary: bytes = b"",
    headers: Headers | None = None,
) -> Reply:
    raw = orjson.dumps(body)
    if binary:
        headers = {HEADER: str(len(raw))}
    return server.ask("POST", f"/v2/models/{name}/infer", raw + binary, dict(headers or {}))


def output_of(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.raw
    (output,) = reply.json["outputs"]
    assert isinstance(output, dict)
    return output


def rows_of(reply: Reply) -> list[Any]:
    output = output_of(reply)
    assert output["shape"] == [len(output["data"]), 1]
    assert output["parameters"] == {"content_type": "hg_jsonlist"}
    return [orjson.loads(row) for row in output["data"]]


@pytest.mark.parametrize(
    ("name", "tensors", "own"),
    [
        ("texts", [tensor("array_inputs", *TEXTS)], {"inputs": TEXTS}),
        ("texts", [tensor("args", TEXTS[0])], {"inputs": TEXTS[0]}),
        (
            "texts",
            [tensor("inputs", *TEXTS), tensor("top_k", 2, kind="INT32")],
            {"inputs": TEXTS, "parameters": {"top_k": 2}},
        ),
        ("vectors", [tensor("text", *TEXTS)], {"inputs": TEXTS}),
    ],
)
def test_the_answer_is_the_one_of_serve(
    ways: dict[str, Server], name: str, tensors: list[Any], own: Any
) -> None:
    wanted = ways["stock"].post(name, own).json
    body = {"id": "7", "inputs": tensors}
    routed = infer(ways["gateway"], name, body)
    assert rows_of(routed) == wanted
    assert (routed.json["id"], routed.json["model_name"]) == ("7", name)
    assert routed.headers[VERSION_HEADER] == str(VERSION)
    assert routed.headers["x-request-id"]
    for server in ways.values():
        known = server.post(name, body)
        assert known.json == routed.json


KINDS_OF_TEXT = [
    None, "application/x-www-form-urlencoded", "text/html", "text/plain;charset=UTF-8", "text/json",
    "application/x-json", "application/octet-stream",
]  # fmt: skip
# Of these the gateway knows that JSON may be meant. The app itself tells its endpoints no type.
READ = (None, "text/json", "application/x-json")


@pytest.mark.parametrize("kind", KINDS_OF_TEXT)
@pytest.mark.parametrize("body", [{"text": "two"}, {"inputs": [tensor("args", "two")]}], ids=str)
def test_json_of_another_type_is_never_a_text(
    ways: dict[str, Server], kind: str | None, body: dict[str, Any]
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    raw = b"  " + orjson.dumps(body)
    for way, server in ways.items():
        reply = server.ask("POST", "/serve/texts", raw, headers)
        if way == "gateway" and kind in READ:
            assert reply.status == 200, reply.raw
            assert reply.json == server.post("texts", body).json
        else:
            assert (reply.status, reply.json["code"]) == (400, "malformed_body")
            assert "send 'Content-Type: application/json'" in reply.json["message"]


@pytest.mark.parametrize("kind", KINDS_OF_TEXT)
def test_a_text_that_begins_like_json_is_a_text(ways: dict[str, Server], kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    for text in ("{two", '{"two": 2}'):
        for server in ways.values():
            reply = server.ask("POST", "/serve/texts", text.encode(), headers)
            assert reply.status == 200, reply.raw
            assert reply.json == server.post("texts", {"text": text}).json


def test_binary_both_ways(server: Server) -> None:
    raw = packed(TEXTS)
    row = {"name": "in", "shape": [2, 1], "datatype": "BYTES"}
    body = {
        "inputs": [{**row, "parameters": {"binary_data_size": len(raw)}}], "outputs": BINARY
    }  # fmt: skip
    for name in ("texts", "vectors"):
        reply = infer(server, name, body, raw)
        assert reply.status == 200, reply.raw
        size = int(reply.headers[HEADER])
        (output,) = orjson.loads(reply.raw[:size])["outputs"]
        answer = reply.raw[size:]
        assert output["parameters"]["binary_data_size"] == len(answer)
        wanted = server.post(name, {"inputs": TEXTS}).json
        if name == "vectors":
            assert (output["datatype"], output["shape"]) == ("FP32", [2, 4])
            assert np.frombuffer(answer, "<f4").reshape(2, 4).tolist() == wanted
        else:
            assert answer == packed([orjson.dumps(row).decode() for row in wanted])


def test_numbers_where_the_output_is_named(server: Server) -> None:
    body = {"inputs": [tensor("in", *TEXTS)], "outputs": [{"name": "output"}]}
    output = output_of(infer(server, "vectors", body))
    assert (output["datatype"], output["shape"]) == ("FP32", [2, 4])
    wanted = server.post("vectors", {"inputs": TEXTS}).json
    assert np.reshape(output["data"], (2, 4)).tolist() == wanted


def test_what_is_refused(server: Server) -> None:
    good = {"inputs": [tensor("args", "a")]}
    rows: list[tuple[str, dict[str, Any], dict[str, str], int, str]] = [
        ("nothing", good, {}, 404, "unknown_endpoint"),
        ("texts/versions/9", good, {}, 404, "unknown_endpoint"),
        (MISSING, good, {}, 503, "unavailable"),
        ("texts", {"inputs": []}, {}, 400, "invalid_field"),
        ("texts", {**good, "outputs": [{"name": "logits"}]}, {}, 400, "invalid_field"),
        ("texts", good, {HEADER: "9999"}, 400, "malformed_body"),
        ("texts", {"inputs": [tensor("args", "[FAIL]")]}, {}, 502, "engine_failed"),
        ("holdings", good, {}, 422, "impossible"),
    ]
    for name, body, headers, status, code in rows:
        reply = infer(server, name, body, headers=headers)
        assert (reply.status, reply.json["code"]) == (status, code), reply.raw
        assert isinstance(reply.json["error"], str)
    assert infer(server, "texts", good, b"more").json["code"] == "malformed_body"


def test_metadata(server: Server) -> None:
    told = server.ask("GET", "/v2").json
    assert told["name"] == "transformer-serving"
    assert told["extensions"] == ["binary_tensor_data"]
    told = server.ask("GET", "/v2/models/texts").json
    inputs = {row["name"]: (row["datatype"], row["shape"]) for row in told.pop("inputs")}
    assert inputs == {
        "text": ("BYTES", [-1]),
        "text_pair": ("BYTES", [-1]),
        "top_k": ("INT64", [1]),
        "function_to_apply": ("BYTES", [1]),
        "truncation": ("BOOL", [1]),
        "max_length": ("INT64", [1]),
        "return_all_scores": ("BOOL", [1]),
    }
    assert told == {
        "name": "texts", "versions": ["1"], "platform": "transformer-serving",
        "outputs": [{"name": "output", "datatype": "BYTES", "shape": [-1, 1]}],
    }  # fmt: skip
    assert server.ask("GET", "/v2/models/nothing").status == 404
    assert server.ask("GET", "/v2/models/holdings").status == 422


def test_what_has_no_version_is_its_own_first(server: Server) -> None:
    body = {"inputs": [tensor("text", *TEXTS)]}
    assert rows_of(infer(server, "texts/versions/1", body)) == rows_of(infer(server, "texts", body))
    told = server.ask("GET", "/v2/models/texts/versions/1/config").json
    assert told == server.ask("GET", "/v2/models/texts/config").json
    assert (told["name"], told["max_batch_size"]) == ("texts", 0)
    assert told["input"][0] == {
        "name": "text", "data_type": "TYPE_STRING", "dims": [-1], "optional": False
    }  # fmt: skip
    assert infer(server, "texts/versions/2", body).status == 404


def test_readiness(server: Server) -> None:
    assert server.ask("GET", "/v2/health/live").json == {"live": True}
    assert server.ask("GET", "/v2/health/ready").json == {"ready": True}
    wait_until(lambda: server.ask("GET", "/v2/models/texts/ready").status == 200, 60)
    assert server.ask("GET", "/v2/models/texts/ready").json == {"name": "texts", "ready": True}
    assert server.ask("GET", f"/v2/models/{MISSING}/ready").status == 503
    unknown = server.ask("GET", "/v2/models/nothing/ready")
    assert (unknown.status, unknown.json["code"]) == (404, "unknown_endpoint")


def test_tritons_own_routes_are_none(server: Server, text_serving: TextServing) -> None:
    """What Triton calls a model is no name here, nor can its repository be asked."""
    for path in (
        "/v2/repository/index",
        "/v2/repository/models/texts/load",
        "/v2/models/texts/stats",
        "/v2/systemsharedmemory/status",
    ):
        for method in ("GET", "POST"):
            assert server.ask(method, path, b"{}").status in (404, 405)
    assert infer(server, f"texts/versions/{VERSION}", {"inputs": []}).status == 404


def test_keys(text_serving: TextServing, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    rows = [Key("all", digest_of(KEY), now()), Key("one", digest_of(OTHER), now(), ("vectors",))]
    path.write_text(keys_text(rows))
    server = text_serving.gateway(**{KEYS_FILE.name: str(path)}).start()
    try:
        server.wait_for("/v2/health/ready")
        assert server.ask("GET", "/v2/health/live").status == 200
        good = {"inputs": [tensor("args", "a")]}
        for path_asked in ("/v2", "/v2/models/texts", "/v2/models/texts/ready"):
            refused = server.ask("GET", path_asked)
            assert (refused.status, refused.json["code"]) == (401, "unauthorized")
            assert server.ask("GET", path_asked, headers={"x-api-key": KEY}).status == 200
        refused = infer(server, "texts", good)
        assert (refused.status, refused.json["code"]) == (401, "unauthorized")
        refused = infer(server, "texts", good, headers={"x-api-key": OTHER})
        assert (refused.status, refused.json["code"]) == (403, "forbidden")
        assert infer(server, "vectors", good, headers={"x-api-key": OTHER}).status == 200
        forbidden = server.ask("GET", "/v2/models/texts", headers={"x-api-key": OTHER})
        assert forbidden.status == 403
    finally:
        server.stop()
