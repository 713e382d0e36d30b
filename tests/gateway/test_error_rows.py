"""Every row of the table of errors, against the real app and a real Triton, in both set-ups."""

from __future__ import annotations

import ast
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from tests.engine.triton_server import stopped, wait_until
from tests.gateway.conftest import Reply, Server, running
from tests.gateway.text_serving import MODELS, TextServing
from tests.triton_text import is_loaded, load
from transformer_serving.contract.errors import KINDS
from transformer_serving.contract.keys import Key, digest_of, new_key, now

KEYS = {"code", "message", "field", "limit", "got"}
SECRET = "kettle"
GOOD = {"text": f"a {SECRET} of tea"}
LIMIT = 200_000


@pytest.fixture(scope="module")
def text_serving(own_text_serving: TextServing) -> TextServing:
    """Its Triton is killed."""
    return own_text_serving


@pytest.fixture(scope="module")
def ways(text_serving: TextServing) -> Iterator[dict[str, Server]]:
    settings = {
        "TRANSFORMER_SERVING_MAX_BODY_BYTES": str(LIMIT),
        "TRANSFORMER_SERVING_MAX_WAITING_TOKENS": "3000",
        # A queue's own limits are asked for; the engine, stopped at times, makes no good pace.
        "TRANSFORMER_SERVING_MAX_WAIT_S": "600",
        "TRANSFORMER_SERVING_CALLS_IN_FLIGHT": "6",
    }
    gateway, stock = text_serving.gateway(**settings), text_serving.stock(**settings)
    with running(gateway, stock) as servers:
        yield servers


def refused(reply: Reply, code: str) -> None:
    """An error of ours: the table's status, its body, and nothing of the request."""
    assert reply.json["code"] == code, reply.raw
    assert reply.status == KINDS[code].status
    assert set(reply.json) == KEYS
    assert SECRET.encode() not in reply.raw
    wait = KINDS[code].retry_after_s
    told = reply.headers.get("retry-after")
    if code == "overloaded":
        # At least that, else what the queue's estimate says.
        assert told
        assert told.isdecimal()
        assert int(told) >= 1
    else:
        assert told == (None if wait is None else str(wait))
    assert reply.headers["x-request-id"]
    assert "dur=" in reply.headers["server-timing"]


def well(server: Server) -> None:
    reply = server.post("texts", GOOD)
    assert reply.status == 200, reply.raw


def together(server: Server, path: str, bodies: Sequence[Any]) -> list[Reply]:
    """All at once; the replies in order."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post(path, body), bodies))


def deep(levels: int) -> bytes:
    return b'{"text": ' + b"[" * levels + b"]" * levels + b"}"


MALFORMED = {
    "no JSON": b"{",
    "a list": b'["a"]',
    "a number": b"1",
    "nothing": b"",
    "NaN": b'{"text": NaN}',
    "too deep": deep(5000),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_body(ways: dict[str, Server], body: bytes) -> None:
    refused(ways["gateway"].post("texts", body), "malformed_body")
    # Without the gateway it is the host that parses.
    assert 400 <= ways["stock"].post("texts", body).status <= 422
    for server in ways.values():
        well(server)


INVALID: dict[str, Any] = {
    "missing": {},
    "no text": {"text": 1},
    "a list with a number": {"text": ["a", 2]},
    "an empty list": {"text": []},
    "an unknown field": {"text": "a", SECRET: 1},
    "an unknown parameter": {"text": "a", "parameters": {SECRET: 1}},
    "parameters of another type": {"text": "a", "parameters": [SECRET]},
    "a bad timeout": {"text": "a", "timeout_ms": SECRET},
    "a bad truncate": {"text": "a", "truncate": SECRET},
    "a number beyond 64 bits": {"text": "a", "parameters": {"top_k": -(10**30)}},
    "a timeout beyond 64 bits": {"text": "a", "timeout_ms": 10**30},
}


@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID)
def test_invalid_field(ways: dict[str, Server], body: Any) -> None:
    for server in ways.values():
        refused(server.post("texts", json.dumps(body).encode()), "invalid_field")


def test_unknown_endpoint(ways: dict[str, Server]) -> None:
    gateway = ways["gateway"]
    for name in (SECRET, f"texts/{SECRET}", f"texts?version={SECRET}", SECRET * 1000):
        refused(gateway.post(name, GOOD), "unknown_endpoint")
    # Whatever its body is, as long as it is one.
    assert gateway.ask("POST", f"/serve/{SECRET}", b"x").json["code"] == "unknown_endpoint"
    assert ways["stock"].post("nothing", GOOD).status == 404


def test_body_too_large(ways: dict[str, Server]) -> None:
    body = json.dumps({"text": "a" * LIMIT}).encode()
    gateway = ways["gateway"]
    refused(gateway.post("texts", body), "too_large")
    packed = gzip.compress(body)
    refused(gateway.post("texts", packed, {"content-encoding": "gzip"}), "too_large")
    # The stock app reads any body; the text is too long all the same.
    refused(ways["stock"].post("texts", packed, {"content-encoding": "gzip"}), "too_large")


TOO_LARGE: dict[str, Any] = {
    "texts": {"text": ["a"] * 101},
    "characters": {"text": "a" * 10_001},
    "tokens of a text": {"text": "tea " * 600},
    "tokens of all": {"text": ["tea " * 100] * 60},
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_too_large(ways: dict[str, Server], what: str) -> None:
    for server in ways.values():
        reply = server.post("narrow", TOO_LARGE[what])
        refused(reply, "too_large")
        assert reply.json["got"] > reply.json["limit"]


def test_truncate_asked_for(ways: dict[str, Server]) -> None:
    for server in ways.values():
        assert server.post("texts", {"text": "tea " * 600, "truncate": True}).status == 200


def test_impossible(ways: dict[str, Server]) -> None:
    for server in ways.values():
        body = {"question": "", "context": f"a {SECRET}"}
        refused(server.post("questions", body), "impossible")


def test_engine_failed(ways: dict[str, Server]) -> None:
    for server in ways.values():
        refused(server.post("texts", {"text": f"[FAIL] {SECRET}"}), "engine_failed")
        bodies = [{"text": f"tea {'cups ' * at}{'[FAIL]' if at == 3 else ''}"} for at in range(8)]
        replies = together(server, "texts", bodies)
        assert [reply.status for reply in replies] == [502 if at == 3 else 200 for at in range(8)]


def test_deadline(ways: dict[str, Server]) -> None:
    for server in ways.values():
        refused(server.post("texts", {"text": "[SLOW]", "timeout_ms": 50}), "deadline")
        well(server)


def test_internal(ways: dict[str, Server]) -> None:
    """A fault of ours: the reference is in the log, the request is not."""
    for server in ways.values():
        reply = server.post("faulty", GOOD)
        refused(reply, "internal")
        reference = reply.json["message"].split("reference ")[1].split(";")[0]
        lines = [line for line in server.log.read_text().splitlines() if reference in line]
        entry = json.loads(lines[0])
        assert entry["reference"] == reference
        assert "KeyError" in entry["message"]
        assert SECRET not in lines[0]


@pytest.mark.parametrize("more", [[], ["tea " * 2000]], ids=["on the loop", "off the loop"])
def test_a_tokenizer_that_panics(ways: dict[str, Server], more: list[str]) -> None:
    """What it raises is no Exception, and its next text is tokenized as if nothing had been."""
    for server in ways.values():
        reply = server.post("panicking", {"text": [SECRET + "x" * 60, *more], "truncate": True})
        refused(reply, "internal")
        reference = reply.json["message"].split("reference ")[1].split(";")[0]
        lines = [line for line in server.log.read_text().splitlines() if reference in line]
        assert "PanicException" in json.loads(lines[0])["message"]
        assert SECRET not in server.log.read_text()
        refused(server.post("panicking", GOOD), "unavailable")


def test_waiting_tokens(ways: dict[str, Server], text_serving: TextServing) -> None:
    """An idle worker takes anything; what comes beside it is too much until that is answered."""
    big = {"text": ["tea " * 400] * 10}
    for server in ways.values():
        with ThreadPoolExecutor(4) as pool, stopped(text_serving.triton):
            replies = [pool.submit(server.post, "texts", big) for _ in range(4)]
            wait_until(lambda: sum(map(Future.done, replies)) == 3, 120)  # noqa: B023
        statuses = Counter(reply.result().status for reply in replies)
        assert statuses == {200: 1, 503: 3}
        for reply in replies:
            if reply.result().status == 503:
                refused(reply.result(), "overloaded")
        well(server)


def test_the_golden_request_passes_admission(ways: dict[str, Server]) -> None:
    rows = ways["gateway"].ask("GET", "/health/endpoints").json["endpoints"]
    states = {row["endpoint"]: row["state"] for row in rows}
    assert states["texts"] == states["vectors"] == "ok"
    assert states["missing"] == states["questions"] == "failed"
    reasons = {row["endpoint"]: row["reason"] for row in rows}
    # Its golden body is one that the task takes.
    assert reasons["questions"].startswith("503 unavailable")


def test_a_full_queue(ways: dict[str, Server]) -> None:
    bodies = [{"text": "[SLOW] " + "tea " * length} for length in (3, 20, 50, 100, 200, 400)]
    for server in ways.values():
        # Again where the machine stood still for so long that each found the queue empty, or where
        # what the server before gave up was still in it.
        for _ in range(10):
            replies = together(server, "narrow", bodies)
            if {reply.status for reply in replies} == {200, 503}:
                break
        assert {reply.status for reply in replies} == {200, 503}, replies
        for reply in replies:
            if reply.status == 503:
                refused(reply, "overloaded")
                assert "queue" in reply.json["message"]


def test_a_model_that_is_not_loaded(ways: dict[str, Server]) -> None:
    for server in ways.values():
        refused(server.post("missing", GOOD), "unavailable")


def test_a_stopped_engine_is_late_and_goes_on(
    ways: dict[str, Server], text_serving: TextServing
) -> None:
    """Triton accepts and never answers: 504, and the next one after it goes on is answered."""
    with stopped(text_serving.triton):
        for server in ways.values():
            for _ in range(3):
                refused(server.post("texts", {**GOOD, "timeout_ms": 100}), "deadline")
    for server in ways.values():
        well(server)


def test_a_killed_engine_and_its_return(ways: dict[str, Server], text_serving: TextServing) -> None:
    # Stopped before, it answers nobody, however long the calls take to come to it.
    with ThreadPoolExecutor(2) as pool, stopped(text_serving.triton):
        running = [pool.submit(server.post, "texts", GOOD) for server in ways.values()]
        time.sleep(0.3)
        text_serving.triton.kill()
        for reply in running:
            refused(reply.result(), "unavailable")
    for server in ways.values():
        refused(server.post("texts", GOOD), "unavailable")
    text_serving.triton.start()
    for server in ways.values():
        # It answers, but its models are not loaded yet.
        refused(server.post("texts", GOOD), "unavailable")
    back_again(text_serving)
    returned = time.monotonic()
    for name, server in ways.items():
        wait_until(lambda: server.post("texts", GOOD).status == 200, 120)  # noqa: B023
        print(f"{name}: answered {time.monotonic() - returned:.2f} s after Triton's return")  # noqa: T201


def back_again(text_serving: TextServing) -> None:
    load(text_serving.triton, *MODELS)
    wait_until(lambda: all(is_loaded(text_serving.triton, name) for name in MODELS), 120)


def test_keys(text_serving: TextServing, tmp_path: Path) -> None:
    """The gateway alone has them."""
    key = new_key()
    row = Key("bound", digest_of(key), now(), ("texts",))
    with text_serving.behind_keys(tmp_path, row) as server:
        bound = {"authorization": f"Bearer {key}"}
        for reply in (server.post("texts", GOOD), server.ask("GET", "/metrics")):
            refused(reply, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
        others = server.ask("GET", "/health/endpoints", None, bound)
        for reply in (server.post("vectors", GOOD, bound), others):
            refused(reply, "forbidden")
        assert server.post("texts", GOOD, bound).status == 200


def test_every_code_has_a_test_here() -> None:
    """The table's codes, but the one that only endpoints of others have, and the one that nobody
    is there to see."""
    calls = [one for one in ast.walk(ast.parse(Path(__file__).read_bytes())) if is_refusal(one)]
    asked = {ast.literal_eval(call.args[1]) for call in calls}
    assert set(KINDS) - asked == {"refused", "left"}
    assert asked <= set(KINDS)


def is_refusal(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == refused.__name__
