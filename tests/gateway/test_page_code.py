"""The code that the page shows of a call, where node is there to write it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import ROOT

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")
SHOW = """
import { callOf, languages } from "./code.mjs";
const call = callOf("vectors", process.argv[2], "http://here/", false);
const rows = languages({ operations: ["openai.embeddings"] }, call);
console.log(JSON.stringify(Object.fromEntries(rows.map((row) => [row.name, row.write(call)]))));
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = ROOT / "transformer_serving" / "gateway" / "page" / "code.js"
    (tmp_path / "code.mjs").write_bytes(code.read_bytes())
    (tmp_path / "show.mjs").write_text(SHOW)
    return tmp_path


def shown(folder: Path, body: str) -> dict[str, str]:
    done = subprocess.run(
        [str(NODE), str(folder / "show.mjs"), body], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ({"text": "a"}, ['input="a",']),
        ({"inputs": ["a", "b"], "parameters": None, "truncate": None}, ['input=["a", "b"],']),
        (
            {"text": "a", "parameters": {"truncate_dim": 4, "normalize_embeddings": True}},
            ['input="a",', "dimensions=4,"],
        ),
    ],
)
def test_openais_call_is_the_same_one(folder: Path, body: Any, lines: list[str]) -> None:
    code = shown(folder, json.dumps(body))["openai"]
    compile(code, "shown", "exec")
    inner = code.partition("create(\n")[2].partition("\n)\n")[0]
    assert [line.strip() for line in inner.splitlines()] == ['model="vectors",', *lines]


@pytest.mark.parametrize(
    "body",
    [
        "no JSON",
        "null",
        '"a"',
        "[]",
        '{"text": []}',
        '{"text": [1]}',
        '{"text": "a", "inputs": "b"}',
        '{"text": "a", "truncate": true}',
        '{"text": "a", "timeout_ms": 100}',
        '{"text": "a", "parameters": {"prompt": "b"}}',
        '{"text": "a", "parameters": {"truncate_dim": 4}}',
        '{"text": "a", "parameters": {"normalize_embeddings": true}}',
        '{"source_sentence": "a", "sentences": ["b"]}',
        '{"inputs": {"source_sentence": "a", "sentences": ["b"]}}',
    ],
)
def test_a_call_that_openai_has_not_is_not_shown_as_its(folder: Path, body: str) -> None:
    assert shown(folder, body).keys() == {"curl", "Python"}
