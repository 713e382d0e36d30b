"""What is sent: lines of a file, or texts of given lengths."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as some

from preprocess.answers import TASKS
from tests.free_ports import free_port
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune import requests

DOCS = Path(__file__).parents[2] / "docs"
TEXT = {"text": "a golden text"}
# What str.splitlines ends a line at, too. The last three JSON takes as they are.
NO_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def file_of(folder: Path, *lines: str) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_a_line_is_a_body_or_a_text(tmp_path: Path) -> None:
    path = file_of(tmp_path, '{"text": ["one", "two"]}', "", "plain words", "[1, 2]")
    found = requests.of_file(path)
    assert [(one.label, json.loads(one.body), one.texts) for one in found] == [
        ("line 1", {"text": ["one", "two"]}, 2),
        ("line 3", {"text": "plain words"}, 1),
        ("line 4", {"text": "[1, 2]"}, 1),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_ends_where_an_editor_ends_it(tmp_path: Path, end: str) -> None:
    texts = [f"before{mark}after" for mark in NO_ENDS]
    bodies = [json.dumps({"text": text}, ensure_ascii=False) for text in texts[-3:]]
    path = tmp_path / "requests"
    path.write_bytes("".join(f"{line}{end}" for line in (*texts, *bodies)).encode())
    found = requests.of_file(path)
    assert [json.loads(one.body)["text"] for one in found] == [*texts, *texts[-3:]]
    assert found[-1].label == f"line {len(texts) + 3}"


def test_of_a_long_file_evenly_spaced_lines_stand_for_it(tmp_path: Path) -> None:
    path = file_of(tmp_path, *(f"text {number}" for number in range(3 * requests.MOST)))
    found = requests.of_file(path)
    assert len(found) == requests.MOST
    assert [json.loads(one.body)["text"] for one in found[:2]] == ["text 0", "text 3"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no request"), (b"\n \n", "no request"), (b"a\n{broken", "line 2"), (b"\xff", "UTF-8")],
)
def test_what_is_no_file_of_requests_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "requests"
    path.write_bytes(content)
    with pytest.raises(Failure, match=said):
        requests.of_file(path)
    with pytest.raises(Failure, match="cannot be read"):
        requests.of_file(tmp_path)


LEAVES = some.none() | some.booleans() | some.integers() | some.text(max_size=5)
BODIES = some.dictionaries(some.text(max_size=5), LEAVES | some.lists(LEAVES, max_size=3))


def test_any_line_is_a_body_a_text_or_refused() -> None:
    seen = set()

    @given(
        some.text(min_size=1, max_size=60)
        | BODIES.map(json.dumps)
        | some.builds(lambda body, end: json.dumps(body)[:-end], BODIES, some.integers(1, 9))
    )
    def check(line: str) -> None:
        try:
            body = requests._body(Path("a"), 1, line)
        except Failure:
            assert line.lstrip().startswith("{")
            seen.add("refused")
            return
        assert isinstance(body, dict)
        seen.add("text" if body == {"text": line} else "body")

    check()
    assert seen == {"body", "text", "refused"}


def test_a_body_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(Failure, match="no JSON"):
        requests._body(Path("a"), 1, '{"a":' * 100_000)


def test_lengths_take_the_place_of_the_golden_text() -> None:
    found = requests.of_lengths("4:3,8", "zero-shot-classification", {**TEXT, "labels": ["a"]})
    bodies = [json.loads(one.body) for one in found]
    assert {len(body["text"].split()) for body in bodies} == {4, 8}
    assert all(body["labels"] == ["a"] for body in bodies)


def test_an_endpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    address = Address.of(f"http://127.0.0.1:{free_port()}/serve/a")
    with pytest.raises(Failure, match=f"nothing answers at 127.0.0.1:{address.port}: "):
        requests.check_answered(address, requests.of_file(file_of(tmp_path, "a text")))


def test_a_task_that_takes_more_than_any_text_needs_a_file() -> None:
    """And both pages that show `--lengths` say which these are."""
    refused = set()
    for task, kind in TASKS.items():
        golden = dict.fromkeys(kind.form.names, "a text")  # type: ignore[attr-defined]
        try:
            requests.of_lengths("8", task, golden)
        except Failure:
            refused.add(task)
            with pytest.raises(Failure, match="--requests"):
                requests.of_lengths("8", task, golden)
    for name, place in (("tuning.md", "That is for tasks"), ("coming-from.md", "`--lengths` is")):
        said = (DOCS / name).read_text("utf-8").partition(place)[2].partition("\n\n")[0]
        assert set(re.findall(r"[a-z]+-[a-z]+|rerank", said)) & set(TASKS) == refused, name
