"""The container where pods share no volume: keys are variables, the service's id is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.control_plane.conftest import ACCESS_KEY, SECRET_KEY, ServerProcess
from transformer_serving.control_plane.settings import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import container


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(container, "SHARED", tmp_path)
    for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def api(own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> ClearmlApi:
    own_server.start()
    for name, value in {
        "CLEARML_API_HOST": own_server.url,
        "CLEARML_API_ACCESS_KEY": ACCESS_KEY,
        "CLEARML_API_SECRET_KEY": SECRET_KEY,
    }.items():
        monkeypatch.setenv(name, value)
    return ClearmlApi(os.environ)


def made(api: ClearmlApi, name: str, kind: str = "service") -> str:
    tags = ["serving-control-plane"]
    return str(api.call("tasks.create", name=name, type=kind, system_tags=tags)["id"])


def services(api: ClearmlApi) -> list[str]:
    rows = api.call("tasks.get_all", name=f"^{container.SERVICE}$", only_fields=["id"])["tasks"]
    return [str(row["id"]) for row in rows]


@pytest.mark.slow
def test_a_service_whose_id_was_not_written_down_is_no_second_one(
    api: ClearmlApi, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have found it: a second one would be deployed to, and nobody would look there."""
    for host in ("WEB", "FILES"):
        monkeypatch.setenv(f"CLEARML_{host}_HOST", os.environ["CLEARML_API_HOST"])
    for _ in range(2):
        done = CliRunner().invoke(container.main, ["create-service"])
        assert done.exit_code == 0, done.output
        (created,) = services(api)
        assert (shared / "serving-id").read_text() == f"{created}\n"
        assert container.found_service(api, 0) == created
        (shared / "serving-id").unlink()


def test_the_oldest_service_of_our_name_is_found_and_written_down(
    api: ClearmlApi, shared: Path
) -> None:
    made(api, container.SERVICE, "training")
    made(api, f"{container.SERVICE} of others")
    # Its creation was ended at once, and clearml-serving takes it for none.
    api.call("tasks.create", name=container.SERVICE, type="service")
    wanted = made(api, container.SERVICE)
    made(api, container.SERVICE)
    done = CliRunner().invoke(container.main, ["find-service"])
    assert done.exit_code == 0, done.output
    assert (shared / "serving-id").read_text() == f"{wanted}\n"


def test_without_a_service_it_says_where_to_look(api: ClearmlApi) -> None:
    with pytest.raises(Failure, match="has no serving service transformer-serving after 0 s"):
        container.found_service(api, 0)


def test_keys_are_made_once_unless_they_are_given(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = container.access_key(), container.secret_key()
    assert (container.access_key(), container.secret_key()) == made
    assert (shared / "access-key").read_text().strip() == made[0]
    monkeypatch.setenv(ACCESS_KEY_VARIABLE, "given")
    monkeypatch.setenv(SECRET_KEY_VARIABLE, "as well")
    assert (container.access_key(), container.secret_key()) == ("given", "as well")


def test_a_shell_gets_the_keys_that_were_given(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "serving-id").write_text("id\n")
    monkeypatch.setenv(ACCESS_KEY_VARIABLE, "given")
    monkeypatch.setenv(SECRET_KEY_VARIABLE, "a 'quoted' one")
    monkeypatch.setenv(container.CONTROL_PLANE_URL, "http://127.0.0.1:8008")
    monkeypatch.setenv(container.SERVE_URL, "http://127.0.0.1:8080/serve")
    lines = CliRunner().invoke(container.main, ["env"]).output.splitlines()
    assert "export CLEARML_API_ACCESS_KEY=given" in lines
    assert """export CLEARML_API_SECRET_KEY='a '"'"'quoted'"'"' one'""" in lines
    assert "export CLEARML_SERVING_TASK_ID=id" in lines
    assert not (shared / "access-key").exists()


def test_what_a_shell_lacks_is_named(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is called outside of the container, or before there is a service."""
    for name in (container.CONTROL_PLANE_URL, container.SERVE_URL):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        (container.CONTROL_PLANE_URL, "http://x"),
        (container.SERVE_URL, "http://y"),
    ):
        done = CliRunner().invoke(container.main, ["env"])
        assert done.exit_code == 2
        assert f"error: {name} is not set" in done.output
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(container.main, ["env"])
    assert done.exit_code == 1
    assert "error: there is no serving service yet" in done.output
    (shared / "serving-id").write_text("the-service\n")
    done = CliRunner().invoke(container.main, ["env"])
    assert "export CLEARML_SERVING_TASK_ID=the-service\n" in done.output


def test_no_service_is_made_on_a_server_that_is_not_the_profiles_own(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compose's profile local with the file of a real server: neither there nor in the volume."""
    own = "http://control-plane:8008"
    monkeypatch.setattr(container, "_present_or_new_service", lambda: "the-service")
    for address, code in (("https://api.example", 2), (f"{own}/", 0)):
        monkeypatch.setenv("CLEARML_API_HOST", address)
        done = CliRunner().invoke(container.main, ["create-service", f"--only-on={own}"])
        assert done.exit_code == code, done.output
        assert (shared / "serving-id").exists() == (code == 0)
        assert ("leave --profile local out" in done.output) == (code == 2)


def test_a_server_that_is_not_there_is_told_in_one_line(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object, seconds: float) -> None:
        # A pod's first server may be as slow to its own container as to the others.
        assert seconds == container._FIND_S
        raise Failure("the ClearML server did not answer")

    monkeypatch.setattr(ClearmlApi, "wait", refused)
    done = CliRunner().invoke(container.main, ["create-service"])
    assert (done.exit_code, done.output) == (1, "error: the ClearML server did not answer\n")
