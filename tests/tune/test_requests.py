"""What is sent: lines of a file, or texts of given lengths."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as some

from preprocess.answers import TASKS
from tests.bench.served import served
from tests.free_ports import free_port
from transformer_serving.desk.bench import load
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
        requests.answered(address, requests.of_file(file_of(tmp_path, "a text")))


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


class Sometimes:
    """It refuses texts that name a status, and answers no more after so many."""

    def __init__(self, most: int = 1 << 20) -> None:
        self.left = most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        said = json.loads(body + message["body"])["text"].rpartition(" ")[2]
        await asyncio.sleep(0 if self.left > 0 else 1)
        self.left -= 1
        status = int(said) if said.isdigit() else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def texts(tmp_path: Path, count: int, *last: str) -> tuple[load.Payload, ...]:
    return requests.of_file(file_of(tmp_path, *(f"a b{one}" for one in range(count)), *last))


def test_a_few_that_are_refused_are_left_out_and_said(tmp_path: Path) -> None:
    payloads = texts(tmp_path, 60, "too long 413", "impossible 422")
    with served(Sometimes()) as port:
        address = Address.of(f"http://127.0.0.1:{port}/")
        found = requests.answered(address, payloads)
        assert found.payloads == payloads[:60]
        [said] = found.remarks
        assert said.startswith("2 of 62 requests were refused and are left out, such as line 6")
        assert requests.answered(address, payloads[:60]) == requests.Answered(payloads[:60])
        with pytest.raises(Failure, match="2 of 12 requests got 422, such as line 1"):
            requests.answered(address, texts(tmp_path, 10, "a 422", "b 422"))
        with pytest.raises(Failure, match="1 of 61 requests got 503, such as line 61"):
            requests.answered(address, texts(tmp_path, 60, "b 503"))


def test_those_that_were_answered_in_time_stand_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = texts(tmp_path, 400)
    monkeypatch.setattr(requests, "_PATIENCE_S", 0.5)
    with served(Sometimes(most=20)) as port:
        found = requests.answered(Address.of(f"http://127.0.0.1:{port}/"), payloads)
    count = len(found.payloads)
    assert 20 <= count < 400
    assert set(found.payloads) < set(payloads)
    assert found.remarks == (
        f"{count} of 400 requests, chosen at random, stand for all: more were not answered within "
        "0 s",
    )
