"""What is said of a front door with and without keys."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from tests.doctor.conftest import CLI, answering
from tests.free_ports import free_port
from tests.gateway.certificates import Authority
from tests.gateway.played_host import Processor, host_of
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.desk.doctor.finding import FAILURE, OK, SKIPPED, WARNING
from transformer_serving.desk.doctor.gateway import BIND, PORT, SERVE, TLS_FOLDER, check_gateway
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.http import KEY_VARIABLE
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.keys import Keys
from transformer_serving.gateway.settings import read_settings

ALL, BOUND, UNKNOWN = new_key(), new_key(), new_key()


@contextmanager
def serving(door: FrontDoor, **tls: Any) -> Iterator[str]:
    """Its address, as CLEARML_DEFAULT_BASE_SERVE_URL has it."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        door, log_config=None, lifespan="off", timeout_graceful_shutdown=5, **tls
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/serve"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def made(keys: Keys | None, *, ready: bool = True) -> FrontDoor:
    door = FrontDoor(host_of(Processor({"ours": None})), read_settings({}), keys)
    door._rounds.first_done = ready
    return door


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    rows = (Key("all", digest_of(ALL), now()), Key("bound", digest_of(BOUND), now(), ("other",)))
    path.write_text(keys_text(rows))
    with serving(made(Keys(path))) as url:
        yield url


def found(url: str, key: str | None = None, endpoint: str | None = None) -> dict[str, str]:
    """By status what is said, fix included."""
    subject = Subject(Path("state"), {SERVE: url}, endpoint=endpoint, key=key)
    rows = {one.status: f"{one.why}; {one.fix}" for one in check_gateway(subject)}
    assert not any(secret in text for text in rows.values() for secret in (ALL, BOUND, UNKNOWN))
    return rows


def test_a_key_that_is_let_in(keyed: str) -> None:
    assert found(keyed, ALL).keys() == {OK}
    assert "lets the key in" in found(keyed, ALL, "ours")[OK]
    assert "lets the key in" in found(keyed, BOUND, "other")[OK]


@pytest.mark.parametrize(
    ("key", "said"),
    [(None, "has keys, and none was given: requests get 401"),
     (UNKNOWN, "does not know the key: requests get 401")],
    ids=["none", "unknown"],
)  # fmt: skip
def test_nobody_is_let_in_without_a_good_key(keyed: str, key: str | None, said: str) -> None:
    failed = found(keyed, key)[FAILURE]
    assert said in failed
    assert KEY_VARIABLE in failed
    assert "transformer-serving keys add NAME" in failed


def test_a_bound_key(keyed: str) -> None:
    assert "for some endpoints or for /metrics only" in found(keyed, BOUND)[WARNING]
    assert "may not ask ours: requests get 403" in found(keyed, BOUND, "ours")[FAILURE]


def test_a_gateway_without_keys() -> None:
    with serving(made(None)) as url:
        for key in (None, UNKNOWN):
            assert "has no keys" in found(url, key)[OK]


def test_a_gateway_that_is_not_ready() -> None:
    with serving(made(None, ready=False)) as url:
        assert "first golden requests under way" in found(url)[WARNING]


def test_what_is_no_gateway() -> None:
    with answering(lambda path: (404, b'{"detail": "Not Found"}', {})) as url:
        assert "is not the gateway" in found(f"{url}/serve")[SKIPPED]
    assert "not reachable" in found("http://127.0.0.1:9/serve")[FAILURE]
    assert "start the gateway or correct" in found("http://127.0.0.1:9/serve")[FAILURE]


@pytest.mark.parametrize(
    ("status", "key"), [(500, None), (503, None), (503, ALL)], ids=["500", "503", "503 with a key"]
)
def test_a_gateway_that_does_not_say_whom_it_lets_in(status: int, key: str | None) -> None:
    """A fault of the gateway, or of what stands before it, is no word that it has no keys."""

    def reply(path: str) -> tuple[int, bytes, dict[str, str]]:
        return (200, b'{"ready": true}', {}) if path.endswith("/ready") else (status, b"{}", {})

    with answering(reply) as url:
        said = found(f"{url}/serve", key)
    assert f"is not known: {url}/health/endpoints answers {status}" in said[FAILURE]
    assert "is ready at" in said[OK]


def of_file(**variables: str) -> dict[str, str]:
    """What is said of a file of compose's that has them."""
    subject = Subject(Path("state"), variables, from_file=True)
    return {one.status: f"{one.why}; {one.fix}" for one in check_gateway(subject)}


@pytest.mark.parametrize("address", [{}, {BIND: "127.0.0.1"}, {BIND: "0.0.0.0"}])
def test_it_is_where_compose_publishes_it(address: dict[str, str]) -> None:
    with serving(made(None)) as url:
        port = str(urlsplit(url).port)
        assert of_file(**address, **{PORT: port}).keys() == {OK}
        # One that is named goes before, such as the shell's.
        said = of_file(**address, **{PORT: port, SERVE: "http://127.0.0.1:9/serve"})
    assert f"{SERVE} http://127.0.0.1:9 is not reachable" in said[FAILURE]


def docker(folder: Path, text: str) -> str:
    """A PATH whose docker does this."""
    (folder / "docker").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "docker").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("text", ["exit 1", "echo a warning of compose >&2"])
def test_where_nothing_was_started_its_address_is_no_fault(tmp_path: Path, text: str) -> None:
    """docker/example.env has it for everybody."""
    port = str(free_port())
    said = of_file(PATH=docker(tmp_path, text), **{BIND: "127.0.0.1", PORT: port})
    assert said.keys() == {SKIPPED}
    assert "no compose stack of this folder or COMPOSE_FILE runs here" in said[SKIPPED]
    assert f"nothing listens at http://127.0.0.1:{port}, where compose" in said[SKIPPED]
    assert SERVE in said[SKIPPED]


def test_a_compose_stack_without_its_gateway_is_a_fault(tmp_path: Path) -> None:
    path = docker(tmp_path, """echo '{"Name": "demo-triton-1"}'""")
    said = of_file(PATH=path, **{PORT: str(free_port())})
    assert f"{PORT} http://127.0.0.1:" in said[FAILURE]
    assert "start the gateway" in said[FAILURE]


def test_what_listens_and_does_not_answer_is_a_fault(tmp_path: Path) -> None:
    """So does Docker for a container whose gateway hangs, whatever folder it was started in."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            port = str(server.server_address[1])
            said = of_file(PATH=docker(tmp_path, "exit 1"), **{PORT: port})
        finally:
            server.shutdown()
            thread.join()
    assert "is not reachable" in said[FAILURE]


def test_a_file_that_does_not_say_where_is_told_so() -> None:
    said = of_file()[SKIPPED]
    assert f"neither the file nor the shell has {SERVE}" in said
    assert "give --env-file" not in said


def test_a_certificate_that_is_not_for_that_address_is_a_warning(tmp_path: Path) -> None:
    """Callers use the name that it is for, which compose's variables do not have."""
    pair = Authority(tmp_path).sign("front", "192.0.2.7")
    with serving(made(None), ssl_certfile=pair.cert, ssl_keyfile=pair.key) as url:
        said = of_file(**{PORT: str(urlsplit(url).port), TLS_FOLDER: "../secrets/tls"})
    assert said.keys() == {WARNING}
    assert SERVE in said[WARNING]
    assert "SSL_CERT_FILE" in said[WARNING]


@pytest.mark.parametrize("where", ["option", "variable", "file"])
def test_the_command_takes_the_key_from(keyed: str, tmp_path: Path, where: str) -> None:
    file = tmp_path / "stack.env"
    file.write_text(f"{SERVE}={keyed}\n" + (f"{KEY_VARIABLE}={ALL}\n" if where == "file" else ""))
    environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
    if where == "variable":
        environment[KEY_VARIABLE] = ALL
    done = subprocess.run(
        [CLI, "doctor", "--env-file", str(file), "--state", str(tmp_path / "state"),
         *(["--key", ALL] if where == "option" else [])],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "gateway: the gateway lets the key in" in done.stdout, done.stdout + done.stderr
    assert ALL not in done.stdout + done.stderr


def test_a_key_that_no_header_can_hold(tmp_path: Path) -> None:
    done = subprocess.run(
        [CLI, "doctor", "--state", str(tmp_path)], env={**os.environ, KEY_VARIABLE: "a\nb"},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert KEY_VARIABLE in done.stderr
