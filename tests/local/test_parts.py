"""What the stack's parts are started with."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from preprocess.settings import read_settings
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.contract.stack_line import MARK
from transformer_serving.contract.worker.tracing import RATIO
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.keys import add_key
from transformer_serving.desk.local import parts, run_part
from transformer_serving.desk.local.environment import (
    USUAL_GRACE,
    check_settings,
    environment_of_parts,
    stop_seconds,
)
from transformer_serving.desk.local.parts import BY_NAME
from transformer_serving.desk.local.record import (
    Ports,
    clearml_environment,
    new_record,
    save_record,
)
from transformer_serving.engine import backend_directory, triton_traces
from transformer_serving.engine.container_commands import KEEP_TASKS_SECONDS
from transformer_serving.gateway.access import KEYS_FILE, TLS_CERT, TLS_CLIENT_CA, TLS_KEY
from transformer_serving.gateway.figures.folder import VARIABLE
from transformer_serving.gateway.settings import (
    DRAIN_SECONDS,
    GENERATE_ENDPOINT,
    GRACEFUL_SECONDS,
    MAX_BODY_BYTES,
    WORKERS,
)
from transformer_serving.gateway.shutdown import GIVING_UP_S

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("said", "workers"), [(None, "1"), ("", "1"), ("3", "3")])
def test_the_environment_says_how_many_workers(
    said: str | None, workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORKERS.name, raising=False)
    if said is not None:
        monkeypatch.setenv(WORKERS.name, said)
    launch = BY_NAME["inference"].launch(tmp_path, new_record(tmp_path, Ports()))
    assert f"--workers={workers}" in launch.command


def test_the_sdks_file_is_exchanged_whole_and_only_where_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full leaves the part the one that it has."""
    record = new_record(tmp_path, Ports())

    def written() -> Path:
        launch = BY_NAME["inference"].launch(tmp_path, record)
        return Path(launch.environment["CLEARML_CONFIG_FILE"])

    path = written()
    first = path.read_text("utf-8")
    assert first == parts.SDK_CONFIGURATION
    with path.open() as reader:
        monkeypatch.setattr(parts, "SDK_CONFIGURATION", "api.http { }\n")
        assert written() == path
        assert reader.read() == first
    assert path.read_text("utf-8") == "api.http { }\n"
    number = path.stat().st_ino
    assert written().stat().st_ino == number
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_triton_comes_back_after_its_sockets_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `rm -rf /tmp/*`: it makes the sockets and no folder."""
    monkeypatch.setattr(backend_directory, "pytriton_tritonserver", lambda: tmp_path)
    monkeypatch.setattr(backend_directory, "assemble", lambda *_, **__: tmp_path)
    monkeypatch.setattr(triton_traces, "trace_options", lambda *_, **__: ())
    record = new_record(tmp_path, Ports())
    folder = Path(record.sockets)
    folder.rmdir()
    BY_NAME["triton"].launch(tmp_path, record)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # The temporary folder is everybody's.
    folder.chmod(0o755)
    with pytest.raises(Failure, match="belongs to somebody else"):
        BY_NAME["triton"].launch(tmp_path, record)
    folder.rmdir()


def test_the_shells_triton_is_not_the_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell with the variables of docker/example.env, say."""
    monkeypatch.setenv("TRANSFORMER_SERVING_TRITON_HTTP", "triton:8000")
    monkeypatch.setenv("TRANSFORMER_SERVING_TRITON_GRPC", "triton:8001")
    record = new_record(tmp_path, Ports())
    launch = BY_NAME["inference"].launch(tmp_path, record)
    read = read_settings({**os.environ, **launch.environment})
    assert (read.triton, read.triton_grpc) == (record.triton.http, record.triton.grpc)


# Of a shell that works with a ClearML server of its own, or that an agent of it started: the SDK
# goes by most of them before it looks at what the stack says.
FOREIGN = {
    "CLEARML_API_HOST": "http://another:8008",
    "CLEARML_SERVING_TASK_ID": "another",
    "CLEARML_INFERENCE_TASK_ID": "another",
    "CLEARML_TASK_ID": "another",
    "TRAINS_TASK_ID": "another",
    "CLEARML_PROC_MASTER_ID": "1:another",
    "CLEARML_AUTH_TOKEN": "another",
    "CLEARML_OFFLINE_MODE": "1",
    "TRAINS_OFFLINE_MODE": "1",
    "CLEARML_DEFAULT_OUTPUT_URI": "s3://another",
    "CLEARML_LOG_LEVEL": "CRITICAL",
}


@pytest.mark.parametrize("part", ["control-plane", "controller", "inference", "watchdog"])
def test_a_shells_own_clearml_server_is_not_the_stacks(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables with which the part itself runs."""
    record = replace(new_record(tmp_path, Ports()), serving_id="own")
    save_record(tmp_path, record)
    for variable, value in FOREIGN.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv(WORKERS.name, "3")
    monkeypatch.setenv(MARK, str(tmp_path))
    ran: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execvpe", lambda *given: ran.append(given[2]))
    monkeypatch.setattr(run_part, "wait_for", lambda *_: None)
    run_part.main([part])
    (environment,) = ran
    left = {variable: environment[variable] for variable in FOREIGN if variable in environment}
    own = clearml_environment(record) | {"CLEARML_LOG_LEVEL": "WARNING"}
    speaks = part in ("controller", "inference")
    assert left == ({name: own[name] for name in own.keys() & FOREIGN} if speaks else {})
    assert environment[WORKERS.name] == "3"
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (WORKERS.name, "many"),
        (WORKERS.name, "0"),
        (MAX_BODY_BYTES.name, "-1"),
        (RATIO.name, "2"),
        # It would listen, and nothing that asks after its health speaks TLS.
        (TLS_CERT.name, "own.crt"),
        (TLS_KEY.name, "own.key"),
        (TLS_CLIENT_CA.name, "callers.crt"),
        ("TRANSFORMER_SERVING_TIMEOUT_S", "soon"),
        (TRUSTED_KEYS_VARIABLE, "no key"),
    ],
)
def test_a_wrong_setting_is_named_before_a_part_is_started(name: str, value: str) -> None:
    check_settings({})
    with pytest.raises(Failure, match=name) as refused:
        check_settings({name: value})
    assert refused.value.exit_code == 2


def test_a_file_that_holds_no_keys_is_named_too(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("no JSON")
    with pytest.raises(Failure, match=str(wrong)) as refused:
        check_settings({KEYS_FILE.name: str(wrong)})
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("said", "taken"), [(None, "demo"), ("", "demo"), ("mine", "mine")])
def test_what_a_stack_is_started_with_is_for_who_says_nothing(said: str | None, taken: str) -> None:
    environment = {} if said is None else {GENERATE_ENDPOINT.name: said}
    given = {GENERATE_ENDPOINT.name: "demo"}
    parts = environment_of_parts({"HOME": "/", **environment}, given)
    assert parts == {"HOME": "/", GENERATE_ENDPOINT.name: taken}


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({}, 12),
        ({GRACEFUL_SECONDS.name: ""}, 12),
        ({GRACEFUL_SECONDS.name: "3"}, 12),
        ({GRACEFUL_SECONDS.name: "30"}, 35),
        ({DRAIN_SECONDS.name: "20"}, 32),
        ({DRAIN_SECONDS.name: "20", GRACEFUL_SECONDS.name: "30"}, 55),
    ],
)
def test_the_gateway_gives_up_what_runs_before_it_is_killed(
    said: dict[str, str], seconds: int
) -> None:
    """Else nobody would be told of it."""
    assert stop_seconds(said) == seconds
    told = environment_of_parts(said, USUAL_GRACE)
    runs_on = DRAIN_SECONDS.number(told) + GRACEFUL_SECONDS.number(told)
    assert runs_on + GIVING_UP_S < seconds


def test_files_are_named_to_the_parts_by_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in a folder of their own, where a name of the caller's folder leads nowhere."""
    monkeypatch.chdir(tmp_path)
    add_key(Path("keys.json"), "first", (), metrics=False)
    given = {KEYS_FILE.name: "keys.json", VARIABLE: "figures", "LANG": "C"}
    check_settings(given)
    named = environment_of_parts(given)
    whole = {KEYS_FILE.name: str(tmp_path / "keys.json"), VARIABLE: str(tmp_path / "figures")}
    assert named == {**given, **whole}
    assert environment_of_parts({KEYS_FILE.name: ""}) == {KEYS_FILE.name: ""}
    assert environment_of_parts(named) == named


def test_tasks_of_workers_that_are_gone_are_deleted_as_in_the_chart(tmp_path: Path) -> None:
    launch = BY_NAME["controller"].launch(tmp_path, new_record(tmp_path, Ports()))
    assert f"--keep-tasks-seconds={KEEP_TASKS_SECONDS}" in launch.command
    values = (ROOT / "kubernetes" / "chart" / "values.yaml").read_text()
    assert f"keepTasksMinutes: {KEEP_TASKS_SECONDS // 60}\n" in values
