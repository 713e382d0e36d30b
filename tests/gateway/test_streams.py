"""Text in the real clearml-serving app, behind the gateway and as it is, from a real Triton."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import JSON, Server, Session
from tests.gateway.streaming import Streaming, running_streaming
from tests.text_engine import PROMPT, event_of
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.gateway.access import KEYS_FILE

pytestmark = pytest.mark.slow
NEXT = " w20 w21 w22"
SLOW = {"text": "slow w20", "parameters": {"max_new_tokens": 32}}
# It ends when it is left, however late that is noticed, or let on (text_engine/model.py).
ENDLESS = {"text": "hang w20"}
# Less than a silence may last.
SOON_S = 20
FIRST_TOKENS = re.compile(rb'first_token_seconds_count{endpoint="text"} (.+)')


@pytest.fixture(scope="module")
def streaming(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streaming]:
    with running_streaming(session, tmp_path_factory.mktemp("streams")) as made:
        yield made


@pytest.fixture(params=["gateway", "stock"])
def server(request: pytest.FixtureRequest, streaming: Streaming) -> Server:
    return streaming.servers[request.param]


@pytest.fixture
def door(streaming: Streaming) -> Server:
    return streaming.servers["gateway"]


def asked(path: str, body: Any) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def events_of(raw: bytes) -> list[Any]:
    return [event_of(row) for row in raw.decode().split("\n\n") if row]


def test_an_answer_is_whole_or_comes_in_events(server: Server) -> None:
    body = {"text": PROMPT, "parameters": {"max_new_tokens": 3, "seed": 4}}
    reply = server.post("text", body)
    assert (reply.status, reply.json) == (200, {"text": PROMPT + NEXT})
    assert (reply.headers["x-seed"], reply.headers["x-bundle-version"]) == ("4", "77")
    reply = server.post("text", {**body, "stream": True})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert (reply.headers["cache-control"], reply.headers["x-seed"]) == ("no-cache", "4")
    assert reply.headers["x-request-id"]
    *events, end, done = events_of(reply.raw)
    assert "".join(row["text"] for row in events) == NEXT
    assert (end["finish_reason"], done) == ("length", "[DONE]")


def test_the_document_has_what_is_answered_here(door: Server) -> None:
    paths = door.ask("GET", "/openapi.json").json["paths"]
    parameters = {"max_new_tokens": 2}
    for path, documented, body in (
        ("/generate", "/generate", {"text": PROMPT, "parameters": parameters}),
        ("/tgi/text", "/tgi/{name}", {"inputs": PROMPT, "parameters": parameters}),
        ("/hf/text", "/hf/{name}", {"inputs": PROMPT, "parameters": parameters}),
        ("/v1/completions", "/v1/completions", {"model": "text", "prompt": PROMPT}),
    ):
        types = paths[documented]["post"]["responses"]["200"]["content"]
        for stream in (False, True):
            raw = json.dumps({**body, "stream": stream}).encode()
            reply = door.ask("POST", path, raw, JSON)
            assert reply.status == 200
            assert reply.headers["content-type"].partition(";")[0] in types


def test_events_come_while_others_are_still_made(server: Server, streaming: Streaming) -> None:
    on = streaming.triton.repository / "text" / "on"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(asked("/serve/text", {**ENDLESS, "stream": True}))
        received = until_there(b"data: ", connection)
        assert b"[DONE]" not in received
        on.touch()
        try:
            until_there(b"[DONE]", connection)
        finally:
            on.unlink()


def until_there(word: bytes, connection: socket.socket) -> bytes:
    """All that came by then."""
    received = b""
    while word not in received:
        more = connection.recv(65_536)
        assert more, received
        received += more
    return received


def test_errors_have_a_status_before_the_first_token(server: Server) -> None:
    for stream in (False, True):
        reply = server.post("text", {"text": "full w20", "stream": stream})
        assert (reply.status, reply.json["code"]) == (503, "overloaded")
        assert reply.headers["retry-after"]
    reply = server.post("text", {"text": "fail w20", "stream": True})
    name, error = events_of(reply.raw)[-1]
    assert (reply.status, name, error["code"]) == (200, "error", "engine_failed")


def test_a_caller_that_leaves_a_stream_cancels_it(server: Server, streaming: Streaming) -> None:
    before = streaming.cancelled()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(asked("/serve/text", {**ENDLESS, "stream": True}))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    wait_until(lambda: streaming.cancelled() == before + 1, SOON_S)


def test_a_caller_that_leaves_before_the_answer_cancels_it_behind_the_gateway(
    door: Server, streaming: Streaming
) -> None:
    def begun() -> float:
        found = FIRST_TOKENS.search(door.ask("GET", "/metrics").raw)
        return float(found[1]) if found else 0.0

    before, already = streaming.cancelled(), begun()
    with socket.create_connection(("127.0.0.1", door.port), timeout=20) as connection:
        connection.sendall(asked("/serve/text", ENDLESS))
        wait_until(lambda: begun() > already, 30)
    wait_until(lambda: streaming.cancelled() == before + 1, SOON_S)


@pytest.mark.parametrize(
    ("path", "body", "found"),
    [
        ("/generate", {"text": PROMPT}, lambda told: told["text"]),
        (
            "/v1/completions", {"model": "text", "prompt": PROMPT, "echo": True, "temperature": 0},
            lambda told: told["choices"][0]["text"],
        ),
        (
            "/v1/chat/completions",
            {"model": "text", "messages": [{"role": "user", "content": PROMPT}], "temperature": 0},
            lambda told: PROMPT + told["choices"][0]["message"]["content"],
        ),
        (
            "/tgi/text/v1/chat/completions",
            {"model": "tgi", "messages": [{"role": "user", "content": PROMPT}], "temperature": 0},
            lambda told: PROMPT + told["choices"][0]["message"]["content"],
        ),
        ("/tgi/text/generate", {"inputs": PROMPT}, lambda told: PROMPT + told["generated_text"]),
        ("/tgi/text", {"inputs": PROMPT}, lambda told: told[0]["generated_text"]),
        ("/hf/text", {"inputs": PROMPT}, lambda told: told[0]["generated_text"]),
        ("/v2/models/text/generate", {"text_input": PROMPT}, lambda told: told["text_output"]),
        (
            "/v2/models/text/infer",
            {"inputs": [{"name": "args", "shape": [1], "datatype": "BYTES", "data": [PROMPT]}]},
            lambda told: json.loads(told["outputs"][0]["data"][0])["generated_text"],
        ),
    ],
)  # fmt: skip
def test_paths_of_other_protocols(door: Server, path: str, body: Any, found: Any) -> None:
    reply = door.ask("POST", path, json.dumps(body), JSON)
    assert reply.status == 200, reply.raw
    # The model's own number of new tokens.
    assert found(reply.json) == PROMPT + (NEXT * 6).removesuffix(" w21 w22")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "text", "prompt": PROMPT, "stream": True}),
        ("/tgi/text/generate_stream", {"inputs": PROMPT}),
        ("/v2/models/text/generate_stream", {"text_input": PROMPT}),
    ],
)
def test_their_streams_are_events(door: Server, path: str, body: Any) -> None:
    reply = door.ask("POST", path, json.dumps(body), {**JSON, "x-request-id": "mine"})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-request-id"] == "mine"
    assert len(events_of(reply.raw)) >= 16


def test_what_it_says_of_itself(door: Server) -> None:
    models = door.ask("GET", "/v1/models").json["data"]
    assert [row["id"] for row in models] == ["text"]
    paths = door.ask("GET", "/openapi.json").json["paths"]
    assert {"/v1/completions", "/tgi/{name}/generate", "/hf/{name}"} <= set(paths)
    content = paths["/serve/text"]["post"]["responses"]["200"]["content"]
    assert "text/event-stream" in content
    # No operation of another task.
    assert "/v1/embeddings" not in paths


def test_curl_shows_events_as_they_come(door: Server) -> None:
    curl = shutil.which("curl")
    assert curl, "curl is of the tests' own needs"
    done = subprocess.run(
        [
            curl, "-sN", "-X", "POST", f"http://127.0.0.1:{door.port}/generate",
            "-H", "Content-Type: application/json",
            "-d", json.dumps({"text": PROMPT, "stream": True}),
        ],
        capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.endswith(b"data: [DONE]\n\n")


def test_figures(door: Server, streaming: Streaming) -> None:
    door.post("text", {"text": PROMPT, "stream": True})
    before = streaming.cancelled()
    with socket.create_connection(("127.0.0.1", door.port), timeout=20) as connection:
        connection.sendall(asked("/serve/text", {**ENDLESS, "stream": True}))
        connection.recv(1000)
    wait_until(lambda: streaming.cancelled() == before + 1, SOON_S)
    for name in ("first_token_seconds_count", "token_seconds_count", "generated_tokens_total"):
        assert figure(door, f'{name}{{endpoint="text"}}') > 0
    assert figure(door, 'cut_sequences_total{endpoint="text",reason="disconnect"}') >= 1
    assert figure(door, 'running_streams{endpoint="text"}') == 0
    # Its status left before the error did.
    assert door.post("text", {"text": "fail w30", "stream": True}).status == 200
    for status, code in (("200", "ok"), ("499", "left"), ("502", "engine_failed")):
        labels = f'code="{code}",endpoint="text",status="{status}"'
        row = f"transformer_serving_request_duration_seconds_count{{{labels}}} "
        counted = re.compile(re.escape(row) + "[1-9]")
        wait_until(lambda c=counted: c.search(door.ask("GET", "/metrics").raw.decode()), 60)


def figure(server: Server, name: str) -> float:
    rows = server.ask("GET", "/metrics").raw.decode().splitlines()
    [row] = [row for row in rows if row.startswith(f"transformer_serving_{name} ")]
    return float(row.split()[-1])


def test_sigterm_lets_streams_end(streaming: Streaming, tmp_path: Path) -> None:
    """Behind keys, which a stream asks for as any answer does."""
    key = new_key()
    file = tmp_path / "keys.json"
    file.write_text(keys_text((Key("bound", digest_of(key), now(), ("text",)),)))
    server = streaming.session.gateway(**streaming.settings(**{KEYS_FILE.name: str(file)}))
    server.start()
    try:
        server.wait_for("/health/ready")
        assert server.ask("POST", "/generate", json.dumps(SLOW), JSON).status == 401
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        headers = {**JSON, "authorization": f"Bearer {key}"}
        connection.request("POST", "/generate", json.dumps({**SLOW, "stream": True}), headers)
        answer = connection.getresponse()
        assert answer.status == 200
        server.process.send_signal(signal.SIGTERM)
        assert events_of(answer.read())[-1] == "[DONE]"
        connection.close()
    finally:
        server.stop()
