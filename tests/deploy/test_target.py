"""Which server the environment names, where the state of its endpoints stands, and the lock of a
serving service: of its id, wherever a command runs, and of no stack's folder."""

from __future__ import annotations

import fcntl
import os
import pwd
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from transformer_serving.desk.cli.deploy import deploy_target
from transformer_serving.desk.deploy.target import (
    TARGET_VARIABLES,
    one_at_a_time,
    service_lock,
    target_of,
)
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import (
    Ports,
    make_private,
    new_record,
    save_record,
    state_directory,
)
from transformer_serving.desk.user_cache import user_cache
from transformer_serving.engine.container import STATE

NAMED = {name: f"http://{name}" for name in TARGET_VARIABLES}


@pytest.fixture(autouse=True)
def _named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ClearML server of one's own, and a folder without a stack."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRANSFORMER_SERVING_STATE", raising=False)
    for name in TARGET_VARIABLES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)


def test_a_deploy_without_a_stack_leaves_its_place_to_up(tmp_path: Path) -> None:
    with one_at_a_time(deploy_target(None).lock):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    make_private(state_directory())


def test_another_folder_has_the_same_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    with one_at_a_time(deploy_target(None).lock):
        monkeypatch.chdir(tmp_path / "other")
        other = deploy_target("another state").lock
        with other.open("w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_it_is_the_services_own_and_this_users_alone() -> None:
    names = dict.fromkeys(TARGET_VARIABLES, "http://a")
    same = names | {"CLEARML_API_HOST": "http://another-name-of-the-server"}
    targets = [target_of(environment) for environment in (names, same)]
    assert [target.lock for target in targets if target] == [service_lock("http://a")] * 2
    assert service_lock("a") != service_lock("../a")
    with one_at_a_time(service_lock("../a")):
        pass
    folder = service_lock("../a").parent
    assert folder.parent == user_cache() / "services"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_deploy_is_told_of_only_where_there_is_one(tmp_path: Path) -> None:
    lock, told = tmp_path / "deploy.lock", list[str]()
    with one_at_a_time(lock, report=told.append):
        assert told == []
        second = one_at_a_time(lock, 0, report=told.append)
        with pytest.raises(Failure, match="another deploy of this machine did not end"), second:
            pass
    assert told == ["waiting for another deploy of this machine to end"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with (
        pytest.raises(
            Failure, match="services/.*/deploy.lock, which .* set XDG_CACHE_HOME"
        ) as said,
        one_at_a_time(service_lock("a")),
    ):
        pass
    assert said.value.exit_code == 2


def test_a_cache_that_is_a_path_of_the_current_folder_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given in ("cache", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert user_cache() == tmp_path / "home" / ".cache" / "transformer-serving"


def test_a_user_without_a_home_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's, often: a uid that no passwd has."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    assert user_cache().parent == tmp_path / "cache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(Failure, match=f"user {os.getuid()} has no home.* set XDG_CACHE_HOME") as no:
        deploy_target(None)
    assert no.value.exit_code == 2


@pytest.mark.parametrize(
    "name", ["CLEARML_API_HOST", "CLEARML_FILES_HOST", "CLEARML_DEFAULT_BASE_SERVE_URL"]
)
def test_an_address_with_a_password_is_refused_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://user:s3cret@127.0.0.1:9")
    with pytest.raises(Failure, match=f"{name}: a name or a password stands") as refused:
        deploy_target(None)
    assert "s3cret" not in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("missing", TARGET_VARIABLES)
def test_each_variable_is_needed(missing: str) -> None:
    assert target_of({**NAMED, missing: ""}) is None


def test_status_is_named_for_the_embedded_stack_alone() -> None:
    target = target_of(NAMED)
    assert target is not None
    assert target.look == f"{STATE / 'controller.json'} in the Triton container"
    embedded = replace(target, triton="2.51.0")
    assert embedded.look == "transformer-serving status"
    other = replace(embedded, state=Path("/x/an other"))
    assert other.look == "transformer-serving status --state '/x/an other'"


def test_a_stack_that_is_down_says_how_the_named_server_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after `make up`, on a machine whose containers are to be rolled back."""
    state = state_directory()
    save_record(state, new_record(state, Ports()).with_serving_id("0" * 32))
    down = f"{state}: the stack is down; start it: transformer-serving up"
    how = "; for the ClearML server that CLEARML_API_HOST names, name a folder without a stack: "
    with pytest.raises(Failure) as refused:
        deploy_target(None)
    assert str(refused.value) == f"{down}{how}--state none"
    named = deploy_target("none")
    assert named.serve_url == "http://127.0.0.1:9"
    # Without it the line would be about the stack.
    assert shlex.split(named.command("rollback x"))[3:] == ["--state", str(state_directory("none"))]
    # Those of `transformer-serving env` are this stack's own.
    monkeypatch.setenv("CLEARML_SERVING_TASK_ID", "0" * 32)
    with pytest.raises(Failure) as refused:
        deploy_target(None)
    assert str(refused.value) == down
    monkeypatch.delenv("CLEARML_SERVING_TASK_ID")
    with pytest.raises(Failure) as refused:
        deploy_target(None)
    assert str(refused.value) == down
