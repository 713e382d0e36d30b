"""Keys, over the real clearml-serving app; and in process every URL that anybody could think of."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import http.client
import importlib
import io
import json
import logging
import os
import re
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from fastapi import APIRouter, FastAPI
from hypothesis import given, strategies as st
from rich.console import Console
from starlette._utils import get_route_path

from tests.contract.test_tracing import SAMPLED, Kept
from tests.engine.triton_server import wait_until
from tests.gateway.conftest import JSON, Headers, Reply, Server, Session
from tests.gateway.played_host import host_of
from transformer_serving.contract import known_keys
from transformer_serving.contract.errors import KINDS, ContractError, ServingError
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.contract.worker.log_lines import JsonLines
from transformer_serving.contract.worker.request_context import current_key, current_request
from transformer_serving.contract.worker.tracing import Tracing
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.cli import main
from transformer_serving.desk.cli.demo import _show_curl
from transformer_serving.desk.demo import DemoBundle
from transformer_serving.desk.deploy.endpoint import Deployed
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure
from transformer_serving.gateway import front_door, page
from transformer_serving.gateway.access import KEYS_FILE, Access
from transformer_serving.gateway.asgi import path_of
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.keys import WITHOUT_KEY, Keys, endpoint_url, keys_of
from transformer_serving.gateway.page.files import FILES
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.routes import call_of
from transformer_serving.gateway.settings import GENERATE_ENDPOINT, ROOT_ENDPOINT, read_settings

ALL, BOUND, METRICS, UNKNOWN = (new_key() for _ in range(4))
ROWS = (
    Key("all", digest_of(ALL), now()),
    Key("bound", digest_of(BOUND), now(), ("ours/2", "other", "split")),
    Key("metrics", digest_of(METRICS), now(), metrics=True),
)
BODY = b'{"text": "kettle"}'


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def write(path: Path, *keys: Key) -> None:
    new = path.with_suffix(".new")
    new.write_text(keys_text(keys))
    new.replace(path)


@pytest.fixture(scope="module")
def door(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    write(path, *ROWS)
    server = session.gateway(**{KEYS_FILE.name: str(path)}).start()
    try:
        yield server.wait_for("/health/ready")
    finally:
        server.stop()
        assert not any(key in server.log.read_text() for key in (ALL, BOUND, METRICS, UNKNOWN))


def refused(reply: Reply, code: str) -> None:
    assert reply.status == KINDS[code].status, reply
    assert list(reply.json) == ["code", "message", "field", "limit", "got"]
    assert reply.json["code"] == code
    assert reply.headers["x-request-id"]
    assert reply.headers["server-timing"]
    assert reply.headers.get("www-authenticate") == ("Bearer" if reply.status == 401 else None)
    for key in (ALL, BOUND, METRICS, UNKNOWN):
        assert key.encode() not in reply.raw


# What each key is told of what it may ask.
OF_ITS_OWN = ("/openapi.json", "/page/endpoints")
ROUTES = (
    ("POST", "/serve/ours"), ("POST", "/serve/other"), ("POST", "/serve/nothing"),
    ("GET", "/serve/ours"), ("GET", "/docs/"), ("GET", "/openapi.json"), ("GET", "/metrics"),
    ("GET", "/health/endpoints"), ("GET", "/health/endpoints/ours"), ("GET", "/health/"),
    ("GET", "/health/live/"), ("GET", "//health/live"), ("GET", "/health/live%00"),
    ("GET", "/health/../metrics"), ("GET", "/HEALTH/live"), ("OPTIONS", "/serve/ours"),
    ("HEAD", "/openapi.json"), ("POST", "/"), ("GET", "/page/other.js"), ("PUT", "/anything"),
    ("GET", "/page/endpoints"), ("GET", "/docs/oauth2-redirect"),
)  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_is_asked_without_a_key(door: Server, method: str, path: str) -> None:
    for headers in (
        {}, bearer(UNKNOWN), bearer(""), bearer(ALL[:-1]), bearer(ALL + "0"), bearer(ALL.upper()),
        {"authorization": ALL}, {"authorization": f"Basic {ALL}"}, {"x-api-key": f"Bearer {ALL}"},
        {"authorization": "Bearer"}, {"cookie": ALL}, {"x-api-key": ""},
    ):  # fmt: skip
        body = BODY if method == "POST" else None
        reply = door.ask(method, path, body, headers)
        if method == "HEAD":
            assert reply.status == 401
        else:
            refused(reply, "unauthorized")


@pytest.fixture(scope="module")
def rooted(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Behind a proxy that takes its prefix off, as uvicorn is told."""
    path = tmp_path_factory.mktemp("rooted") / "keys.json"
    write(path, *ROWS)
    settings = {
        KEYS_FILE.name: str(path),
        GENERATE_ENDPOINT.name: "ours",
        ROOT_ENDPOINT.name: "ours/2",
    }
    server = session.uvicorn("transformer_serving.gateway.app:app", **settings)
    server.command.append("--root-path=/base")
    try:
        yield server.start().wait_for("/health/ready")
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("GET", "/health/live", None, 200), ("GET", "/health/ready", None, 200),
        ("GET", "/health", None, 200), ("HEAD", "/health", None, 200),
        ("GET", "/v2/health/live", None, 200), ("GET", "/v2/health/ready", None, 200),
        ("GET", "/health/endpoints", None, 401), ("GET", "/health/endpoints", ALL, 200),
        ("GET", "/metrics", None, 401), ("GET", "/metrics", METRICS, 200), ("GET", "/", None, 200),
        ("GET", "/openapi.json", METRICS, 403), ("POST", "/serve/ours", None, 401),
        ("POST", "/serve/ours", ALL, 200), ("POST", "/serve/ours", BOUND, 403),
        ("POST", "/generate", None, 401), ("POST", "/generate", ALL, 200),
        ("POST", "/generate/", ALL, 200), ("POST", "/generate/", BOUND, 403),
        ("POST", "/", None, 401), ("POST", "/", UNKNOWN, 401), ("POST", "/", ALL, 200),
        ("POST", "/", BOUND, 200), ("POST", "/", METRICS, 403), ("HEAD", "/", None, 200),
        ("GET", "/base/health/live", None, 401), ("GET", "/base/health/live", ALL, 404),
    ],
    # Keys are drawn anew in each process, and xdist compares the tests' names.
    ids=count(),
)  # fmt: skip
def test_below_a_root_path_all_is_where_it_is_elsewhere(
    rooted: Server, method: str, path: str, key: str | None, status: int
) -> None:
    body = BODY if method == "POST" else None
    headers = {**JSON, **({} if key is None else bearer(key))}
    assert rooted.ask(method, path, body, headers).status == status


@pytest.mark.parametrize("path", FILES)
def test_the_pages_need_none_and_name_nobody(door: Server, path: str) -> None:
    """A browser brings no key when it asks for a page; the page asks for it, then."""
    packed = Path(page.__file__).with_name(FILES[path]).read_bytes()
    for headers in ({}, bearer(UNKNOWN), bearer(METRICS)):
        reply = door.ask("GET", path, None, headers)
        assert (reply.status, reply.raw) == (200, packed)


def test_a_key_is_told_of_its_own(door: Server) -> None:
    def told(key: str) -> tuple[set[str], set[str]]:
        rows = door.ask("GET", "/page/endpoints", None, bearer(key)).json["endpoints"]
        paths = door.ask("GET", "/openapi.json", None, bearer(key)).json["paths"]
        return {row["name"] for row in rows}, {path for path in paths if "/serve/" in path}

    names, paths = told(BOUND)
    assert names == {"ours/2", "other"}
    assert paths == {"/serve/ours/2", "/serve/other"}
    names, paths = told(ALL)
    assert {"ours", "updated", "broken"} <= names
    assert "/serve/ours" in paths


def test_health_needs_none(door: Server) -> None:
    for path in ("/health", "/health/live", "/health/ready"):
        for method in ("GET", "POST"):
            assert door.ask(method, path).status == 200
            assert door.ask(method, path, None, bearer(UNKNOWN)).status == 200


@pytest.mark.parametrize(
    "headers",
    [bearer(ALL), {"authorization": f"bEARER   {ALL} "}, {"X-API-Key": ALL},
     {"x-api-key": ALL, "authorization": "Basic dXNlcjpwYXNz"}],
    ids=["bearer", "in other letters", "x-api-key", "beside another's"],
)  # fmt: skip
def test_a_key_for_all(door: Server, headers: Headers) -> None:
    for path in ("ours", "ours/2", "other", "split"):
        assert door.post(path, BODY, headers).status == 200
    for path in ("/openapi.json", "/health/endpoints", "/health/endpoints/ours"):
        assert door.ask("GET", path, None, headers).status == 200
    assert door.post("nothing", BODY, headers).json["code"] == "unknown_endpoint"
    refused(door.ask("GET", "/metrics", None, headers), "forbidden")


def test_a_key_for_metrics(door: Server) -> None:
    assert b"transformer_serving_" in door.ask("GET", "/metrics", None, bearer(METRICS)).raw
    for method, path in ROUTES:
        if path != "/metrics" and method != "HEAD":
            body = BODY if method == "POST" else None
            refused(door.ask(method, path, body, bearer(METRICS)), "forbidden")


BOUND_MAY = {
    "ours/2": ("ours", "2"), "ours/2?version=1": ("ours", "2"), "ours?version=2": ("ours", "2"),
    "ours/?version=2": ("ours", "2"), "ours?version=1&version=2": ("ours", "2"),
    "ours?version=2/": ("ours", "2"), "ours%2F2": ("ours", "2"), "ours?version=%32": ("ours", "2"),
    "%6furs/2": ("ours", "2"), "split": None,
}  # fmt: skip
BOUND_MAY_NOT = (
    "ours", "ours/", "ours/1", "ours/22", "ours?version=", "ours?version=2&version=",
    "ours?version=2&version=1", "ours/%32/../", "ours//2", "/ours/2", "ours/2/", "ours/2//",
    "ours/2/x", "ours%252F2", "ours;/2", "ours%00/2", "ours/2%00", "ours/2%0a", "ours/2%20",
    "Ours/2", "ours/2/../../ours", "../serve/ours", "x/../ours/2", "mixed", "updated", "broken",
    "other%00", "%2Fother", "nothing", "ours#2", "ours?Version=2", "ours?version=2;version=1",
    "ours%3Fversion=2", "split%2F..%2Fours", "",
)  # fmt: skip


@pytest.mark.parametrize("path", BOUND_MAY)
def test_a_bound_key_asks_for_its_own(door: Server, path: str) -> None:
    reply = door.post(path, BODY, bearer(BOUND))
    assert reply.status == 200, reply
    if (expected := BOUND_MAY[path]) is not None:
        assert (reply.json["endpoint"], reply.json["version"]) == expected


@pytest.mark.parametrize("path", BOUND_MAY_NOT)
def test_a_bound_key_asks_for_nothing_else(door: Server, path: str) -> None:
    refused(door.post(path, BODY, bearer(BOUND)), "forbidden")


def test_a_bound_key_and_all_other_routes(door: Server) -> None:
    assert door.post("other", BODY, bearer(BOUND)).status == 200
    assert door.ask("GET", "/health/endpoints/ours/2", None, bearer(BOUND)).status == 200
    assert door.ask("GET", "/health/endpoints/ours%2F2/", None, bearer(BOUND)).status == 200
    for method, path in ROUTES:
        if path not in ("/serve/other", *OF_ITS_OWN) and method != "HEAD":
            body = BODY if method == "POST" else None
            refused(door.ask(method, path, body, bearer(BOUND)), "forbidden")
    for name in ("ours/1", "ours", "mixed", "ours//2", "./other", "ours/2/x"):
        refused(door.ask("GET", f"/health/endpoints/{name}", None, bearer(BOUND)), "forbidden")


def raw_exchange(server: Server, *pieces: bytes) -> bytes:
    """All that is answered until the connection closes."""
    with server.connect() as connection:
        # What is no chunk ends the connection at once: what follows cannot be sent any more.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
            time.sleep(0.1)
        connection.settimeout(60)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65_536):
                found += piece
        return found


def test_a_body_is_not_read_before_the_key(door: Server) -> None:
    """The answer comes with the head alone, the connection is closed after what still comes."""
    head = b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n"
    answer = raw_exchange(door, head, b"x" * 1000)
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in answer.lower()
    # Nothing behind it is taken for a request.
    head = b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = raw_exchange(door, head, b"5\r\n", b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n")
    # A reset may overtake the answer.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 401")
    assert b"200" not in answer


def test_a_refusal_without_a_body_keeps_the_connection(door: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    with_key = {"authorization": f"Bearer {ALL}"}
    for headers, status in (({}, 401), (with_key, 200), ({}, 401), (bearer(METRICS), 403)):
        connection.request("GET", "/health/endpoints", headers=headers)
        answer = connection.getresponse()
        assert answer.status == status
        assert answer.getheader("connection") is None
        answer.read()
    connection.close()


def test_what_is_no_http_is_refused(door: Server) -> None:
    upgrade = (
        b"GET /serve/ours HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket"
        b"\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    with door.connect() as connection:
        connection.sendall(upgrade)
        assert re.match(rb"HTTP/1\.1 40[013] ", connection.recv(65_536))


def figure(server: Server, name: str, label: str) -> float:
    text = server.ask("GET", "/metrics", None, bearer(METRICS)).raw.decode()
    found = re.search(rf"^{name}\{{{label}\}} (\S+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_figures_by_key(door: Server) -> None:
    of_key = "transformer_serving_gateway_requests_total"
    of_code = "transformer_serving_gateway_refused_total"
    rows = (
        (of_key, 'key="bound"'),
        (of_code, 'code="forbidden",endpoint="ours"'),
        (of_code, 'code="unauthorized",endpoint="ours"'),
    )
    before = [figure(door, *row) for row in rows]
    for path, key in (("other", BOUND), ("ours", BOUND), ("ours", UNKNOWN), ("ours", UNKNOWN)):
        door.post(path, BODY, bearer(key))
    after = [figure(door, *row) for row in rows]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1, 2]


def test_a_look_at_the_figures_is_no_request_of_its_key(door: Server) -> None:
    """Prometheus would be the one that asked most; what else takes a key is a request."""
    of_key = "transformer_serving_gateway_requests_total"
    rows = [(of_key, f'key="{name}"') for name in ("all", "bound", "metrics")]
    before = [figure(door, *row) for row in rows]
    for path, key, status in (
        ("/metrics", METRICS, 200), ("/metrics", BOUND, 403), ("/tei/ours/metrics", METRICS, 200),
        ("/health/endpoints", ALL, 200),
    ):  # fmt: skip
        assert door.ask("GET", path, None, bearer(key)).status == status, path
    after = [figure(door, *row) for row in rows]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0, 0]


def test_the_name_stands_beside_the_request_id(door: Server) -> None:
    def told() -> dict[str, str]:
        lines = [line for line in door.log.read_text().splitlines() if "asked-with-" in line]
        return {line["request_id"]: line["key"] for line in map(json.loads, lines)}

    for key, name in ((ALL, "all"), (BOUND, "bound")):
        asked = f"asked-with-{key[-4:]}"
        body = json.dumps({"raise": "key", "text": "kettle"})

        def answers(asked: str = asked, key: str = key, body: str = body) -> bool:
            """Of a kind of fault one a second is told, so it may have to be asked again."""
            door.ask("POST", "/serve/ours/2", body, {**JSON, **bearer(key), "x-request-id": asked})
            return asked in told()

        wait_until(answers, 20)
        assert told()[asked] == name


def test_the_desk_sends_its_key(door: Server, tmp_path: Path) -> None:
    """`bench` and `deploy` at a gateway with keys."""
    url = f"http://127.0.0.1:{door.port}/serve"
    bench = ["bench", f"{url}/other", "-c", "1", "--seconds", "0.1"]
    assert CliRunner().invoke(main, [*bench, "--key", BOUND]).exit_code == 0
    refused = CliRunner().invoke(main, bench)
    assert refused.exit_code == 2
    assert "give --key or TRANSFORMER_SERVING_KEY" in refused.output
    cli = ClearmlCli({}, "0" * 32)
    target = DeployTarget(cli, url, url, tmp_path / "lock", ALL)
    assert target.ask("ours", {"text": "kettle"}).status == 200
    for key in (None, UNKNOWN, BOUND, METRICS):
        with pytest.raises(Failure, match="--key"):
            replace(target, key=key).ask("ours", {"text": "kettle"})


def test_the_line_that_up_shows_asks_with_the_key(door: Server) -> None:
    url = f"http://127.0.0.1:{door.port}/serve/ours"
    shown, demo = io.StringIO(), DemoBundle("ours", Path(), {"text": "kettle"})
    _show_curl(Console(file=shown), Deployed("ours", url, 1, None, True), demo, ALL)
    line, answer = shown.getvalue().splitlines()[1:]
    assert ALL not in shown.getvalue()
    asked = subprocess.run(
        ["bash", "-c", line.replace("curl", "curl -s", 1)],
        env={**os.environ, "TRANSFORMER_SERVING_KEY": ALL}, capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(asked.stdout) == json.loads(answer)
    assert "code" not in json.loads(answer)


def test_the_file_may_change_while_it_serves(session: Session, tmp_path: Path) -> None:
    """Added, removed, garbage, gone, back, and the last good keys hold.

    One worker: of several each reads the file at its own next request.
    """
    path = tmp_path / "keys.json"
    write(path, *ROWS)
    server = session.gateway(**{KEYS_FILE.name: str(path)}).start()
    added = new_key()

    def statuses(key: str, count: int = 3) -> set[int]:
        return {server.post("ours", BODY, bearer(key)).status for _ in range(count)}

    try:
        server.wait_for("/health/ready")
        assert statuses(added) == {401}
        write(path, *ROWS, Key("added", digest_of(added), now()))
        wait_until(lambda: statuses(added) == {200}, 60)
        for wrong in (b"{", b"", b'{"keys": [{}]}'):
            path.write_bytes(wrong)
            time.sleep(known_keys._LOOK_EVERY_S + 0.1)
            assert statuses(added) == statuses(ALL) == {200}
            assert statuses(UNKNOWN) == {401}
        path.unlink()
        time.sleep(known_keys._LOOK_EVERY_S + 0.1)
        assert statuses(ALL) == {200}
        write(path, *ROWS)
        wait_until(lambda: statuses(added) == {401}, 60)
        assert statuses(ALL) == {200}
        write(path)
        wait_until(lambda: statuses(ALL) == {401}, 60)
    finally:
        server.stop()
    log = server.log.read_text()
    for fault in ("is not a JSON object", "field 'name' is missing", "cannot be read"):
        assert re.search(f"the keys are as they were before: .*{fault}", log)
    assert added not in log


@pytest.mark.parametrize("content", [None, b"", b'{"keys": [{"name": "a"}]}'])
def test_a_missing_or_wrong_file_is_no_start(
    session: Session, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ContractError) as caught:
        keys_of(Access(keys_file=path))
    assert str(path) in str(caught.value)
    assert f"transformer-serving keys add NAME --file {path}" in str(caught.value)
    if content is None:
        server = session.gateway(**{KEYS_FILE.name: str(path)}).start()
        try:
            assert server.process.wait(60) != 0
        finally:
            server.stop()
        assert str(path) in server.log.read_text()
        assert "keys add NAME" in server.log.read_text()


# In process: what changes, how often it is looked at, and every URL.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "keys.json", *ROWS)
    return tmp_path / "keys.json"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the keys' clock on."""
    at = [1000.0]

    def later(seconds: float) -> None:
        at[0] += seconds

    monkeypatch.setattr(known_keys, "time", SimpleNamespace(monotonic=lambda: at[0]))
    return later


def name_of(keys: Keys, key: str) -> str | None:
    try:
        return keys.key_of({b"x-api-key": key.encode()}).name
    except ServingError:
        return None


def test_no_file_is_no_keys() -> None:
    assert keys_of(Access()) is None


def test_it_is_looked_at_once_a_second(file: Path, clock: Callable[[float], None]) -> None:
    keys = Keys(file)
    write(file, *ROWS[1:])
    clock(0.9)
    assert name_of(keys, ALL) == "all"
    clock(0.2)
    assert name_of(keys, ALL) is None
    assert name_of(keys, BOUND) == "bound"


def test_what_is_wrong_is_logged_once(
    file: Path, clock: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(file)

    def errors() -> list[str]:
        for _ in range(3):
            clock(1.1)
            assert name_of(keys, ALL) == "all"
        found = [row.getMessage() for row in caplog.records if row.levelno >= logging.ERROR]
        caplog.clear()
        return found

    assert errors() == []
    file.write_text(ALL)
    (said,) = errors()
    assert "not a JSON object" in said
    assert ALL not in said
    file.unlink()
    (said,) = errors()
    assert "No such file" in said
    file.mkdir()
    assert len(errors()) == 1
    file.rmdir()
    write(file, *ROWS)
    assert errors() == []
    file.write_text("{")
    assert len(errors()) == 1


def test_a_file_that_is_readable_again_is_read(file: Path, clock: Callable[[float], None]) -> None:
    """Its content is as it was, and nothing else tells: the fault was not the file's."""
    keys = Keys(file)
    write(file, ROWS[0])
    held = [os.open("/dev/null", os.O_RDONLY)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[0], hard))
        clock(1.1)
        assert name_of(keys, BOUND) == "bound"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held[0])
    clock(1.1)
    assert name_of(keys, BOUND) is None


def normalized(model: str, version: str | None) -> str:
    """What the host calls an endpoint; its module imports torch."""
    host: Any = importlib.import_module("clearml_serving.serving.model_request_processor")
    name: str = host.ModelRequestProcessor._normalize_endpoint_url(model, version)
    return name


PARTS = st.sampled_from(
    ["ours", "2", "other", "split", "/", "//", "", ".", "..", "\n", "\0", " ", "%2F", "?", "serve",
     "health", "endpoints", "live", "metrics", "\ud7ff", ";", "x"]
)  # fmt: skip
PATHS = st.one_of(
    st.lists(PARTS, max_size=8).map("".join),
    st.lists(PARTS, max_size=6).map(lambda parts: "/serve/" + "".join(parts)),
    st.lists(PARTS, max_size=4).map(lambda parts: "/serve/" + "/".join(parts)),
    st.text(max_size=20),
)
QUERIES = st.one_of(
    st.just(b""),
    st.lists(PARTS, max_size=4).map(
        lambda parts: "&".join(f"version={quote(part, errors='ignore')}" for part in parts).encode()
    ),
    st.lists(PARTS, max_size=3).map(lambda parts: ("version=" + "".join(parts)).encode()),
    st.binary(max_size=10),
)
ROOTS = st.sampled_from(["", "", "/x", "/serve", "/serve/ours", "/", "/x/", "/health", "x"])


@pytest.mark.slow
@given(st.text(max_size=20), st.none() | st.text(max_size=20))
def test_an_endpoint_is_named_as_the_host_names_it(model: str, version: str | None) -> None:
    assert endpoint_url(RequestedEndpoint(model, version)) == normalized(model, version)


def host_routes(reached: list[str]) -> FastAPI:
    """The three routes of clearml_serving.serving.main; what reaches one is noted as it would."""
    app = FastAPI()
    router = APIRouter(prefix="/serve")

    @router.post("/{model_id}/{version}")
    @router.post("/{model_id}/")
    @router.post("/{model_id}")
    async def serve_model(model_id: str, version: str | None = None) -> None:
        reached.append(normalized(model_id, version))

    app.include_router(router)
    return app


REACHED: list[str] = []
APP = host_routes(REACHED)


@pytest.mark.slow
@given(PATHS, QUERIES, ROOTS, st.sampled_from(["POST", "GET", "PUT"]))
def test_no_url_slips_by(path: str, query: bytes, root: str, method: str) -> None:
    """Whatever the host's routes make of a URL, a bound key reached only what it admits."""
    keys = Keys.__new__(Keys)
    keys._look_at = float("inf")
    keys._by_digest = {bytes.fromhex(key.sha256): key for key in ROWS}
    host = host_of(None)
    host.app = APP
    # What is open to everybody has tests of its own.
    door = FrontDoor(host, replace(read_settings({}), page=False), keys)
    below = get_route_path({"path": path, "root_path": root})
    assert path_of({"path": path, "root_path": root}) == below
    for key, admits in ((BOUND, ROWS[1].admits), (METRICS, None), (UNKNOWN, None)):
        REACHED.clear()
        sent = asked(door, path, query, root, method, key)
        if admits is None:
            assert not REACHED
            if below not in (*WITHOUT_KEY, "/metrics"):
                assert sent[0]["status"] == (403 if key is METRICS else 401)
        else:
            assert all(admits(url) for url in REACHED), (path, query, root, REACHED)
            allowed = sent[0]["status"] != 403
            if allowed and not below.startswith("/health/"):
                # What is below the gateway's own routes it answers itself, and nothing else.
                assert bool(REACHED) != is_own(path, query, root, method)


def is_own(path: str, query: bytes, root: str, method: str) -> bool:
    call = call_of({"method": method, "path": path, "root_path": root, "query_string": query})
    return call is not None and call.route is not None


def asked(
    door: FrontDoor, path: str, query: bytes, root: str, method: str, key: str,
    *more: tuple[bytes, bytes],
) -> list[Any]:  # fmt: skip
    sent: list[Any] = []
    left = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        return left.pop() if left else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "root_path": root,
        "query_string": query, "headers": [(b"x-api-key", key.encode()), *more],
        "scheme": "http", "server": ("a", 80), "client": None,
    }  # fmt: skip
    asyncio.run(door(scope, receive, send))
    return sent


def test_who_is_refused_for_the_key_has_nothing_traced(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used up what callers with a key may have traced, and its spans went to the receiver."""
    kept = Kept()
    monkeypatch.setattr(front_door, "read_tracing", lambda: Tracing(kept, 0.0, callers=1.0))
    door = FrontDoor(host_of(None), read_settings({}), Keys(file))
    sampled = b"traceparent", SAMPLED.encode()
    for key, status in ((UNKNOWN, 401), (BOUND, 403), (ALL, 200)):
        sent = asked(door, "/serve/nothing", b"", "", "POST", key, sampled)
        assert sent[0]["status"] == status
    assert [span.attributes["transformer_serving.key"] for span in kept.spans] == ["all"]


@pytest.mark.parametrize(
    ("request_id", "key"), [("mine", "shop"), ("another's", None), (None, None)]
)
def test_a_line_about_another_request_has_no_key(request_id: str | None, key: str | None) -> None:
    """Work for many runs in the context of the first of them."""
    record = logging.makeLogRecord({"msg": "late", "request_id": request_id})

    def line() -> Any:
        current_request.set(("mine", None))
        current_key.set("shop")
        return json.loads(JsonLines().format(record))

    assert contextvars.copy_context().run(line).get("key") == key


async def test_a_websocket_is_closed(file: Path) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    host = host_of(None)
    await FrontDoor(host, read_settings({}), Keys(file))({"type": "websocket"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
    assert not host.app.calls
