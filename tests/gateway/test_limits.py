"""Bodies too large, malformed, packed, late and never whole, against the real app."""

from __future__ import annotations

import gzip
import http.client
import random
import socket
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import orjson
import pytest

from tests.gateway.conftest import JSON, LIMIT, Reply, Server
from transformer_serving.desk.http import ask

KEYS = {"code", "message", "field", "limit", "got"}
HEAD = b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


def well(server: Server) -> None:
    assert server.post("ours", {"text": "a"}).status == 200


def refused(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.json["code"]) == (status, code)
    assert set(reply.json) == KEYS
    assert reply.headers["x-request-id"]


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def test_who_sends_all_before_reading_gets_the_refusal(gateway: Server) -> None:
    """One in three lost it to a reset: the connection was closed with the answer's last byte."""
    url = f"http://127.0.0.1:{gateway.port}/serve/ours"
    # As much as a socket takes at once, or little more.
    raw = b'{"text": "%s"}' % (b"a" * 2_200_000)
    statuses = Counter(ask(url, raw, JSON, timeout_s=30).status for _ in range(100))
    assert statuses == {413: 100}


@pytest.mark.parametrize("path", ["ours", "other", "nothing", "ours/2"])
def test_declared_too_large(gateway: Server, path: str) -> None:
    reply = gateway.post(path, b'"' + b"a" * LIMIT + b'"')
    refused(reply, 413, "too_large")
    assert (reply.json["limit"], reply.json["got"]) == (LIMIT, LIMIT + 2)
    well(gateway)


def test_declared_too_large_is_answered_before_it_is_sent(gateway: Server) -> None:
    with gateway.connect() as connection:
        connection.sendall(HEAD + b"expect: 100-continue\r\ncontent-length: 99999999999\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
    well(gateway)


def test_up_to_the_limit(gateway: Server) -> None:
    body = b'{"text": "' + b"a" * (LIMIT - 12) + b'"}'
    assert len(body) == LIMIT
    for path in ("ours", "other"):
        assert gateway.post(path, body).status == 200
        assert gateway.post(path, gzip.compress(body), {"content-encoding": "gzip"}).status == 200
        refused(gateway.post(path, body + b" "), 413, "too_large")


@pytest.mark.parametrize("path", [b"ours", b"other"])
def test_chunked_too_large(gateway: Server, path: bytes) -> None:
    """The answer is whole although the caller was still sending, then the connection closes."""
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    with gateway.connect() as connection:
        connection.sendall(HEAD.replace(b"ours", path) + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(40):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        received = until_closed(connection)
    head, body = received.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in head
    assert orjson.loads(body)["code"] == "too_large"
    well(gateway)


def test_who_was_told_to_continue_gets_the_refusal_of_what_then_came(gateway: Server) -> None:
    """As curl sends what it reads from a pipe. It was taken for one that sends nothing."""
    statuses = Counter(refused_after_continue(gateway) for _ in range(10))
    assert statuses == {b"HTTP/1.1 413 Payload Too Large": 10}
    well(gateway)


def refused_after_continue(gateway: Server) -> bytes:
    """The first line of the answer, or what it was lost to."""
    with gateway.connect() as connection:
        expecting = HEAD + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(expecting)
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        try:
            connection.sendall((b"10000\r\n" + b"a" * 65536 + b"\r\n") * 160 + b"0\r\n\r\n")
            return until_closed(connection).split(b"\r\n", 1)[0]
        except OSError as error:
            return type(error).__name__.encode()


@pytest.mark.parametrize("path", ["ours", "other"])
def test_chunked_within_the_limit(gateway: Server, path: str) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(100):
            yield b"ab" * 50
        yield b'"}'

    assert gateway.ask("POST", f"/serve/{path}", pieces(), JSON).status == 200


def test_a_gzip_bomb(gateway: Server) -> None:
    deflater = zlib.compressobj(9, wbits=31)
    bomb = b"".join(deflater.compress(bytes(10**7)) for _ in range(30)) + deflater.flush()
    assert len(bomb) < LIMIT
    before = gateway.resident_mib()
    for path in ("ours", "other") * 5:
        refused(gateway.post(path, bomb, {"content-encoding": "gzip"}), 413, "too_large")
    assert gateway.resident_mib() < before + 30
    well(gateway)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress"])
def test_other_encodings(gateway: Server, encoding: str) -> None:
    for path in ("ours", "other"):
        reply = gateway.post(path, b"{}", {"content-encoding": encoding})
        refused(reply, 400, "malformed_body")
        assert reply.json["field"] == "content-encoding"
    assert gateway.post("ours", b"{}", {"content-encoding": "identity"}).status == 200
    packed = gzip.compress(b"{}")
    assert gateway.post("ours", packed, {"content-encoding": "GZIP"}).status == 200
    packed = zlib.compress(b"{}")
    for path in ("ours", "other"):
        assert gateway.post(path, packed, {"content-encoding": "deflate"}).status == 200


def test_two_encoding_headers_do_not_pass_the_limit(gateway: Server) -> None:
    bomb = gzip.compress(bytes(3 * 10**7))
    head = HEAD.replace(b"application/json", b"text/plain").replace(b"ours", b"other")
    head += b"content-encoding: gzip\r\ncontent-encoding: identity\r\n"
    with gateway.connect() as connection:
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(bomb) + bomb)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")


MALFORMED = (
    b"{",
    b'{"a" 1}',
    b"\xff{}",
    b"[]",
    b"1",
    b"null",
    b"true",
    b"{} {}",
    b" ",
    b"[" * 9**5,
)


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_json(gateway: Server, body: bytes) -> None:
    for path in ("ours", "other", "split", "mixed"):
        refused(gateway.post(path, body), 400, "malformed_body")
    well(gateway)


@pytest.mark.parametrize("body", [b"", b'"text"', b'{"text": NaN}', b'{"text": "\\ud800"}'])
def test_stricter_for_endpoints_of_ours(gateway: Server, body: bytes) -> None:
    for path in ("ours", "split"):
        refused(gateway.post(path, body), 400, "malformed_body")


@pytest.mark.parametrize("given", ["a", "trace-1 of 2", "x" * 128])
def test_a_sane_request_id_is_taken_over(gateway: Server, given: str) -> None:
    for path in ("ours", "other", "nothing"):
        assert gateway.post(path, {}, {"x-request-id": given}).headers["x-request-id"] == given
    assert (
        gateway.ask("GET", "/docs", headers={"x-request-id": given}).headers["x-request-id"]
        == given
    )


@pytest.mark.parametrize("given", ["", "x" * 129, "tab\there", "é"])
def test_else_one_is_made(gateway: Server, given: str) -> None:
    made = gateway.post("ours", {}, {"x-request-id": given.encode("latin-1")}).headers
    assert len(made["x-request-id"]) == 32
    made_again = gateway.ask("GET", "/health/live").headers
    assert len(made_again["x-request-id"]) == 32
    assert made["x-request-id"] != made_again["x-request-id"]


@pytest.fixture
def half_sent(gateway: Server) -> Iterator[list[socket.socket]]:
    """Many connections that stop in the middle of their headers or of their body."""
    beginnings = [
        b"POST /ser",
        HEAD,
        HEAD + b"content-length: 900\r\n\r\n",
        HEAD + b"content-length: 9\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{",
        HEAD + b"content-encoding: gzip\r\ncontent-length: 50\r\n\r\n" + gzip.compress(b"{}")[:9],
    ]
    connections = []
    for beginning in beginnings * 20:
        connections.append(gateway.connect())
        connections[-1].sendall(beginning)
    yield connections
    for connection in connections:
        connection.close()


def test_slow_callers_hold_nobody_up(gateway: Server, half_sent: list[socket.socket]) -> None:
    started = time.monotonic()
    for _ in range(20):
        well(gateway)
    assert time.monotonic() - started < 10


def test_half_closed_callers(gateway: Server, half_sent: list[socket.socket]) -> None:
    for connection in half_sent:
        connection.shutdown(socket.SHUT_WR)
        until_closed(connection)
    with gateway.connect() as connection:
        connection.sendall(HEAD + b'content-length: 12\r\n\r\n{"sleep":0.1}')
        connection.shutdown(socket.SHUT_WR)
        until_closed(connection)
    well(gateway)


def test_random_bodies(gateway: Server) -> None:
    """Thousands of bodies, whole and broken, on kept connections; the worker is the same after."""
    chance = random.Random(20261120)
    (worker,) = gateway.workers()
    before, handles = gateway.resident_mib(), worker.num_fds()
    statuses: Counter[int] = Counter()
    for _ in range(30):
        with gateway.connect() as connection:
            for _ in range(100):
                connection.sendall(random_request(chance))
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                answer.read()
                statuses[answer.status] += 1
                if answer.will_close:
                    break
    assert set(statuses) <= {200, 400, 422}
    assert min(statuses[200], statuses[400]) > 100
    well(gateway)
    assert gateway.workers() == [worker]
    assert gateway.resident_mib() < before + 60
    assert worker.num_fds() < handles + 20


def random_request(chance: random.Random) -> bytes:
    alphabet = chance.choice([bytes(range(256)), b'{}[]":,0e-\\u', b' {"text":1}'])
    body = bytes(chance.choices(alphabet, k=chance.choice([0, 1, 5, 60, 2000])))
    if chance.random() < 0.5:
        body = orjson.dumps({"text": body.decode("latin-1")})
    headers = [b"x-request-id: " + bytes(chance.choices(range(33, 127), k=chance.randint(1, 200)))]
    if chance.random() < 0.3:
        headers.append(b"content-encoding: gzip")
        body = gzip.compress(body) if chance.random() < 0.7 else b"\x1f\x8b\x08\x00" + body
    kind = chance.choice([b"application/json", b"text/plain", b"a/b+json", b"application/x+json"])
    path = chance.choice([b"ours", b"other", b"ours/2", b"split", b"mixed"])
    headers += [b"content-type: " + kind, b"host: a", b"content-length: %d" % len(body)]
    return b"POST /serve/" + path + b" HTTP/1.1\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health/live", b"", 200),
        ("GET", "/health/ready", b"", 200),
        ("GET", "/health/endpoints", b"", 200),
        ("GET", "/health/nothing", b"", 404),
        ("GET", "/metrics", b"", 200),
        ("GET", "/docs", b"", 200),
        ("GET", "/nothing", b"", 404),
        ("GET", "/serve/ours", b"", 405),
        ("POST", "/serve/ours/2/", b"{}", 307),
        ("POST", "/serve/nothing", b"{}", 404),
        ("POST", "/serve/other", b"{}", 200),
        ("POST", "/serve/other", b"{", 400),
        ("POST", "/serve/ours", b"{}", 200),
        ("POST", "/serve/ours", b'{"stream": true}', 200),
        ("POST", "/serve/ours", b"[]", 400),
        ("POST", "/serve/ours", b" " * (LIMIT + 1), 413),
        ("POST", "/serve/ours", b'{"raise": "value", "text": "a"}', 422),
        ("POST", "/serve/ours", b'{"raise": "key", "text": "a"}', 500),
        ("POST", "/serve/broken", b"{}", 422),
    ],
)
def test_an_id_and_times_on_every_answer(
    gateway: Server, method: str, path: str, body: bytes, status: int
) -> None:
    reply = gateway.ask(method, path, body, {**JSON, "x-request-id": "mine"})
    assert (reply.status, reply.headers["x-request-id"]) == (status, "mine")
    assert "dur=" in reply.headers["server-timing"]
