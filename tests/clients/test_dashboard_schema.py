"""The dashboards' files as Grafana's own types have them, by the TypeScript compiler."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.dashboards.table import DASHBOARDS, FOLDER as DASHBOARDS_FOLDER
from tests.clients.environments import FOLDER, LISTS

_INSTALL_S, _CHECK_S = 300, 120
_LIST = LISTS / "grafana-schema"
# Of JSON an enumeration's value is a plain string, which TypeScript takes for another type.
_HEAD = """import type { Dashboard } from '@grafana/schema';
type Plain<T> = T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends (infer One)[] ? Plain<One>[]
  : { [Name in keyof T]: Plain<T[Name]> };
export const dashboard: Plain<Dashboard> = """
# What the Prometheus data source reads of an annotation; the schema is of all sources.
_OF_PROMETHEUS = {"expr", "step", "textFormat", "titleFormat"}
# What the library writes of every variable, and the schema knows of none.
_OF_NO_VARIABLE = {"auto", "auto_count", "auto_min"}


@pytest.fixture(scope="module")
def compiler() -> Path:
    """tsc beside the schema, installed from the lock once."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm: Debian has it in the package npm")
    folder = FOLDER / _LIST.name
    stamp, lock = folder / "list.sha256", _LIST / "package-lock.json"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != digest:
        folder.mkdir(parents=True, exist_ok=True)
        for file in _LIST.iterdir():
            shutil.copy(file, folder)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        stamp.write_text(digest)
    return folder / "node_modules" / ".bin" / "tsc"


def said(compiler: Path, name: str, dashboard: Any) -> str:
    """What the compiler has to say of it; nothing where it is one."""
    file = compiler.parents[2] / f"{name}.ts"
    file.write_text(f"{_HEAD}{json.dumps(dashboard)};\n")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext"]
    done = subprocess.run(
        [compiler, *options, "--moduleResolution", "bundler", file.name], cwd=file.parent,
        capture_output=True, text=True, timeout=_CHECK_S, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def read(name: str) -> Any:
    dashboard = json.loads((DASHBOARDS_FOLDER / name).read_text("utf-8"))
    known = (
        (dashboard["annotations"]["list"], _OF_PROMETHEUS),
        (dashboard["templating"]["list"], _OF_NO_VARIABLE),
    )
    for rows, fields in known:
        for row in rows:
            for field in fields:
                del row[field]
    return dashboard


@pytest.mark.parametrize("shown", DASHBOARDS, ids=lambda one: one.name)
def test_a_file_is_a_dashboard(compiler: Path, shown: Any) -> None:
    assert said(compiler, shown.name, read(shown.file)) == ""


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["time", "from"], 5, "not assignable to type 'string'"),
        (["panels", 1, "gridPos", "w"], "wide", "not assignable to type 'number'"),
        (["refreshes"], "30s", "'\"refreshes\"' does not exist"),
        (["templating", "list", 0, "type"], "sauce", "'\"sauce\"' is not assignable"),
    ],
)
def test_what_is_no_dashboard_is_seen(
    compiler: Path, path: list[Any], value: Any, complaint: str
) -> None:
    dashboard = read(DASHBOARDS[0].file)
    at = dashboard
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    assert complaint in said(compiler, "wrong", dashboard)
