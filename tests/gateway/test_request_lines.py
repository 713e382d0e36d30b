"""The log's JSON form on a real gateway with keys: one line a request where that is set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server
from tests.gateway.text_serving import TextServing
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.contract.worker.log_lines import _FIELDS
from transformer_serving.gateway.access import KEYS_FILE
from transformer_serving.gateway.settings import LOG_REQUESTS

PAGE = Path(__file__).parent.parent.parent / "docs" / "observability.md"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
# Of a key that may ask nothing but vectors.
BOUND = new_key()
OWN = {"time", "level", "logger", "message", "request_id", "status", "ms"}


@pytest.fixture(scope="module")
def locked(
    text_serving: TextServing, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, dict[str, str]]]:
    """A gateway that logs every request, and the headers of the key `alice`."""
    secret = new_key()
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    bound = Key("bound", digest_of(BOUND), now(), ("vectors",))
    file.write_text(keys_text([Key("alice", digest_of(secret), now()), bound]))
    server = text_serving.gateway(**{KEYS_FILE.name: str(file), LOG_REQUESTS.name: "1"}).start()
    try:
        server.wait_for("/health/ready")
        yield server, {"x-api-key": secret}
    finally:
        server.stop()


def lines_of(server: Server, request: str, count: int = 1) -> list[dict[str, Any]]:
    """They are written after the answer."""

    def lines() -> list[dict[str, Any]]:
        text = server.log.read_text()
        read = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in read if line.get("request_id") == request]

    wait_until(lambda: len(lines()) >= count, 60, server.log.read_text)
    return lines()


def test_an_answer_has_id_endpoint_key_and_trace(locked: tuple[Server, dict[str, str]]) -> None:
    server, key = locked
    headers = {**key, "x-request-id": 'my "own" {id}', "traceparent": PARENT}
    assert server.post("texts", {"text": "secret tea"}, headers).status == 200
    (line,) = lines_of(server, headers["x-request-id"])
    assert line.keys() == OWN | {"endpoint", "key", "trace_id"}
    assert (line["endpoint"], line["key"], line["trace_id"]) == ("texts", "alice", TRACE)
    assert (line["message"], line["level"], line["status"]) == ("answered", "info", 200)
    assert line["ms"] > 0
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert "secret" not in server.log.read_text()


def test_a_request_by_the_name_in_its_body(locked: tuple[Server, dict[str, str]]) -> None:
    server, key = locked
    body = json.dumps({"model": "vectors", "input": "tea"})
    headers = {**key, "x-request-id": "by-name", "content-type": "application/json"}
    status = server.ask("POST", "/v1/embeddings", body, headers).status
    (line,) = lines_of(server, "by-name")
    assert (line["endpoint"], line["status"], line["key"]) == ("vectors", status, "alice")


def test_a_fault_has_the_preprocess_line_and_the_gateways(
    locked: tuple[Server, dict[str, str]],
) -> None:
    server, key = locked
    headers = {**key, "x-request-id": "failing", "traceparent": PARENT}
    assert server.post("texts", {"text": "[FAIL]"}, headers).status == 502
    lines = lines_of(server, "failing", 2)
    assert {line["logger"] for line in lines} == {
        "transformer_serving.preprocess", "transformer_serving.gateway"
    }  # fmt: skip
    for line in lines:
        assert (line["endpoint"], line["key"], line["trace_id"]) == ("texts", "alice", TRACE)
        assert line["status"] == 502


def test_what_is_refused_is_logged_without_what_was_asked(
    locked: tuple[Server, dict[str, str]],
) -> None:
    """No key, a wrong path: neither is known to be anybody's, so neither is on the line."""
    server, key = locked
    for request, path, body, headers, status in (
        ("no-key", "texts", {"text": "tea"}, {}, 401),
        ("nobody", "not-an-endpoint", {"text": "tea"}, key, 404),
        ("broken", "texts", b"{", {**key, "traceparent": "00-none"}, 400),
    ):
        assert server.post(path, body, {**headers, "x-request-id": request}).status == status
        (line,) = lines_of(server, request)
        assert line["status"] == status
        assert not line.keys() & {"trace_id", "endpoint"}
    assert "not-an-endpoint" not in server.log.read_text()


def test_whose_key_may_not_ask_is_named(locked: tuple[Server, dict[str, str]]) -> None:
    server, _ = locked
    for request, path, body in (
        ("by-path", "/serve/texts", {"text": "tea"}),
        ("by-body", "/v1/embeddings", {"model": "texts", "input": "tea"}),
    ):
        headers = {"x-api-key": BOUND, "x-request-id": request, "content-type": "application/json"}
        assert server.ask("POST", path, json.dumps(body), headers).status == 403
        (line,) = lines_of(server, request)
        assert (line["status"], line["key"]) == (403, "bound")


def test_a_setting_keeps_it_quiet(text_gateway: Server) -> None:
    """A fault that comes afterwards has its lines: by then that of an answer would be there."""
    status = text_gateway.post("texts", {"text": "tea"}, {"x-request-id": "quiet"}).status
    assert status == 200

    def told() -> bool:
        # Others of its kind within a second are counted, not told.
        text_gateway.post("texts", {"text": "[FAIL]"}, {"x-request-id": "told"})
        return '"told"' in text_gateway.log.read_text()

    wait_until(told, 60, text_gateway.log.read_text)
    assert "quiet" not in text_gateway.log.read_text()


def test_every_field_has_its_row_on_the_page() -> None:
    part = PAGE.read_text("utf-8").partition("## Log lines")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z_, ]+) \|", part, re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} - {"field"} == {
        "time",
        "level",
        "logger",
        "message",
        "key",
        *_FIELDS,
    }
