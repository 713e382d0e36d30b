"""The unmodified SDK in processes of its own: training scripts, models, tokens."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tests.control_plane.sdk_runs import RunSdk, good
from transformer_serving.control_plane.files.leftovers import KEEP_SECONDS, Leftovers
from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.integrity import DATABASE
from transformer_serving.control_plane.store import Store

if TYPE_CHECKING:
    from tests.control_plane.conftest import ServerProcess

# The scripts that can also be run against any other ClearML server: scripts/check_clearml.sh.
SCRIPTS = Path(__file__).parents[2] / "scripts" / "check_clearml"
PROJECT = "Sdk project"


def test_a_training_script_and_what_others_read_of_it(
    run_sdk: RunSdk, server: ServerProcess
) -> None:
    training, reading = ((SCRIPTS / f"{name}.py").read_text() for name in ("train", "read"))
    output = good(run_sdk(training, PROJECT))
    task = output.rsplit("TASK ", 1)[1].split()[0]
    assert "READ" in good(run_sdk(reading, PROJECT))
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


def test_files_of_a_task_with_a_quote_in_its_name(
    run_sdk: RunSdk, server: ServerProcess, threaded: dict[str, str], tmp_path: Path
) -> None:
    script = """
        from clearml import OutputModel, StorageManager, Task
        task = Task.init('Sdk "files"', 'w"q', output_uri=True, auto_resource_monitoring=False,
                         auto_connect_frameworks=False)
        open('q".bin', "wb").write(b"content")
        task.upload_artifact('k"ey', 'q".bin', wait_on_upload=True)
        model = OutputModel(task, name='m"odel')
        model.update_weights('q".bin', auto_delete_file=False, async_enable=False)
        task.close()
        for url in (Task.get_task(task.id).artifacts['k"ey'].url, model.url):
            copy = StorageManager.get_local_copy(url, force_download=True)
            assert open(copy, "rb").read() == b"content", url
    """
    good(run_sdk(script, **threaded))
    copy = tmp_path / "copy"
    shutil.copytree(server.data / "files", copy / "files")
    with (
        closing(sqlite3.connect(server.data / DATABASE)) as served,
        closing(sqlite3.connect(copy / DATABASE)) as copied,
    ):
        served.backup(copied)
    store, files = Store(copy), FileStore(copy)
    after_days = iter(range(1, 9))
    leftovers = Leftovers(
        store, files, clock=lambda: time.time() + next(after_days) * 2 * KEEP_SECONDS
    )
    before = {path for path, _ in files.all() if 'w"q' in path}
    for _ in range(3):
        leftovers.collect()
    store.close()
    assert len(before) == 2
    assert before <= {path for path, _ in files.all()}


def test_what_is_reported_of_a_model(
    run_sdk: RunSdk, server: ServerProcess, threaded: dict[str, str]
) -> None:
    script = """
        from clearml import OutputModel, Task
        task = Task.init("Sdk models", "reports", auto_resource_monitoring=False,
                         auto_connect_frameworks=False)
        model = OutputModel(task, name="reported")
        model.report_scalar("loss", "train", 0.5, iteration=3)
        model.report_single_value("accuracy", 0.9)
        task.close()
        print("MODEL", model.id)
    """
    model = good(run_sdk(script, **threaded)).rsplit("MODEL ", 1)[1].split()[0]
    session = server.session()
    curves = server.call(session, "events.scalar_metrics_iter_histogram", task=model)
    assert (curves["loss"]["train"]["x"], curves["loss"]["train"]["y"]) == ([3], [0.5])
    [single] = server.call(session, "events.get_task_single_value_metrics", tasks=[model])["tasks"]
    assert [(value["variant"], value["value"]) for value in single["values"]] == [("accuracy", 0.9)]


def test_a_worker_whose_task_is_gone_says_so_with_the_fix(run_sdk: RunSdk) -> None:
    """As after a restore of a backup from before its start."""
    done = run_sdk("""
        import os
        from clearml import Task
        from clearml.backend_api.services import tasks
        from transformer_serving.contract.rollout import SEEN
        from transformer_serving.gateway.rollout.figures import UntoldError, into_own

        own = Task.init("project", "worker", "inference", auto_connect_frameworks=False)
        write = into_own(Task)
        write("{}")
        assert Task.get_task(own.id).data.configuration[SEEN].value == "{}"
        own.send(tasks.DeleteRequest(own.id, force=True))
        try:
            write("{}")
        except UntoldError as error:
            print(str(error).replace(own.id, "ID"), flush=True)
        # The SDK has nothing to say good-bye to.
        os._exit(0)
    """)
    assert done.returncode == 0, done.stderr
    assert "this worker's task ID is not in ClearML" in done.stdout
    assert "restart or roll inference" in done.stdout
