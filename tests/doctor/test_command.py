"""The command as a user runs it, and the page that describes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.doctor.conftest import CLI, READY, ROOT, Scene
from transformer_serving.desk.cli import main
from transformer_serving.desk.command_line import STATE_VARIABLE
from transformer_serving.desk.doctor import clearml, gateway, log_lines
from transformer_serving.desk.doctor.finding import OK, SKIPPED, WARNING, Finding
from transformer_serving.desk.doctor.subject import subject_of
from transformer_serving.desk.doctor.table import CHECKS
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import LOGIN


def doctor(scene: Scene, *arguments: str, code: int = 0, is_state_named: bool = True) -> str:
    """Run it with the scene's servers in an --env-file; its output. The state folder is that of the
    option, or of the shell's variable.
    """
    state = str(scene.subject.state)
    named = ("--state", state) if is_state_named else ()
    file = scene.folder / "stack.env"
    values = {name: value for name, value in scene.subject.environment.items() if name != "PATH"}
    file.write_text("# the scene\n" + "".join(f"{n}='{v}'\n" for n, v in values.items()))
    done = subprocess.run(
        [CLI, "doctor", "--env-file", str(file), *named, *arguments],
        env={**os.environ, "PATH": scene.subject.environment["PATH"], STATE_VARIABLE: state},
        cwd=scene.folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_healthy_is_exit_code_0_and_one_document(scene: Scene) -> None:
    found = json.loads(doctor(scene, "--json", "--bundle", str(scene.subject.bundle)))
    assert found["healthy"] is True
    assert {row["check"] for row in found["findings"]} == {check.name for check in CHECKS}
    assert found["findings"][0].keys() == {"check", "status", "why", "fix"}


def test_a_fault_is_exit_code_1_and_says_the_fix(scene: Scene) -> None:
    log = scene.folder / "bad.log"
    log.write_text("Cannot deserialize engine with lean runtime\n")
    said = doctor(scene, "--log", str(log), code=1)
    assert "failure log: the plan is a version-compatible one" in said
    assert "fix: start Triton with --backend-config=tensorrt,version-compatible=true" in said
    assert "1 failure" in said


def test_what_an_embedded_stack_left_is_not_the_stack_of_an_env_file(scene: Scene) -> None:
    def said(**how: Any) -> dict[str, str]:
        found = json.loads(doctor(scene, "--json", "--endpoint", "prod", **how))
        [row] = [row for row in found["findings"] if row["check"] == "endpoints"]
        return dict(row)

    left = said(is_state_named=False)
    assert left["status"] == SKIPPED
    assert "writes elsewhere" in left["why"]
    assert "there is no endpoint 'prod'; there are: good" in said(code=1)["why"]


def test_what_a_terminal_would_obey_is_printed_as_its_escapes(scene: Scene) -> None:
    """A name in ClearML and an engine's words may hold it."""
    said = "\x1b[2Jgone\nok      endpoints: endpoint good is ready"
    scene.endpoints({**READY, "ready": False, "failure": "refused", "reason": said})
    shown = doctor(scene, code=1)
    assert "\x1b[2J" not in shown
    assert "\\x1b[2Jgone\\nok      endpoints: endpoint good is ready" in shown


def test_no_secret_is_printed(scene: Scene) -> None:
    said = doctor(scene) + doctor(scene, "--json")
    assert scene.subject.environment["CLEARML_API_SECRET_KEY"] not in said


def test_no_password_of_an_address_is_printed(scene: Scene) -> None:
    address = "http://user:s3cret@127.0.0.1:9"
    odd = "http://user:s3/cret@127.0.0.1"
    hosts = {"CLEARML_API_HOST": address, "CLEARML_FILES_HOST": odd, gateway.SERVE: address}
    scene.docker(files=address)
    for name, host in hosts.items():
        scene.subject.environment[name] = host  # type: ignore[index]
    said = doctor(scene, code=1) + doctor(scene, "--json", code=1)
    assert "s3" not in said
    assert "cret" not in said.replace("CLEARML_API_SECRET", "")
    assert f"CLEARML_API_HOST http://127.0.0.1:9 is not reachable: {LOGIN}" in said
    assert f"CLEARML_FILES_HOST http://127.0.0.1 is not reachable: {LOGIN}" in said
    assert f"{gateway.SERVE} http://127.0.0.1:9 is not reachable: {LOGIN}" in said
    assert f"CLEARML_FILES_HOST is not reachable from inside: {LOGIN}" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A=1\nTHIS IS NO LINE secret\n", "line 2: is not NAME=VALUE"),
        ("=1\n", "line 1: is not NAME=VALUE"),
        (None, "No such file"),
    ],
)
def test_an_env_file_that_cannot_be_read(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "stack.env"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Failure) as caught:
        read_env_file(path)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["{bad", '{"format": 99}'])
def test_a_stack_whose_record_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack.json").write_text(text)
    done = CliRunner().invoke(main, ["doctor", "--state", str(tmp_path)])
    assert f"error: {tmp_path / 'stack.json'} " in done.output
    assert done.exit_code == 2


CLEARML = (clearml.check_api, clearml.check_credentials, clearml.check_files, clearml.check_clock)
SERVER = (clearml.API, clearml.FILES)
KEYS = (clearml.ACCESS, clearml.SECRET)


@pytest.fixture
def shell(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Finding]]:
    """What is said of ClearML with docker/example.env, where every name of it is empty, in a shell
    that has these variables of the scene.
    """

    def findings(*names: str) -> list[Finding]:
        for name in (*SERVER, *KEYS):
            monkeypatch.delenv(name, raising=False)
        for name in names:
            monkeypatch.setenv(name, scene.subject.environment[name])
        file = ROOT / "docker" / "example.env"
        subject = subject_of(scene.subject.state, env_file=file)
        return [found for check in CLEARML for found in check(subject)]

    return findings


def test_what_a_file_leaves_empty_is_the_shells(shell: Callable[..., list[Finding]]) -> None:
    assert [found.status for found in shell(*SERVER, *KEYS)] == [OK] * len(CLEARML)


def test_keys_that_only_the_containers_have_are_no_failure(
    shell: Callable[..., list[Finding]],
) -> None:
    api, keys, *others = shell(*SERVER)
    assert keys.status == WARNING
    assert "compose/secrets.yaml" in keys.fix
    assert {found.status for found in (api, *others)} == {OK}


def test_who_gave_a_file_is_not_told_to_give_one(shell: Callable[..., list[Finding]]) -> None:
    for found in shell():
        assert found.status == SKIPPED
        assert "give --env-file" not in found.why


def test_the_line_for_the_local_profile_works_when_typed(
    shell: Callable[..., list[Finding]], tmp_path: Path
) -> None:
    api, *others = shell()
    assert clearml.OF_LOCAL_PROFILE in api.why
    assert clearml.OF_LOCAL_PROFILE not in "".join(found.why for found in others)
    typed = api.why.partition(" ask so: ")[2]
    for name, does in (
        ("docker", "echo \"export CLEARML_API_HOST='$*'\""),
        ("transformer-serving", 'echo "$CLEARML_API_HOST"; echo "$@"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", typed], env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    asked, options = done.stdout.splitlines()
    assert f"server=$(docker {asked})" in (ROOT / "docs" / "compose.md").read_text("utf-8")
    assert options == "doctor --env-file docker/example.env"


def test_beside_a_file_the_stack_of_the_folder_is_not_read(tmp_path: Path) -> None:
    """It may be another user's, of whom root asks compose, or a newer kit's."""
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(Failure, match=r"stack\.json cannot be read"):
        subject_of(tmp_path)
    assert subject_of(tmp_path, env_file=ROOT / "docker" / "example.env").record is None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    written = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|\n{written}"


def test_the_page_has_the_tables_of_the_code() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text("utf-8")
    checks = [(row.name, row.looks_at, row.fails_when) for row in CHECKS]
    assert table(("check", "looks at", "fails when"), checks) in page
    lines = [(row.name, row.meaning, row.fix) for row in log_lines.KNOWN]
    assert table(("line", "means", "fix"), lines) in page


def test_the_page_names_every_option() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text("utf-8")
    shown = subprocess.run(
        [CLI, "doctor", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in set(re.findall(r"--[a-z-]+", shown)) - {"--help"}:
        assert option in page
