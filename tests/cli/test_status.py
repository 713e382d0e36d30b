"""The tables of `status` and `show`: what others wrote is shown as they wrote it, and whole."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from tests.stack.small_bundles import write_small
from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.cli import main, show
from transformer_serving.desk.cli.deploy import deploy_target
from transformer_serving.desk.cli.status import _status_tables
from transformer_serving.desk.cli.tables import table_console, whole_table
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import Ports, new_record, save_record
from transformer_serving.desk.watch.look import look_at

NAMES = ("x[/y]", "[bold]b", "a:smile:b")
REASONS = (
    "[json.exception.parse_error.101] parse error at line 1",
    "cannot load [/models/a/1/model.onnx]",
    "[enforce fail at alloc_cpu.cpp:117] no memory",
)


def test_signs_of_rich_are_shown() -> None:
    endpoints = [
        {"endpoint": name, "reason": reason, "backend": "onnx", "proof": "[a]", "ready": False}
        for name, reason in zip(NAMES, REASONS, strict=True)
    ]
    part = {
        "name": "triton", "pid": None, "port": 1, "address": None, "health": "[/no]",
        "version": "1",
    }  # fmt: skip
    values = {
        "parts": [part],
        "endpoints": endpoints,
        "routes": [],
        "unserved": [],
        "rollouts": [],
        "open_tritons": [],
        "running": True,
    }
    page = io.StringIO()
    Console(file=page, width=300).print(_status_tables(Path("/w/[/x]/.stack"), values))
    text = page.getvalue()
    for shown in (*NAMES, *REASONS, "[/no]", "stack in /w/[/x]/.stack"):
        assert shown in text


def test_what_a_terminal_would_obey_is_shown() -> None:
    evil = "a\x1b]0;x\x07\n2026 ERROR"
    row = {"endpoint": evil, "reason": evil, "backend": evil, "proof": None, "ready": False}
    arm = {"endpoint": evil, "weight": 1.0, "is_there": True}
    values = {
        "parts": [],
        "endpoints": [row],
        "routes": [{"endpoint": evil, "prefix": None, "arms": [arm], "leads_somewhere": True}],
        "unserved": [{"id": "0" * 32, "name": evil, "endpoints": [evil]}],
        "rollouts": [{"endpoint": evil, "bundle_version": 1, "words": evil}],
        "open_tritons": [],
        "running": True,
    }
    page = io.StringIO()
    Console(file=page, width=300).print(_status_tables(Path("/w/.stack"), values))
    text = page.getvalue()
    assert text.replace("\n", "").isprintable()
    assert text.count(r"a\x1b]0;x\x07\n2026 ERROR") == 9


def test_routes_and_what_is_not_served_are_told() -> None:
    arms = [
        {"endpoint": "a/1", "weight": 0.25, "is_there": True},
        {"endpoint": "b", "weight": 0.75, "is_there": False},
    ]
    values = {
        "parts": [],
        "endpoints": [],
        "routes": [
            {"endpoint": "half[/]", "prefix": None, "arms": arms, "leads_somewhere": True},
            {"endpoint": "none", "prefix": "x", "arms": [], "leads_somewhere": False},
            {"endpoint": "idle", "prefix": None, "arms": arms[1:], "leads_somewhere": False},
        ],
        "unserved": [{"id": "0" * 32, "name": "one more", "endpoints": ["c", "d"]}],
        "rollouts": [],
        "open_tritons": [],
        "running": True,
    }
    page = io.StringIO()
    Console(file=page, width=300).print(_status_tables(Path("/w/.stack"), values))
    text = page.getvalue()
    assert "canary route half[/]: a/1 0.25, b 0.75 (not there)" in text
    assert "canary route none: leads nowhere\n" in re.sub(" *\n", "\n", text)
    assert "canary route idle: leads nowhere: b 0.75 (not there)" in text
    assert f"service 'one more' ({'0' * 32}) is not served" in text
    assert "answer nobody: c, d" in text


def test_a_stack_that_is_down_is_said_to_be_with_what_starts_it_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / ("a-folder-of-a-stack-" * 4)
    save_record(state, new_record(state, Ports()))
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(main, ["status", "--state", str(state)])
    assert done.exit_code == 1
    line = f"the stack is down; start it: transformer-serving up --state {state}"
    assert line in done.output.splitlines()


def test_parts_that_nobody_keeps_are_no_stack_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the end of its supervisor alone: the parts go on, and what they say is asked."""
    record = replace(new_record(tmp_path, Ports()), serving_id="0" * 32)
    save_record(tmp_path, record)
    controller = tmp_path / "triton" / "controller.json"
    controller.parent.mkdir()
    rows = [{"endpoint": "served", "ready": True, "reason": None}]
    own = {"pid": 1, "last_sync": time.time()}
    controller.write_text(json.dumps({"controller": own, "endpoints": rows}))
    with part_of(tmp_path):
        done = CliRunner().invoke(main, ["status", "--state", str(tmp_path)])
        asked = CliRunner().invoke(main, ["status", "--json", "--state", str(tmp_path)])
        look = look_at(tmp_path)
        with pytest.raises(Failure) as refused:
            deploy_target(str(tmp_path))
    assert (done.exit_code, asked.exit_code) == (1, 1)
    said = (
        "no supervisor keeps the stack any more, its parts may serve on; start it again: "
        f"transformer-serving up --state {tmp_path}; or end what is left: transformer-serving down "
        f"--state {tmp_path}"
    )
    assert said in done.output.splitlines()
    assert said in str(refused.value)
    assert (look.word, look.fault) == ("left behind", said)
    values = json.loads(asked.output)
    assert (values["running"], values["left_behind"]) == (False, True)
    assert values["endpoints"] == rows
    healths = {part["name"]: part["health"] for part in values["parts"]}
    assert healths["controller"] == "runs, but no supervisor keeps it"
    assert healths["triton"] == "does not answer"
    down = CliRunner().invoke(main, ["status", "--json", "--state", str(tmp_path)])
    assert json.loads(down.output)["left_behind"] is False


@contextmanager
def part_of(state: Path) -> Iterator[None]:
    """A process that is known as a part of that stack."""
    part = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: str(state)})
    try:
        yield
    finally:
        part.kill()
        part.wait()


def columns(table: RenderableType, width: int) -> list[str]:
    """Each column as it is read over its lines; without blanks, as words break at them."""
    page = io.StringIO()
    Console(file=page, width=width).print(table)
    lines = [line[1:-1] for line in page.getvalue().splitlines() if set("│┃") & set(line)]
    rows = [re.split("[│┃]", line) for line in lines]
    return [
        "".join("".join(row[column].split()) for row in rows if column < len(row))
        for column in range(max(map(len, rows)))
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_cuts_nothing(width: int) -> None:
    rows = [
        {
            "endpoint": f"sentiment-of-reviews-{number}", "bundle_version": 1764338000 + number,
            "verified": True, "backend": "transformer_model", "proof": "proven", "ready": False,
            "reason": f"load failed: /models/sentiment-of-reviews/{number}/model.plan is not for "
            "compute capability 8.6",
        }
        for number in range(2)
    ]  # fmt: skip
    part = {
        "name": "control-plane", "pid": 4194304, "port": 65535, "address": None,
        "health": "HTTPConnectionPool(host='127.0.0.1',port=65535): no answer", "version": "1.2.3",
    }  # fmt: skip
    values = {
        "parts": [part],
        "endpoints": rows,
        "routes": [],
        "unserved": [],
        "rollouts": [],
        "open_tritons": [],
        "running": True,
    }
    seen = columns(_status_tables(Path("/w/.stack"), values), width)
    told = [row[name] for row in rows for name in ("endpoint", "bundle_version", "reason")]
    for shown in (*told, "transformer_model", part["name"], part["health"], part["pid"]):
        assert any("".join(str(shown).split()) in column for column in seen), (shown, seen)


def test_a_narrow_terminal_shows_a_bundle_whole(tmp_path: Path) -> None:
    bundle = open_bundle(write_small(tmp_path / "bundle").folder)
    _, facts = columns(show._facts(bundle), 40)
    assert f"{bundle.manifest.engine}{bundle.manifest.precision}" in facts
    paths, _, hashes = columns(show._files(bundle), 40)
    for entry in bundle.manifest.files:
        assert entry.path in paths
        assert entry.sha256[:16] in hashes


@pytest.mark.parametrize("columns", [None, 60])
def test_a_row_is_a_line_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int | None
) -> None:
    """Unless somebody has said how wide it is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    table = whole_table("endpoint", "why not")
    table.add_row("sentiment-of-reviews", "no answer of the server " * 5)
    table_console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert any("sentiment-of-reviews" in line for line in lines)
    assert (len(lines) == 5) is (columns is None)
    assert max(map(len, lines)) <= (columns or 200)
