"""The real process: what it keeps when killed, what it holds in memory, how it stops."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil
import pytest
import requests
from hypothesis import HealthCheck, given, settings, strategies

if TYPE_CHECKING:
    from tests.local.control_plane.conftest import ServerProcess

MIB = 1024 * 1024
# The figure of docs is taken with 2048; the default keeps the suite quick.
BIG_MIB = int(os.environ.get("TRANSFORMER_SERVING_TEST_BIG_MIB", "200"))
WRITERS = 50


def test_nothing_acknowledged_is_lost_by_kill_9(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    task = own_server.call(session, "tasks.create", name="task", type="service")["id"]
    own_server.call(session, "tasks.started", task=task)
    acknowledged: list[list[tuple[str, str]]] = [[] for _ in range(WRITERS)]
    headers = dict(session.headers)

    def write(number: int) -> None:
        with contextlib.suppress(requests.ConnectionError, AssertionError):
            for count in range(10_000):
                key = f"{number}-{count}"
                _write_one(own_server, headers, task, number, key, acknowledged[number])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    time.sleep(2.5)
    own_server.stop(signal.SIGKILL)
    for thread in threads:
        thread.join()
    own_server.start()
    _check_all_there(own_server, task, [item for one in acknowledged for item in one])


def _write_one(
    server: ServerProcess,
    headers: dict[Any, Any],
    task: str,
    number: int,
    key: str,
    acknowledged: list[tuple[str, str]],
) -> None:
    kind = ("artifact", "model", "file", "event")[number % 4]
    url = f"{server.url}/v2.23"
    if kind == "artifact":
        item = {"key": key, "type": "custom"}
        body = {"task": task, "artifacts": [item], "force": True}
        answer = requests.get(f"{url}/tasks.add_or_update_artifacts", json=body, headers=headers)
    elif kind == "model":
        body = {"name": key, "uri": f"file:///{key}"}
        answer = requests.get(f"{url}/models.create", json=body, headers=headers)
    elif kind == "file":
        content = key.encode() * 1000
        answer = requests.post(server.url, files={f"f/{key}": ("x", content)}, headers=headers)
    else:
        body = {"task": task, "type": "log", "msg": key}
        answer = requests.get(f"{url}/events.add", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    acknowledged.append((kind, key))


def _check_all_there(server: ServerProcess, task: str, acknowledged: list[tuple[str, str]]) -> None:
    assert {kind for kind, _ in acknowledged} == {"artifact", "model", "file", "event"}
    assert len(acknowledged) > WRITERS
    session = server.session()
    kept: dict[str, set[str]] = {"file": set()}
    artifacts = server.call(session, "tasks.get_by_id", task=task)["task"]["execution"]["artifacts"]
    kept["artifact"] = {artifact["key"] for artifact in artifacts}
    uris = [f"file:///{key}" for kind, key in acknowledged if kind == "model"]
    models = server.call(session, "models.get_all", uri=uris, only_fields=["name"])["models"]
    kept["model"] = {model["name"] for model in models}
    log = server.call(session, "events.get_task_log", task=task, batch_size=10_000)["events"]
    kept["event"] = {event["msg"] for event in log}
    for kind, key in acknowledged:
        if kind == "file":
            content = session.get(f"{server.url}/f/{key}").content
            assert content == key.encode() * 1000, key
        else:
            assert key in kept[kind], (kind, key)


def test_parallel_edits_of_one_task_are_each_whole(server: ServerProcess) -> None:
    session = server.session()
    task = server.call(session, "tasks.create", name="task", type="custom")["id"]
    headers = dict(session.headers)

    def edit(number: int) -> None:
        text = str(number) * 2000
        for _ in range(5):
            body = {
                "task": task,
                "comment": text,
                "runtime": {"text": text},
                "script": {f"from_{number}": text},
                "force": True,
            }
            assert requests.post(f"{server.url}/tasks.edit", json=body, headers=headers).ok
            seen = server.call(session_of[number], "tasks.get_by_id", task=task)["task"]
            assert seen["comment"] == seen["runtime"]["text"]

    session_of = [server.session() for _ in range(8)]
    threads = [threading.Thread(target=edit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = server.call(session, "tasks.get_by_id", task=task)["task"]
    # Every one of the parallel edits merged its own key of the section.
    assert len(last["script"]) == 8


def _content(size: int) -> Iterator[bytes]:
    chunk = bytes(range(256)) * 4096
    for _ in range(size // len(chunk)):
        yield chunk


def _multipart(path: str, size: int) -> Iterator[bytes]:
    disposition = f'Content-Disposition: form-data; name="{path}"; filename="big"'
    yield f"--edge\r\n{disposition}\r\n\r\n".encode()
    yield from _content(size)
    yield b"\r\n--edge--\r\n"


def test_a_big_file_goes_up_and_down_in_little_memory(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    process = psutil.Process(own_server.pid)
    peak, watching = [process.memory_info().rss], threading.Event()

    def watch() -> None:
        while not watching.wait(0.02):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    size = BIG_MIB * MIB
    before = process.memory_info().rss
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    begun = time.monotonic()
    answer = session.post(own_server.url, data=_multipart("big/file", size), headers=kind)
    up = time.monotonic() - begun
    assert answer.status_code == 200, answer.text
    received, expected = 0, b"".join(next(_content(size)) for _ in range(1))
    begun = time.monotonic()
    with session.get(f"{own_server.url}/big/file", stream=True) as download:
        assert int(download.headers["Content-Length"]) == size
        for chunk in download.iter_content(len(expected)):
            assert chunk == expected
            received += len(chunk)
    down = time.monotonic() - begun
    watching.set()
    watcher.join()
    assert received == size
    sys.stderr.write(
        f"{BIG_MIB} MiB: up {up:.1f} s, down {down:.1f} s, RSS {before / MIB:.0f} MiB before, "
        f"{peak[0] / MIB:.0f} MiB peak\n"
    )
    assert peak[0] - before < 30 * MIB
    assert peak[0] < 100 * MIB


def test_the_api_answers_while_files_stream(server: ServerProcess) -> None:
    session, other = server.session(), server.session()
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    done = threading.Event()

    def upload() -> None:
        session.post(server.url, data=_multipart("stream/file", 64 * MIB), headers=kind)
        done.set()

    thread = threading.Thread(target=upload)
    thread.start()
    slowest = 0.0
    while not done.is_set():
        begun = time.monotonic()
        server.call(other, "projects.get_all")
        slowest = max(slowest, time.monotonic() - begun)
    thread.join()
    assert slowest < 1.0


@pytest.mark.parametrize("path", ["per%20cent/%41", "100%", "plus+and&more=1?#x", "~tilde/é"])
def test_names_with_url_letters(server: ServerProcess, path: str) -> None:
    session = server.session()
    assert session.post(server.url, files={path: ("x", b"content")}).json() == [path]
    assert session.get(f"{server.url}/{quote(path)}").content == b"content"


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=strategies.lists(
        strategies.sampled_from(
            ["..", ".", "%2e%2e", "%2f", "..%2f..", "%00", "etc", "passwd", "", "%c0%ae", "..\\"]
        ),
        max_size=8,
    )
)
def test_no_url_reads_outside_the_store(server: ServerProcess, pieces: list[str]) -> None:
    token = server.session().headers["Authorization"] if not _TOKEN else _TOKEN[0]
    _TOKEN[:] = [str(token)]
    # http.client sends the path as it is, where other clients would shorten it.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/f/" + "/".join(pieces), headers={"Authorization": _TOKEN[0]})
    assert connection.getresponse().status in (400, 404)
    connection.close()


_TOKEN: list[str] = []


def test_a_refused_upload_is_answered_though_it_is_still_coming(server: ServerProcess) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    answer = requests.post(server.url, data=_multipart("x/y", 20 * MIB), headers=kind, timeout=30)
    assert answer.status_code == 401


def test_clients_that_leave_do_no_harm(server: ServerProcess) -> None:
    session = server.session()
    session.post(
        server.url,
        data=_multipart("leave/file", 8 * MIB),
        headers={"Content-Type": "multipart/form-data; boundary=edge"},
    )
    before = psutil.Process(server.pid).num_fds()
    rest = f" HTTP/1.1\r\nHost: x\r\nAuthorization: {session.headers['Authorization']}\r\n"
    unread = f"GET /leave/file{rest}\r\n".encode()
    unsent = f"POST /tasks.get_all{rest}Content-Length: 99\r\n\r\n{{".encode()
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(unread)
            half.recv(10)
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(unsent)
    deadline = time.monotonic() + 5
    while psutil.Process(server.pid).num_fds() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert psutil.Process(server.pid).num_fds() <= before + 2
    assert "Traceback" not in server.log()
    assert "ClientDisconnect" not in server.log()


def test_sigterm_ends_it_within_two_seconds_also_in_a_download(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    session.post(own_server.url, data=_multipart("d/file", 32 * MIB), headers=kind)
    with session.get(f"{own_server.url}/d/file", stream=True):
        assert own_server.stop() < 2.0
    own_server.start()
    assert own_server.call(own_server.session(), "tasks.get_all") == {"tasks": []}
    assert own_server.stop() < 2.0
    assert "Traceback" not in own_server.log()


def test_a_token_outlives_a_restart(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    own_server.stop()
    own_server.start()
    assert own_server.call(session, "tasks.get_all") == {"tasks": []}


def test_listens_on_the_loopback_only(server: ServerProcess) -> None:
    connections = psutil.Process(server.pid).net_connections("inet")
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_no_secret_in_log_or_command_line(server: ServerProcess) -> None:
    wrong = "secret-that-is-wrong"
    requests.get(f"{server.url}/auth.login", auth=("access-of-the-test", wrong))
    session = server.session()
    session.get(f"{server.url}/v2.23/tasks.get_by_id", json={"task": "confidential-value"})
    command = " ".join(psutil.Process(server.pid).cmdline())
    for text in ("secret-of-the-test", wrong, "confidential-value", "Bearer"):
        assert text not in server.log()
        assert text not in command


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRANSFORMER_SERVING")}
    return subprocess.run(
        [sys.executable, "-m", "transformer_serving.local.control_plane", *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_refuses_to_start_without_keys_and_on_a_folder_in_use(server: ServerProcess) -> None:
    with tempfile.TemporaryDirectory() as folder:
        refused = _run(f"--data={folder}")
    assert refused.returncode == 1
    assert "TRANSFORMER_SERVING_ACCESS_KEY is empty" in refused.stderr
    keys = {"TRANSFORMER_SERVING_ACCESS_KEY": "a", "TRANSFORMER_SERVING_SECRET_KEY": "b"}
    refused = _run(f"--data={server.data}", **keys)
    assert refused.returncode == 1
    assert "in use by another control plane" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_refuses_a_port_in_use(server: ServerProcess) -> None:
    keys = {"TRANSFORMER_SERVING_ACCESS_KEY": "a", "TRANSFORMER_SERVING_SECRET_KEY": "b"}
    with tempfile.TemporaryDirectory() as folder:
        refused = _run(f"--data={folder}", f"--port={server.port}", **keys)
    assert refused.returncode != 0
    assert "address already in use" in refused.stderr
