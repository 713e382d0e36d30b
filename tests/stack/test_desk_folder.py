"""Where the command line is started does not matter, nor which command chooses the target."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_port_base
from tests.stack.conftest import CLI, Stack
from tests.stack.small_bundles import Parts, write_small

# Names of our packages and of modules that an operator has lying about beside a bundle.
STRAY = ("contract", "engine", "preprocess", "gateway", "transformer_serving", "supervisor")


@pytest.fixture
def stray(tmp_path: Path) -> Path:
    """A folder with files that must not be taken for the kit's modules."""
    folder = tmp_path / "stray"
    folder.mkdir()
    for name in STRAY:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the stray {name}.py was imported')")
    return folder


def run(
    folder: Path, *arguments: str, code: int = 0, variables: Mapping[str, str] | None = None
) -> str:
    """The real command line, started in a folder, with no setting of a stack but those given."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLEARML_", "TRANSFORMER_SERVING_"))
    }
    done = subprocess.run(
        [CLI, *arguments],
        cwd=folder, env={**kept, **(variables or {})}, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def test_stray_modules_in_the_folder_are_not_imported(plain: Stack, stray: Path) -> None:
    write_small(stray / "bundle", Parts(scale=3.0))
    state = ("--state", str(plain.state))
    run(stray, "up", *state)
    run(stray, "show", "bundle")
    run(stray, "deploy", "bundle", "--endpoint", "stray", *state)
    assert '"stray"' in run(stray, "status", "--json", *state)
    assert "served no other bundle" in run(stray, "rollback", "stray", *state, code=2)
    run(stray, "remove", "stray", *state)


@pytest.mark.long
def test_a_stack_is_started_and_stopped_from_such_a_folder(stray: Path) -> None:
    """And from a stack's folder that has such files: supervisord runs there."""
    state = stray / ".stack"
    state.mkdir(mode=0o700)
    for name in STRAY:
        (state / f"{name}.py").write_text((stray / f"{name}.py").read_text())
    try:
        run(stray, "up", "--port-base", str(free_port_base()))
        write_small(stray / "bundle", Parts(scale=3.0))
        run(stray, "deploy", "bundle", "--endpoint", "stray")
        parts: dict[str, Any] = json.loads(run(stray, "status", "--json"))
        assert {part["health"] for part in parts["parts"]} == {"ok"}
    finally:
        run(stray, "down")


def test_deploy_rollback_and_remove_take_the_server_that_the_environment_names(
    plain: Stack, tmp_path: Path
) -> None:
    named = {
        name: value for name, value in plain.environment().items() if name.startswith("CLEARML_")
    }
    named["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    versions = []
    for scale in (4.0, 5.0):
        bundle = write_small(tmp_path / f"of {scale}", Parts(scale=scale))
        run(tmp_path, "deploy", str(bundle.folder), "--endpoint", "named", variables=named)
        versions.append(bundle.manifest.bundle_version)
    back = json.loads(run(tmp_path, "rollback", "named", "--json", variables=named))
    assert (back["withdrawn_version"], back["bundle_version"]) == (versions[1], versions[0])
    run(tmp_path, "remove", "named", variables=named)
    assert not (tmp_path / ".stack").exists()


@pytest.mark.parametrize("command", ["deploy bundle --endpoint x", "rollback x", "remove x"])
def test_without_a_stack_all_three_say_the_same(command: str, tmp_path: Path) -> None:
    write_small(tmp_path / "bundle")
    given = {"CLEARML_FILES_HOST": "http://127.0.0.1:9", "CLEARML_SERVING_TASK_ID": "0" * 32}
    said = run(tmp_path, *command.split(), code=2, variables=given)
    began, _, ends = said.partition("transformer-serving up', or ")
    assert began.startswith(f"error: no stack in {tmp_path / '.stack'}; start one with '")
    assert ends == (
        "name its folder with --state or TRANSFORMER_SERVING_STATE; for a ClearML server of your "
        "own set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY, CLEARML_API_SECRET_KEY, "
        "CLEARML_DEFAULT_BASE_SERVE_URL, as clearml.conf is not read for them\n"
    )
