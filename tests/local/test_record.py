"""The state folder and its record: for one user alone, and not of any kit."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests.utils
from click.testing import CliRunner

from tests.proxies import proxy_of_the_environment
from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.cli import main
from transformer_serving.desk.cli.env import env
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import stack
from transformer_serving.desk.local.parts import BY_NAME
from transformer_serving.desk.local.record import (
    FORMAT,
    Ports,
    clearml_environment,
    load_record,
    make_private,
    new_record,
    record_text,
    save_record,
    state_directory,
)
from transformer_serving.desk.local.sockets import socket_folder


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders of sockets are gone with the test; the one of pytest, made before, is too long."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_and_an_older_stacks_are_made_private(tmp_path: Path) -> None:
    make_private(tmp_path / "new" / "state")
    assert mode(tmp_path / "new" / "state") == 0o700
    older = tmp_path / "older"
    older.mkdir(mode=0o755)
    save_record(older, new_record(older, Ports()))
    make_private(older)
    assert (mode(older), mode(older / "stack.json")) == (0o700, 0o600)


@pytest.mark.parametrize("bits", [0o755, 0o1777])
def test_a_folder_that_is_not_a_stacks_is_left_alone(tmp_path: Path, bits: int) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "letter").touch()
    folder.chmod(bits)
    with pytest.raises(Failure, match="is open to other users and is not a stack's own"):
        make_private(folder)
    assert mode(folder) == bits


def test_a_record_of_the_next_release(tmp_path: Path) -> None:
    """What it added is left out; a form of its own is refused, and nothing is touched."""
    record = new_record(tmp_path, Ports())
    values = json.loads(record_text(record))
    values["ports"]["more"] = 1
    path = tmp_path / "stack.json"
    path.write_text(json.dumps({**values, "added": True}))
    assert load_record(tmp_path) == record
    newer = json.dumps({**values, "format": FORMAT + 1})
    path.write_text(newer)
    with pytest.raises(Failure, match="written by a newer kit"):
        load_record(tmp_path)
    assert path.read_text() == newer


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "x"}', '{"ports": 1}'])
def test_a_broken_record_is_called_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(Failure, match="cannot be read"):
        load_record(tmp_path)


@pytest.mark.parametrize("number", [None, 1])
def test_a_record_of_the_first_format_is_refused_with_the_way_out(
    tmp_path: Path, number: int | None
) -> None:
    values = json.loads(record_text(new_record(tmp_path, Ports())))
    del values["format"]
    text = json.dumps(values if number is None else {**values, "format": number})
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(Failure, match="cannot be read; .*or remove that folder") as refused:
        load_record(tmp_path)
    assert refused.value.exit_code == 2
    assert (tmp_path / "stack.json").read_text() == text


def test_sockets_are_in_a_folder_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = socket_folder(tmp_path)
    assert mode(folder) == 0o700
    folder.chmod(0o755)
    with pytest.raises(Failure, match="belongs to somebody else"):
        socket_folder(tmp_path)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(Failure, match="belongs to somebody else"):
        socket_folder(tmp_path)
    folder.unlink()
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp/a,b")
    with pytest.raises(Failure, match="set TMPDIR"):
        socket_folder(tmp_path)


@pytest.mark.parametrize("within", ["letter", "letter/state"])
def test_a_folder_that_cannot_be_is_named_with_the_way_out(tmp_path: Path, within: str) -> None:
    (tmp_path / "letter").touch()
    state = state_directory(str(tmp_path / within))
    for question in (load_record, make_private):
        with pytest.raises(Failure, match="cannot be used: .*or name another folder") as refused:
            question(state)
        assert refused.value.exit_code == 2


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(Failure, match="cannot be used") as refused:
        load_record(state_directory(str(tmp_path / "a")))
    assert refused.value.exit_code == 2


_AS_ANOTHER = """
import os, sys
from transformer_serving.desk.cli import main
from transformer_serving.desk.local import stack, supervision
import rich.console, rich.table, rich.text
os.setgroups([]); os.setgid(65534); os.setuid(65534)
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("command", ["status", "env", "logs", "down", "up"])
def test_who_is_not_its_user_is_told_so(tmp_path: Path, command: str) -> None:
    state = tmp_path / "state"
    make_private(state)
    save_record(state, new_record(state, Ports()))
    (state / "logs").mkdir()
    (state / "supervisor.pid").write_text("1")
    run = [sys.executable, "-c", _AS_ANOTHER, command, "--state", str(state)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert "cannot be used: Permission denied; be the user who ran 'up' there" in done.stderr


def nobodys(state: Path) -> None:
    """As user nobody's `up` leaves it."""
    make_private(state)
    record = new_record(state, Ports())
    sockets = record.sockets.replace(f"-{os.getuid()}-", "-65534-")
    save_record(state, replace(record, sockets=sockets))
    for path in (state, state / "stack.json"):
        os.chown(path, 65534, 65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter another user's folder")
@pytest.mark.parametrize(
    "command", ["status", "doctor", "env", "logs", "backup FILE", "restore FILE", "down", "up"]
)
def test_root_leaves_another_users_stack_alone(tmp_path: Path, command: str) -> None:
    """As root's it would be started anew over what serves, and its user locked out."""
    state = tmp_path / "state"
    nobodys(state)
    part = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(state)})
    try:
        done = CliRunner().invoke(main, [*command.split(), "--state", str(state)])
        assert done.exit_code == 2, done.output
        name = pwd.getpwuid(65534).pw_name
        assert f"the stack in {state} belongs to {name}" in done.output
        assert f"run it as {name}: sudo -u {name} ..." in done.output
        assert part.poll() is None
        assert [path.name for path in state.iterdir()] == ["stack.json"]
        with pytest.raises(Failure, match="belongs to"):
            make_private(state)
    finally:
        os.chown(state / "stack.json", os.getuid(), os.getgid())
        stack.stop(state, lambda _: None)
        part.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter another user's folder")
def test_a_stack_in_a_volume_of_another_user_is_whose_up_made_it(tmp_path: Path) -> None:
    """Also where the volume shows one owner for whatever is written there."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 65534, 65534)
    make_private(state)
    record = new_record(state, Ports())
    save_record(state, record)
    assert load_record(state) == record
    os.chown(state / "stack.json", 65534, 65534)
    assert load_record(state) == record


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "127.0.0.1,localhost"), ("a.example, localhost", "a.example,localhost,127.0.0.1"),
     ("*", "*")],
)  # fmt: skip
def test_clearmls_own_tools_ask_no_proxy_for_the_stack(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = new_record(tmp_path, Ports())
    with proxy_of_the_environment(monkeypatch):
        if before is not None:
            monkeypatch.setenv("NO_PROXY", before)
        values = clearml_environment(record)
        assert (values["no_proxy"], values["NO_PROXY"]) == (after, after)
        # What a part is started with, and what the SDK makes of it.
        started = BY_NAME["inference"].launch(tmp_path, record).environment
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, started[name])
        assert not requests.utils.get_environ_proxies(values["CLEARML_API_HOST"])


def test_without_a_proxy_nothing_is_said_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("no_proxy", "a.example")
    assert not [name for name in clearml_environment(new_record(tmp_path, Ports())) if "PROXY" in
                name.upper()]  # fmt: skip


def test_what_leads_clearmls_own_tools_elsewhere_is_unset(tmp_path: Path) -> None:
    """Where a shell has it; the rest of its variables stay."""
    save_record(tmp_path, new_record(tmp_path, Ports()))
    elsewhere = ("CLEARML_AUTH_TOKEN", "CLEARML_OFFLINE_MODE", "TRAINS_TASK_ID")
    given = {**dict.fromkeys(elsewhere, "1"), "CLEARML_CONFIG_FILE": "own.conf"}
    before = {name: None for name in os.environ if name.startswith(("CLEARML_", "TRAINS_"))}
    done = CliRunner().invoke(env, ["--state", str(tmp_path)], env={**before, **given})
    lines = done.output.splitlines()
    assert lines[:3] == [f"unset {name}" for name in elsewhere]
    assert all(line.startswith("export ") for line in lines[3:])
