"""Routes, the envelope, and what a malformed request gets."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from tests.control_plane.conftest import ACCESS_KEY, SECRET_KEY, ApiClient
from transformer_serving.control_plane.api import METHODS, ApiRoute, parse_route
from transformer_serving.control_plane.app import create_app
from transformer_serving.control_plane.auth import Authority
from transformer_serving.control_plane.settings import ControlPlaneSettings

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient

CALLED_BY_THE_CLIENTS = [
    *("projects.get_all", "projects.create", "projects.get_by_id"),
    *("tasks.create", "tasks.get_by_id", "tasks.get_all", "tasks.edit", "tasks.started"),
    *("tasks.stopped", "tasks.completed", "tasks.failed", "tasks.reset", "tasks.ping"),
    *("tasks.set_requirements", "tasks.add_or_update_artifacts", "tasks.add_or_update_model"),
    *("tasks.delete_models", "models.create", "models.get_by_id", "models.edit"),
    *("models.get_all", "models.set_ready", "events.add_batch"),
]


def test_every_method_the_clients_call_has_a_handler() -> None:
    assert set(CALLED_BY_THE_CLIENTS) <= set(METHODS)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2.23/tasks.get_all", ApiRoute("tasks.get_all", "2.23")),
        ("/v2/tasks.get_all", ApiRoute("tasks.get_all", "2")),
        ("/tasks.get_all", ApiRoute("tasks.get_all", "2.31")),
        ("/auth.login", ApiRoute("auth.login", "2.31")),
        ("/v2.23/no.such", ApiRoute("no.such", "2.23")),
        ("/model.onnx", None),
        ("/a/v2.23/tasks.get_all", None),
        ("/v2.23/x/tasks.get_all", None),
    ],
)
def test_api_paths_and_file_paths(path: str, route: ApiRoute | None) -> None:
    assert parse_route(path) == route


@pytest.mark.parametrize("verb", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/v2.23/projects.get_all", "/projects.get_all"])
def test_both_verbs_with_and_without_version(api: ApiClient, verb: str, path: str) -> None:
    answer = api.http.request(verb, path, json={"name": "^x$"}, headers=api.headers)
    assert answer.json()["data"] == {"projects": []}


def test_a_call_is_never_refused_and_carried_out_later(
    api: ApiClient, settings: ControlPlaneSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    for name in ("one", "two", "three"):
        assert api.get_task(api.task(name))["name"] == name
    with pytest.raises(RuntimeError, match="can't start new thread"):
        create_app(replace(settings, data=settings.data / "another"))


def test_envelope(api: ApiClient) -> None:
    _, body = api.answer("projects.get_all")
    meta = body["meta"]
    assert meta["id"] == meta["trx"]
    assert meta["endpoint"] == {
        "name": "projects.get_all",
        "requested_version": "2.23",
        "actual_version": "2.31",
    }
    assert (meta["result_code"], meta["result_subcode"], meta["result_msg"]) == (200, 0, "OK")
    assert (meta["error_stack"], meta["error_data"]) == ("", {})


@pytest.mark.parametrize(
    ("method", "fields", "subcode"),
    [
        ("no.such", {}, 1),
        ("tasks.get_by_id", {}, 11),
        ("tasks.get_by_id", {"task": 3}, 20),
        ("tasks.get_by_id", {"task": "missing"}, 101),
        ("models.get_by_id", {"model": "missing"}, 201),
        ("projects.get_by_id", {"project": "missing"}, 401),
        ("tasks.get_all", {"name": "("}, 21),
        ("tasks.get_all", {"scroll_id": "unknown", "size": 5}, 1104),
        ("tasks.get_all", {"scroll_id": None}, 12),
    ],
)
def test_refusals(api: ApiClient, method: str, fields: dict[str, Any], subcode: int) -> None:
    assert api.refusal(method, **fields) == (400, subcode)


@pytest.mark.parametrize("body", [b"{", b"[]", b"3", b'"x"', b"[" * 100_000, b"\xff\xfe"])
def test_malformed_bodies(api: ApiClient, body: bytes) -> None:
    answer = api.http.post("/tasks.get_all", content=body, headers=api.headers)
    assert (answer.status_code, answer.json()["meta"]["result_subcode"]) == (400, 12)


def test_what_python_clients_send_beyond_json(api: ApiClient) -> None:
    task = api.task()
    event = {"task": task, "type": "log", "msg": "half \udc80 pair", "value": float("nan")}
    sent = api.http.post(
        "/v2.23/events.add_batch",
        content=json.dumps(event) + "\n",
        headers={**api.headers, "Content-Type": "application/json-lines"},
    )
    assert sent.json()["data"]["added"] == 1
    [line] = api.call("events.get_task_log", task=task)["events"]
    assert (line["msg"], line["value"]) == ("half ? pair", None)


def test_body_limit_names_limit_and_size(settings: ControlPlaneSettings) -> None:
    with TestClient(create_app(replace(settings, max_api_body=100))) as http:
        answer = http.post("/tasks.get_all", content=b" " * 101, headers=ApiClient(http).headers)
    assert answer.status_code == 413
    assert "at most 100 bytes, got 101" in answer.json()["meta"]["result_msg"]


def test_health_needs_no_login(http: TestClient) -> None:
    body = http.get("/health").json()
    assert body["status"] == "ok"
    assert body["version"]


def test_pages_of_the_missing_web_interface(http: TestClient) -> None:
    browser = {"Accept": "text/html,*/*"}
    for path in ("/", "/login", f"/projects/{'a' * 32}/tasks/{'b' * 32}/output/log"):
        answer = http.get(path, headers=browser)
        assert answer.status_code == 200
        assert "no web interface" in answer.text


def test_a_fault_of_ours_is_an_envelope_without_details(
    settings: ControlPlaneSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_call: object) -> dict[str, object]:
        raise KeyError("confidential")

    monkeypatch.setitem(METHODS, "debug.broken", broken)
    with TestClient(create_app(settings), raise_server_exceptions=False) as http:
        login = http.get("/auth.login", auth=(settings.access_key, settings.secret_key))
        token = login.json()["data"]["token"]
        answer = http.get("/v2.23/debug.broken", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == answer.json()["meta"]["result_code"] == 500
    assert "confidential" not in answer.text


def test_a_full_disk_is_told_apart(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_call: object) -> dict[str, object]:
        raise OSError(28, "No space left on device", "/some/path")

    monkeypatch.setitem(METHODS, "projects.get_all", full)
    assert api.refusal("projects.get_all") == (500, 4)
    assert caplog.messages == ["GET OSError: No space left on device"]


def test_no_answer_is_one_the_clients_retry_for_ever() -> None:
    from transformer_serving.control_plane.errors import ApiFailure

    assert not {failure.status for failure in ApiFailure} & {429, 502, 503}


async def test_the_bodies_of_all_calls_have_a_limit(settings: ControlPlaneSettings) -> None:
    """Those that are too many get 413, and what was held is given back however a call ends."""
    chosen = replace(settings, max_api_bodies=250, api_body_seconds=0.3)
    app = create_app(chosen)
    token = Authority(chosen).login(
        "Basic " + base64.b64encode(f"{ACCESS_KEY}:{SECRET_KEY}".encode()).decode(), ""
    )

    async def ask(*chunks: bytes, end: str = "stalls") -> Any:
        left = list(chunks)
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            if left:
                more = len(left) > 1 or end != "ends"
                return {"type": "http.request", "body": left.pop(0), "more_body": more}
            if end == "stalls":
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/tasks.get_all", "query_string": b"",
            "headers": [(b"authorization", f"Bearer {token}".encode())], "root_path": "",
            "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        await app(scope, receive, send)
        return sent[0]["status"]

    async with asyncio.timeout(60):
        stalled = await asyncio.gather(*(ask(b"a" * 100) for _ in range(4)))
        assert sorted(stalled) == [400, 400, 413, 413]
        await asyncio.gather(*(ask(b"a" * 100, end="leaves") for _ in range(4)))
        assert await ask(b"{", b" " * 240 + b"}", end="ends") == 200
