"""How the page takes a stream apart, where node is there to do it."""

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
# Each piece of the stream comes a tenth of a second after the one before it.
TELL = """
import { Told, reader } from "./events.mjs";
const told = new Told(1000);
const read = reader();
let now = 1000;
for (const piece of JSON.parse(process.argv[2])) {
  now += 100;
  for (const event of read(piece)) told.add(event, now);
}
const { text, pace, error, isWhole } = told;
console.log(JSON.stringify({ text, pace, error, isWhole }));
"""
HOSTILE = "<img src=x onerror=alert(1)>\u2028\u2029 \\n\\n data: [DONE]"


def piece(text: str, index: int = 0) -> str:
    # As it is sent: JSON does not ask to escape what JavaScript takes for the end of a line.
    said = json.dumps({"index": index, "text": text}, ensure_ascii=False)
    return f"data: {said}\n\n"


def end(tokens: int, index: int = 0) -> str:
    said = {"index": index, "text": "", "finish_reason": "length", "generated_tokens": tokens}
    return f"data: {json.dumps(said)}\n\n"


DONE = "data: [DONE]\n\n"


@pytest.fixture
def told(tmp_path: Path) -> Any:
    code = ROOT / "transformer_serving" / "gateway" / "page" / "events.js"
    (tmp_path / "events.mjs").write_bytes(code.read_bytes())
    (tmp_path / "tell.mjs").write_text(TELL)

    def tell(*pieces: str) -> Any:
        command = [str(NODE), str(tmp_path / "tell.mjs"), json.dumps(pieces)]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return tell


def test_text_its_tokens_and_how_fast_they_came(told: Any) -> None:
    found = told(piece("my "), piece("name"), end(2) + DONE)
    assert found["text"] == "my name"
    assert found["isWhole"]
    assert found["pace"] == ["first text after 100 ms", "2 tokens", "7 tokens a second"]


def test_however_the_stream_is_cut(told: Any) -> None:
    stream = piece("a") + piece(HOSTILE) + end(9) + DONE
    for size in (1, 2, 7, 1000):
        found = told(*(stream[at : at + size] for at in range(0, len(stream), size)))
        assert found["text"] == "a" + HOSTILE
        assert found["isWhole"]


def test_what_is_not_whole_is_not_told_as_whole(told: Any) -> None:
    found = told(piece("a"), piece("b")[:-1])
    assert (found["text"], found["isWhole"], found["error"]) == ("a", False, None)
    assert found["pace"] == ["first text after 100 ms"]
    assert told()["pace"] == []


def test_an_error_after_the_first_event(told: Any) -> None:
    error = {"code": "timeout", "message": "no", "field": None, "limit": 1, "got": None}
    found = told(piece("a"), f"event: error\ndata: {json.dumps(error)}\n\n")
    assert (found["text"], found["error"], found["isWhole"]) == ("a", error, False)


def test_several_texts_have_a_number_each(told: Any) -> None:
    found = told(piece("b", 1), piece("a"), piece("B", 1), end(2, 1), end(1), DONE)
    assert found["text"] == "1: a\n\n2: bB"
    assert found["pace"][1] == "3 tokens"


def test_comments_and_lines_of_other_fields_are_none(told: Any) -> None:
    assert told(": waiting\n\n", "id: 4\n" + piece("a"), "retry: 5\n\n")["text"] == "a"
