"""What the SDK keeps to itself, over the real SDK and control plane."""

from __future__ import annotations

import pytest

from tests.control_plane.sdk_runs import RunSdk
from tests.doctor.conftest import answering

# A controller's look at a serving task of its own.
LOOKED = """
    import json
    from concurrent.futures import ThreadPoolExecutor, wait
    import requests
    from clearml import Task
    from transformer_serving.engine.controller.control_plane import clearml_edge
    from transformer_serving.engine.controller.sync import Sync

    task = Task.create(project_name="looked at", task_name="served", task_type="service")
    plane = clearml_edge.ClearmlControlPlane(task.id)
    pool = ThreadPoolExecutor(1)
    sync = Sync(plane, pool, 0.0, "*", lambda model: None)

    def looked(seconds=60):
        sync.start_when_due(lambda: None)
        wait([sync._asked], seconds)
        return sync.finish()
"""

UNREAD = (
    LOOKED
    + """
    from clearml.backend_api.session import Session

    refused = []
    answered = Session.send_request

    def send_request(self, service, action, *arguments, **options):
        if (service, action) != ("tasks", "get_by_id") or STATUS == 200:
            return answered(self, service, action, *arguments, **options)
        refused.append(action)
        answer = requests.Response()
        answer.status_code = STATUS
        called = {"name": "tasks.get_by_id", "requested_version": "2.23", "actual_version": "1.0"}
        meta = {"id": "1", "trx": "1", "endpoint": called, "result_code": STATUS}
        meta |= {"result_subcode": 100, "result_msg": "no answer today"}
        answer._content = json.dumps({"meta": meta, "data": {}}).encode()
        return answer

    Session.send_request = send_request
    STATUS = 200
    assert looked() and sync.error is None
    last = sync.last
    STATUS = %d
    assert not looked()
    assert refused
    assert "could not be read" in sync.error, sync.error
    assert sync.last == last
    try:
        plane.configuration(fresh=True)
    except clearml_edge.ControlPlaneError:
        pass
    else:
        raise AssertionError("what is old is no fresh configuration")
    STATUS = 200
    assert looked() and sync.error is None and sync.last > last
    assert plane.configuration(fresh=True) is not None
    print("as it should be")
"""
)

NAMES = """
    from clearml import Task
    from transformer_serving.engine.controller.control_plane import clearml_edge

    name = "served [new] (1)"
    known = Task.get_tasks(project_name="named")
    [serving] = [one for one in known if one.name == name] or [
        Task.create(project_name="named", task_name=name, task_type="service")
    ]
    plane = clearml_edge.ClearmlControlPlane(serving.id, "triton engine team*")
    plane.report("a line")
    plane.close()
    names = [one.name for one in Task.get_tasks(project_name="named")]
    assert sorted(names) == [name, f"{name} - triton engine team*"], names
    print("as it should be")
"""

REFUSED_TASK = """
    from types import SimpleNamespace

    from clearml import Task
    from transformer_serving.engine.controller.control_plane import clearml_edge

    serving = Task.create(project_name="refused", task_name="served", task_type="service")
    plane = clearml_edge.ClearmlControlPlane(serving.id)
    plane.endpoints()
    told = []
    logger = SimpleNamespace(report_text=lambda text, print_console: told.append(text))
    plane._processor._task.get_logger = lambda: logger

    def create(**_):
        raise ValueError("this account may create no task")

    Task.create = create
    try:
        plane.report("a line")
    except ValueError:
        assert told == ["a line"], told
        print("as it should be")
"""

FIGURES = """
    import time

    from clearml import Task
    from transformer_serving.engine.controller.control_plane import clearml_edge

    known = Task.get_tasks(project_name="figures")
    [serving] = [one for one in known if one.name == "served"] or [
        Task.create(project_name="figures", task_name="served", task_type="service")
    ]
    # Two Tritons of one name tell theirs in turn.
    planes = [clearml_edge.ClearmlControlPlane(serving.id) for _ in range(2)]
    before = %d
    for value in range(before, before + 4):
        plane = planes[value %% 2]
        plane.report_figures(f'nv_inference_count{{model="m",version="7"}} {value}')
        until = time.monotonic() + 60
        # A minute lies between two of them; what was sent is there by then. The task that sent it
        # says so at once: another object is asked.
        for task in (Task.get_task(task_id=plane._own_task.id), serving):
            while task.get_last_iteration() < 60 * (value + 1) and time.monotonic() < until:
                time.sleep(0.05)
    own = planes[0]._own_task
    assert own.id == planes[1]._own_task.id
    planes[0].close()
    told = [float(value) for value in range(before + 4)]
    for task, name in ((own, "m.v7"), (serving, f"m.v7.{own.id}")):
        found = Task.get_task(task_id=task.id)
        points = found.get_reported_scalars()["nv_inference_count"][name]
        assert points["y"] == told, points
        assert found.get_last_scalar_metrics()["nv_inference_count"][name]["last"] == told[-1]
    print("as it should be")
"""

STOPPED = """
    from clearml import Task
    from transformer_serving.engine.controller.control_plane import clearml_edge

    serving = Task.create(project_name="stopped", task_name="served", task_type="service")
    plane = clearml_edge.ClearmlControlPlane(serving.id)
    plane.endpoints()
    serving.mark_stopped(force=True)
    plane.configuration(fresh=True)
    plane.configure({"rollout_states": "one", "canary": {"a": {"endpoint": "a"}}})
    assert plane.configuration(fresh=True)["rollout_states"] == "one"
    assert plane.section("canary") == {"a": {"endpoint": "a"}}
    print("as it should be")
"""

MANY = """
    from clearml import OutputModel, Task
    from transformer_serving.engine.controller.control_plane import clearml_edge

    task = Task.create(project_name="many", task_name="served", task_type="service")
    models = [OutputModel(task=task, name=f"m{number}") for number in range(5)]
    for number, model in enumerate(models):
        model.update_weights(register_uri=f"http://127.0.0.1:1/m{number}.onnx")
    clearml_edge._PAGE = 2
    found = clearml_edge._read_models(task, {model.id for model in models})
    uris = {model.id: f"http://127.0.0.1:1/m{number}.onnx" for number, model in enumerate(models)}
    assert {name: known.uri for name, known in found.items()} == uris, found
    assert clearml_edge._read_models(task, set()) == {}
    print("as it should be")
"""

REFUSED = (
    LOOKED
    + """
    import threading

    asked = []
    answered = requests.Session.request

    def request(self, method, url, *arguments, **options):
        if STATUS == 200:
            return answered(self, method, url, *arguments, **options)
        asked.append(threading.current_thread())
        # So many are a thread that asks without a pause.
        assert asked.count(asked[-1]) < 1000
        answer = requests.Response()
        answer.status_code = STATUS
        called = {"name": "x", "requested_version": "2.23", "actual_version": "1.0"}
        meta = {"id": "1", "trx": "1", "endpoint": called, "result_code": STATUS}
        meta |= {"result_subcode": 22, "result_msg": "unauthorized (invalid credentials)"}
        answer._content = json.dumps({"meta": meta, "data": {}}).encode()
        return answer

    requests.Session.request = request
    STATUS = 200
    assert looked(10) and sync.error is None
    STATUS = %d
    # A thread of the SDK's own, and the controller's beside it.
    other = threading.Thread(target=task.reload, daemon=True)
    other.start()
    for _ in range(3):
        assert not looked(10)
        assert %r in sync.error, sync.error
        try:
            plane.tag_model("model", "tag")
            plane.configuration(fresh=True)
        except clearml_edge.ControlPlaneError as error:
            assert %r in str(error), error
        else:
            raise AssertionError("there is no configuration")
    assert other.is_alive()
    # A call, and a login where it is for that.
    assert asked.count(other) < 10, asked.count(other)
    STATUS = 200
    assert looked(10) and sync.error is None
    # What waited goes on with that answer, however long its pause had become.
    other.join(60)
    assert not other.is_alive()
    print("as it should be")
"""
)

UNWANTED = """
    import tempfile
    from pathlib import Path
    from types import SimpleNamespace

    from clearml import Task
    from transformer_serving.engine.controller.control_plane import clearml_edge
    from transformer_serving.engine.errors import EngineError

    serving = Task.create(project_name="unwanted", task_name="served", task_type="service")
    downloads = Path(tempfile.mkdtemp())
    broken = downloads / ("0" * 32)
    broken.mkdir()
    plane = clearml_edge.ClearmlControlPlane(serving.id, downloads=downloads)
    plane.endpoints()
    assert not broken.exists()
    # Nothing listens there, and nobody is asked.
    model = clearml_edge._Model("http://127.0.0.1:1/model.onnx", "", "", "")
    plane._models = {"m": model}
    try:
        with plane.model(SimpleNamespace(model_id="m", content="m of an endpoint that is gone")):
            pass
    except EngineError as error:
        print(error)
"""

ELSEWHERE = """
    from transformer_serving.engine.controller.control_plane import clearml_edge

    plane = clearml_edge.ClearmlControlPlane("0" * 32)
    try:
        plane.endpoints()
    except clearml_edge.ControlPlaneError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"<!doctype html>", "gives no answer of ClearML's API; set CLEARML_API_HOST to the"),
        (503, b"no server", "answers 503"),
    ],
    ids=["web-page", "proxy"],
)
def test_what_is_no_api_is_said_and_no_key_blamed(
    run_sdk: RunSdk, status: int, body: bytes, reason: str
) -> None:
    with answering(lambda path: (status, body, {})) as address:
        done = run_sdk(ELSEWHERE, CLEARML_API_HOST=address)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{address} {reason}" in done.stdout
    assert "ACCESS_KEY" not in done.stdout


def test_what_is_not_asked_for_any_more_ends_and_takes_no_room(run_sdk: RunSdk) -> None:
    done = run_sdk(UNWANTED)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nobody asks for it any more" in done.stdout


def test_a_serving_task_that_is_not_there_is_said(run_sdk: RunSdk) -> None:
    """And nothing of the server, which has answered."""
    done = run_sdk(ELSEWHERE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        done.stdout.splitlines()[-1] == f"no serving task {'0' * 32}; check CLEARML_SERVING_TASK_ID"
    )


@pytest.mark.parametrize("status", [400, 500])
def test_a_serving_task_that_cannot_be_read_again_is_no_answer(
    run_sdk: RunSdk, status: int
) -> None:
    """The SDK tells its log, and goes on with what it read before."""
    done = run_sdk(UNREAD % status)
    assert done.returncode == 0, done.stderr
    assert "as it should be" in done.stdout


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "refused the login; check CLEARML_API_ACCESS_KEY"), (504, "answers 504")],
)
def test_keys_that_hold_no_longer_are_named_and_asked_with_pauses(
    run_sdk: RunSdk, status: int, reason: str
) -> None:
    """By itself the SDK asks hundreds of times a second, and tells nobody."""
    done = run_sdk(REFUSED % (status, reason, reason))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "as it should be" in done.stdout
    assert done.stderr.count("Traceback") == 0, done.stderr[-3000:]


def test_every_start_goes_on_with_the_task_of_the_one_before(run_sdk: RunSdk) -> None:
    """Its name is no pattern, whatever is in it."""
    for _ in range(2):
        done = run_sdk(NAMES)
        assert done.returncode == 0, done.stderr
        assert "as it should be" in done.stdout


def test_a_line_comes_to_the_serving_task_where_ours_cannot_be_made(run_sdk: RunSdk) -> None:
    """`deploy` waits for it there."""
    done = run_sdk(REFUSED_TASK)
    assert done.returncode == 0, done.stderr
    assert "as it should be" in done.stdout


def test_figures_go_on_where_the_run_before_ended(run_sdk: RunSdk) -> None:
    """What a start tells takes no place of what was told before it."""
    for before in (0, 4):
        done = run_sdk(FIGURES % before)
        assert done.returncode == 0, done.stderr
        assert "as it should be" in done.stdout


def test_a_serving_task_that_was_stopped_is_changed_all_the_same(run_sdk: RunSdk) -> None:
    """A rollout would stand still with its share of the requests."""
    done = run_sdk(STOPPED)
    assert done.returncode == 0, done.stderr
    assert "as it should be" in done.stdout


def test_more_models_than_a_page_has_are_read(run_sdk: RunSdk) -> None:
    """Of the others it was said that they are not registered."""
    done = run_sdk(MANY)
    assert done.returncode == 0, done.stderr
    assert "as it should be" in done.stdout
