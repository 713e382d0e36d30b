"""What was acknowledged stays, through kill -9, a restart and callers in parallel."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.engine.triton_server import wait_until

if TYPE_CHECKING:
    from tests.control_plane.conftest import ServerProcess

WRITERS = 50


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kill_9(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    task = own_server.call(session, "tasks.create", name="task", type="service")["id"]
    own_server.call(session, "tasks.started", task=task)
    acknowledged: list[list[tuple[str, str]]] = [[] for _ in range(WRITERS)]
    headers = dict(session.headers)

    def write(number: int) -> None:
        # Killed before an answer, or in the middle of one.
        with contextlib.suppress(requests.RequestException, AssertionError):
            for count in range(10_000):
                key = f"{number}-{count}"
                _write_one(own_server, headers, task, number, key, acknowledged[number])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(map(len, acknowledged)) > 4 * WRITERS, 60)
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
        body: dict[str, Any] = {"task": task, "artifacts": [item], "force": True}
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
    kept["model"] = set()
    for start in range(0, len(uris), 200):  # an answer without page_size ends after 500
        some = uris[start : start + 200]
        models = server.call(session, "models.get_all", uri=some, only_fields=["name"])["models"]
        kept["model"] |= {model["name"] for model in models}
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


def test_a_token_outlives_a_restart(own_server: ServerProcess) -> None:
    own_server.start()
    session = own_server.session()
    own_server.stop()
    own_server.start()
    assert own_server.call(session, "tasks.get_all") == {"tasks": []}
