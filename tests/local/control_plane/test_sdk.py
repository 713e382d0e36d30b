"""The unmodified SDK in processes of its own: training scripts, models, tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.local.control_plane.conftest import ServerProcess

RunSdk = Callable[..., "CompletedProcess[str]"]

TRAINING = """
    import numpy as np
    from clearml import InputModel, Model, OutputModel, Task

    task = Task.init("Sdk project", "training", output_uri=True, tags=["first"],
                     auto_connect_frameworks=False, auto_resource_monitoring=False)
    options = task.connect({"rate": 0.1, "layers": 2})
    task.connect_configuration({"a": 1}, name="settings")
    task.set_user_properties(owner="me")
    logger = task.get_logger()
    for step in range(5):
        logger.report_scalar("loss", "train", 1.0 / (step + 1), step)
    logger.report_scalar("loss", "nan", float("nan"), 1)
    logger.report_single_value("accuracy", 0.9)
    logger.report_table("table", "t", iteration=0, table_plot=[["a", "b"], [1, 2]])
    logger.report_histogram("hist", "h", values=np.arange(4), iteration=0)
    logger.report_text("a line of the log")
    print("to be seen \\udc80".encode("utf8", "replace").decode())
    assert task.upload_artifact("numbers", artifact_object=np.arange(3), wait_on_upload=True)
    assert task.upload_artifact("fields", artifact_object={"a": [1, 2]}, wait_on_upload=True)
    open("weights ü.bin", "wb").write(b"weights" * 1000)
    output = OutputModel(task=task, name="out model", framework="PyTorch", tags=["mine"])
    # In the background the SDK ends the upload with an edit that repeats the labels of its start.
    output.update_weights("weights ü.bin", auto_delete_file=False, iteration=4,
                          async_enable=False)
    output.update_labels({"cat": 0, "dog": 1})
    output.set_metadata("kind", "small", "str")
    output.publish()
    source = InputModel.import_model("http://example.invalid/x.bin", name="in model")
    task.connect(source)
    task.flush(wait_for_uploads=True)
    task.close()
    print("TASK", task.id, "MODEL", output.id)
"""

READING = """
    from clearml import InputModel, Model, Task

    [task] = Task.get_tasks(project_name="Sdk project", task_name="training", tags=["first"])
    assert task.status == "completed", task.status
    assert Task.query_tasks(project_name="Sdk project", tags=["first"]) == [task.id]
    assert Task.query_tasks(project_name="Sdk project", tags=["-first"]) == []
    assert Task.query_tasks(task_filter={"status": ["completed"], "order_by": ["-created"]})
    assert task.get_parameters()["General/rate"] == "0.1"
    assert task.get_configuration_object_as_dict("settings") == {"a": 1}
    assert task.get_user_properties()["owner"]["value"] == "me"
    assert list(task.artifacts["numbers"].get()) == [0, 1, 2]
    assert task.artifacts["fields"].get() == {"a": [1, 2]}
    curve = task.get_reported_scalars()["loss"]["train"]
    assert curve["x"] == [0, 1, 2, 3, 4] and curve["y"][0] == 1.0, curve
    assert len(task.get_all_reported_scalars()["loss"]["train"]["y"]) == 5
    assert task.get_last_scalar_metrics()["loss"]["train"]["last"] == 0.2
    assert task.get_reported_single_values() == {"accuracy": 0.9}
    assert {plot["metric"] for plot in task.get_reported_plots()} == {"table", "hist"}
    output = "".join(task.get_reported_console_output(50))
    assert "to be seen" in output and "a line of the log" in output, output
    assert task.get_last_iteration() == 4
    [found] = Model.query_models(project_name="Sdk project", model_name="out model")
    assert found.id == task.models["output"][-1].id
    assert [m.id for m in Model.query_models(tags=["mine"], only_published=True)] == [found.id]
    assert Model.query_models(tags=["__$not", "mine"], model_name="out model") == []
    assert [m.id for m in Model.query_models(metadata={"kind": "small"})] == [found.id]
    model = InputModel(found.id)
    assert model.published and model.labels == {"cat": 0, "dog": 1}
    assert model.get_metadata("kind") == "small"
    assert open(model.get_local_copy(), "rb").read() == b"weights" * 1000
    assert task.models["input"][0].name == "in model"
    copy = Task.clone(task, name="the copy")
    copy.set_parameters({"General/rate": 0.2})
    assert Task.get_task(copy.id).get_parameters()["General/rate"] == "0.2"
    assert copy.delete()
    other = Task.create(project_name="Sdk project", task_name="other task")
    other.mark_started(force=True)
    other.mark_stopped(force=True)
    other.set_archived(True)
    assert "archived" in Task.get_task(other.id).data.system_tags
    print("READ")
"""


@pytest.fixture
def threaded(tmp_path: Path) -> dict[str, str]:
    """Reports from a thread: a process for it takes the SDK ten seconds to end."""
    configuration = tmp_path / "threaded.conf"
    configuration.write_text("sdk.development.report_use_subprocess: false\n")
    return {"CLEARML_CONFIG_FILE": str(configuration)}


def good(done: CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    for complaint in ("Failed parsing response", "Action failed", "Retrying", "InsecureKeyLength"):
        assert complaint not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout


def test_a_training_script_and_what_others_read_of_it(
    run_sdk: RunSdk, server: ServerProcess
) -> None:
    output = good(run_sdk(TRAINING))
    task = output.rsplit("TASK ", 1)[1].split()[0]
    assert "READ" in good(run_sdk(READING))
    session = server.session()
    before = server.call(session, "tasks.get_by_id", task=task)["task"]
    [url] = {a["uri"] for a in before["execution"]["artifacts"] if a["key"] == "numbers"}
    assert session.get(url).status_code == 200
    deletion = f"""
        from clearml import Task
        assert Task.get_task("{task}").delete(raise_on_error=True)
    """
    good(run_sdk(deletion))
    assert session.get(url).status_code == 404


def test_a_second_run_of_a_script_reuses_and_resets_its_task(
    run_sdk: RunSdk, threaded: dict[str, str]
) -> None:
    # It ends without a word to the server, as a script does that is killed.
    script = """
        import os
        from clearml import Task
        task = Task.init("Sdk reuse", "same name", auto_resource_monitoring=False,
                         reuse_last_task_id=True, auto_connect_frameworks=False)
        assert task.status == "in_progress" and task.get_last_iteration() == 0
        task.set_initial_iteration(0)
        print("TASK", task.id, flush=True)
        os._exit(0)
    """
    ids = {good(run_sdk(script, **threaded)).rsplit("TASK ", 1)[1].split()[0] for _ in range(2)}
    assert len(ids) == 1


def test_a_token_that_expires_is_renewed(run_sdk: RunSdk) -> None:
    # The SDK renews 60 s before the end: one of 61 s is good for a second only.
    script = """
        import time
        from clearml.backend_api import Session
        from clearml.backend_api.services import projects
        session = Session()
        session.req_token_expiration_sec = 61
        session.refresh_token()
        first = session.raw_token
        assert session.send(projects.GetAllRequest()).ok()
        time.sleep(1.5)
        assert session.send(projects.GetAllRequest()).ok()
        assert session.raw_token != first
    """
    good(run_sdk(script))


def test_a_token_the_server_no_longer_takes_leads_to_a_login(run_sdk: RunSdk) -> None:
    script = """
        import jwt, time
        from clearml.backend_api import Session
        from clearml.backend_api.services import projects
        session = Session()
        session._set_token(jwt.encode({"exp": time.time() + 9999}, "x" * 32))
        # The SDK logs in again but repeats the refused call with the old token.
        assert session.send(projects.GetAllRequest()).meta.result_code == 401
        assert session.send(projects.GetAllRequest()).ok()
    """
    good(run_sdk(script))


def test_wrong_credentials_fail_at_once(run_sdk: RunSdk) -> None:
    script = """
        from clearml import Task
        Task.get_tasks(project_name="x")
    """
    done = run_sdk(script, CLEARML_API_SECRET_KEY="wrong")
    assert done.returncode != 0
    assert "invalid credentials" in done.stdout + done.stderr


def test_large_and_replaced_artifacts(
    run_sdk: RunSdk, threaded: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one.txt").write_text("one")
    script = """
        import os
        from clearml import StorageManager, Task
        task = Task.init("Sdk files", "artifacts", auto_resource_monitoring=False,
                         auto_connect_frameworks=False)
        for size in (10, 20_000_000):
            open("file.bin", "wb").write(os.urandom(size))
            task.upload_artifact("file", "file.bin", wait_on_upload=True)
        task.upload_artifact("folder", "folder", wait_on_upload=True)
        task.close()
        kept = Task.get_task(task.id).artifacts
        assert open(kept["file"].get_local_copy(), "rb").read() == open("file.bin", "rb").read()
        assert os.listdir(kept["folder"].get_local_copy()) == ["one.txt"]
        host = os.environ["CLEARML_FILES_HOST"]
        url = StorageManager.upload_file("file.bin", host + "/some folder/file ä.bin")
        assert StorageManager.get_file_size_bytes(url) == 20_000_000
        copy = StorageManager.get_local_copy(url, force_download=True)
        assert os.path.getsize(copy) == 20_000_000
    """
    good(run_sdk(script, **threaded))
