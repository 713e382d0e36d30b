"""What must be the same behind the gateway and in clearml-serving's app as it is."""

from __future__ import annotations

import gzip
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from tests.gateway.conftest import ENDPOINTS, Server, Session
from transformer_serving.contract.errors import KINDS


def other_ways(way: Server, gateway: Server) -> str:
    """What an endpoint of ours sees between itself and the socket."""
    return "short" if way is gateway else "host"


@pytest.mark.parametrize("path", ["ours", "ours/", "ours?version=", "ours?x=1"])
def test_an_endpoint_answers(way: Server, gateway: Server, path: str) -> None:
    reply = way.post(path, {"text": "ä"})
    assert reply.status == 200
    assert reply.json == {"endpoint": "ours", "version": "", "revision": 1, "got": {"text": "ä"}}
    assert reply.headers["server-timing"] == "total;dur=1"
    assert reply.headers["x-way"] == other_ways(way, gateway)


@pytest.mark.parametrize("path", ["ours/2", "ours?version=2", "ours/?version=2", "ours%2F2"])
def test_versions(way: Server, gateway: Server, path: str) -> None:
    reply = way.post(path, {"text": "a"})
    assert (reply.status, reply.json["version"]) == (200, "2")
    assert reply.headers["x-way"] == other_ways(way, gateway)


def test_a_version_in_the_path_wins_over_the_query(way: Server) -> None:
    assert way.post("ours/2?version=9", {}).json["version"] == "2"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/serve/nothing", 404),
        ("POST", "/serve/ours/9", 404),
        ("POST", "/serve/ours?version=9", 404),
        ("POST", "/serve/ours/2/x", 404),
        ("POST", "/serve/", 404),
        ("POST", "/serve", 404),
        ("POST", "//serve/ours", 404),
        ("POST", "/serve//2", 404),
        ("POST", "/serve/ours/2/", 307),
        ("GET", "/serve/ours", 405),
        ("GET", "/openapi.json", 200),
    ],
)
def test_status(way: Server, method: str, path: str, status: int) -> None:
    body = None if method == "GET" else b"{}"
    assert way.ask(method, path, body, {"content-type": "application/json"}).status == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"), ("POST", "/serve/ours/2/x"), ("POST", "/serve/"), ("PUT", "//serve/a"),
        ("GET", "/health/nothing"),
    ],
)  # fmt: skip
def test_where_nothing_is_the_error_is_ours(gateway: Server, method: str, path: str) -> None:
    reply = gateway.ask(method, path, None if method == "GET" else b"{}")
    assert (reply.status, reply.json["code"]) == (404, "unknown_endpoint")
    assert list(reply.json) == ["code", "message", "field", "limit", "got"]
    assert reply.headers["x-request-id"]


def test_a_wrong_method_is_the_hosts_to_tell(gateway: Server) -> None:
    """As docs/api.md and docs/errors.md say."""
    reply = gateway.ask("GET", "/serve/ours")
    assert (reply.status, reply.headers["allow"], list(reply.json)) == (405, "POST", ["detail"])


def test_the_openapi_names_every_status_of_ours(gateway: Server) -> None:
    document = gateway.ask("GET", "/openapi.json").json
    for path in ("/serve/{model_id}", "/serve/{model_id}/", "/serve/{model_id}/{version}"):
        responses = document["paths"][path]["post"]["responses"]
        assert responses.keys() == {"200", *(str(kind.status) for kind in KINDS.values())}
        assert (
            "malformed_body"
            in document["components"]["schemas"]["ServingError"]["properties"]["code"]["enum"]
        )
        schema = responses["400"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ServingError"}


def test_canary_draws_by_its_weights(way: Server, gateway: Server) -> None:
    replies = [way.post("split", {"text": "a"}) for _ in range(60)]
    versions = Counter(reply.json["version"] for reply in replies)
    assert set(versions) == {"", "2"}
    assert min(versions.values()) > 10
    assert {reply.headers["x-way"] for reply in replies} == {other_ways(way, gateway)}


def test_canary_over_endpoints_of_both_kinds(way: Server) -> None:
    """The draw is inside the host, so such a route takes the host's way altogether."""
    replies = [way.post("mixed", {"text": "a"}) for _ in range(40)]
    assert {reply.status for reply in replies} == {200}
    assert {reply.headers.get("x-way") for reply in replies} == {None, "host"}


@pytest.mark.parametrize("endpoint", ["ours", "other"])
def test_gzip(way: Server, endpoint: str) -> None:
    body = {"text": "x" * 5000}
    packed = gzip.compress(orjson.dumps(body)[:20]) + gzip.compress(orjson.dumps(body)[20:])
    reply = way.post(endpoint, packed, {"content-encoding": "gzip"})
    assert reply.status == 200
    assert reply.json == way.post(endpoint, body).json


@pytest.mark.parametrize("endpoint", ["ours", "other"])
def test_bad_gzip(way: Server, endpoint: str) -> None:
    packed = gzip.compress(b'{"text": "a"}')
    for bad in (packed[:-1], b"no gzip", packed + b"x", packed[:-5] + b"\0" + packed[-4:]):
        assert way.post(endpoint, bad, {"content-encoding": "gzip"}).status == 400


@pytest.mark.parametrize("kind", [None, "text/plain", "application/octet-stream", "a/json", "json"])
def test_a_body_that_is_not_json_goes_raw(way: Server, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    reply = way.ask("POST", "/serve/ours", b'{"text": "a"}', headers)
    assert reply.json["got"] == {"raw": '{"text": "a"}'}
    reply = way.ask("POST", "/serve/other", b"\xff\0", headers)
    assert reply.json == {"kind": "bytes", "length": 2}


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/problem+json"])
def test_kinds_of_json(way: Server, kind: str) -> None:
    headers, body = {"content-type": kind}, b'{"text": "a"}'
    assert way.ask("POST", "/serve/ours", body, headers).json["got"] == {"text": "a"}
    assert way.ask("POST", "/serve/other", body, headers).json == {"kind": "dict", "length": 1}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_encodings_of_json(way: Server, encoding: str) -> None:
    body = '{"text": "käse"}'.encode(encoding)
    assert way.post("ours", body).json["got"] == {"text": "käse"}
    assert way.post("other", body).json == {"kind": "dict", "length": 1}


def test_other_endpoints_keep_what_the_host_accepts(way: Server) -> None:
    assert way.post("other", b'{"x": NaN}').json == {"kind": "dict", "length": 1}
    assert way.post("other", b'"abc"').json == {"kind": "bytes", "length": 3}
    assert way.ask("POST", "/serve/other").json == {"kind": "NoneType", "length": None}


def test_statuses_headers_and_streams_of_an_endpoint_pass(way: Server) -> None:
    reply = way.post("ours", {"status": 418})
    assert (reply.status, reply.json["got"]) == (418, {"status": 418})
    assert way.post("ours", {"stream": True}).json["got"] == {"stream": True}


@pytest.mark.parametrize(("raised", "status"), [("value", 422), ("key", 500)])
def test_what_an_endpoint_raises(way: Server, gateway: Server, raised: str, status: int) -> None:
    reply = way.post("ours", {"raise": raised, "text": "secret words"})
    assert reply.status == status
    if way is gateway:
        assert set(reply.json) == {"code", "message", "field", "limit", "got"}
        assert b"secret" not in reply.raw


@pytest.mark.parametrize(
    ("raised", "status", "code", "after"),
    [
        ("UNAVAILABLE", 503, "unavailable", "2"), ("NOT_FOUND", 503, "unavailable", "2"),
        ("DEADLINE_EXCEEDED", 504, "deadline", None), ("INTERNAL", 500, None, None),
    ],
)  # fmt: skip
def test_a_failed_call_of_an_endpoint_of_another_kind_is_told_by_its_status(
    way: Server, gateway: Server, raised: str, status: int, code: str | None, after: str | None
) -> None:
    """The stock app has 500 for all of them."""
    reply = way.post("other", {"raise": raised})
    if way is not gateway or code is None:
        assert (reply.status, list(reply.json)) == (500, ["detail"])
        return
    assert (reply.status, reply.json["code"]) == (status, code)
    assert list(reply.json) == ["code", "message", "field", "limit", "got"]
    assert reply.headers.get("retry-after") == after
    assert b"its own words" not in reply.raw


def test_one_connection_carries_many_requests(way: Server) -> None:
    request = b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    request += b"content-length: 2\r\n\r\n{}"
    with way.connect() as connection:
        connection.sendall(request * 20)
        received = b""
        while received.count(b"200 OK") < 20:
            received += connection.recv(65536)
    assert received.count(b'"revision": 1') >= 19


def test_live_update_by_the_command_line(session: Session, both: dict[str, Server]) -> None:
    """Both ways take the new code, and answer 200 all along."""
    new = session.folder / "updated_again.py"
    new.write_text((ENDPOINTS / "ours.py").read_text().replace("REVISION = 1", "REVISION = 2"))
    session.clearml_serving(
        "model", "add", "--engine", "triton", "--endpoint", "updated", "--preprocess", str(new),
        "--input-size", "[1]", "--input-type", "int32", "--input-name", "a",
        "--output-size", "[1]", "--output-type", "float32", "--output-name", "b",
    )  # fmt: skip

    def wait(server: Server) -> None:
        deadline = time.monotonic() + 120
        while True:
            reply = server.post("updated", {"text": "a"})
            assert reply.status == 200
            # A rebuilt endpoint takes the short way from its first request on.
            assert reply.headers["x-way"] == other_ways(server, both["gateway"])
            if reply.json["revision"] == 2:
                return
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with ThreadPoolExecutor() as pool:
        list(pool.map(wait, both.values()))
