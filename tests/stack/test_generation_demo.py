"""`up --demo generation`: a small language model is built, deployed, asked, and streams, also on
the page at / in a real Chromium."""

from __future__ import annotations

import ast
import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser import PROGRAM, Tab, browser
from tests.engine.triton_server import wait_until
from tests.stack.conftest import ROOT, Stack, started
from transformer_serving.desk.demo import EMBEDDER
from transformer_serving.desk.demo.generation import PROMPT

pytestmark = pytest.mark.long
needs_chromium = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium here: apt-get install chromium"
)
NAME = "text_generation"
LONG = {"text": PROMPT, "parameters": {"ignore_eos": True, "max_new_tokens": 110}}
# What would run or load where a text were taken for HTML.
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
SENT = "!document.querySelector('#send').disabled && !document.querySelector('#answered').hidden"
ANSWER = "document.querySelector('#answer').textContent"
CODE = "document.querySelector('#code').textContent"


@dataclass(frozen=True)
class Shown:
    """A stack with the demo, and what `up` printed."""

    stack: Stack
    printed: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with started(tmp_path_factory.mktemp("generation")) as stack:
        # Beside a stack that runs already: it goes on, and gets the endpoint.
        yield Shown(stack, stack.run("up", "--demo", "generation"))


def events(stack: Stack, body: dict[str, Any]) -> list[Any]:
    """What follows `data: ` in each event."""
    sent = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(stack.url(NAME), sent, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = answer.read().decode().split("\n\n")[:-1]
    assert all(row.startswith("data: ") for row in told)
    return [row.removeprefix("data: ") for row in told]


def test_it_says_what_it_is(shown: Shown) -> None:
    status, answer = shown.stack.post(NAME, {"text": PROMPT})
    assert status == 200
    assert answer["text"].startswith(
        "my name is transformer-serving, and I know a few of its pages"
    )
    assert answer["text"] in shown.printed
    assert f"{NAME} recites paragraphs" in shown.printed


def test_the_stream_says_the_same(shown: Shown) -> None:
    whole = shown.stack.post(NAME, {"text": PROMPT})[1]["text"]
    told = events(shown.stack, {"text": PROMPT, "stream": True})
    assert told[-1] == "[DONE]"
    pieces = [json.loads(row) for row in told[:-1]]
    assert PROMPT + "".join(row["text"] for row in pieces) == whole
    assert len(pieces) > 2
    assert pieces[-1]["finish_reason"] == "eos_token"
    assert pieces[-1]["generated_tokens"] >= len(pieces) - 1


def test_the_printed_curl_streams(shown: Shown) -> None:
    line = next(row for row in shown.printed.splitlines() if row.startswith("curl -N "))
    done = subprocess.run(
        ["bash", "-c", line.replace("curl -N", "curl -sN")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.startswith('data: {"index":0,"text":')
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_a_second_up_changes_nothing(shown: Shown) -> None:
    again = shown.stack.json("up", "--demo", "generation")
    assert [row["changed"] for row in again["deployed"]] == [False]


def test_it_is_at_the_recipes_path_of_a_stack_that_is_started_with_it(shown: Shown) -> None:
    """A stack that ran before keeps its environment, and `up` says so."""
    assert "POST /generate asks no endpoint: the stack ran before" in shown.printed
    shown.stack.run("down")
    printed = shown.stack.run("up", "--demo", "generation")
    line = next(row for row in printed.splitlines() if "/generate " in row)
    done = subprocess.run(
        ["bash", "-c", line.replace("curl", "curl -s", 1)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == shown.stack.post(NAME, {"text": PROMPT})[1]


def calls_of_the_openai_page() -> list[tuple[str, dict[str, Any]]]:
    """Path and body of each call of the page's first example."""
    page = (ROOT / "docs" / "protocols" / "openai.md").read_text("utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    found = []
    for node in ast.walk(ast.parse(example)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".create"):
            path = ast.unparse(node.func).removeprefix("client.").removesuffix(".create")
            body = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
            found.append((path.replace(".", "/"), body))
    return found


def test_the_first_example_of_the_openai_page_is_answered(shown: Shown) -> None:
    asked = []
    for path, body in calls_of_the_openai_page():
        if body["model"] == EMBEDDER:  # of the other demo
            continue
        request = urllib.request.Request(
            f"http://127.0.0.1:{shown.stack.base}/v1/{path}", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=60) as answer:
            said = answer.read().decode()
        asked.append(body["model"])
        assert "error" not in said, said
        assert body.get("stream", False) == said.endswith("data: [DONE]\n\n")
    assert asked == [NAME, NAME]


def test_pages_are_recited(shown: Shown) -> None:
    """Of a sentence of README the words that follow, which no other text has."""
    answer = shown.stack.post(NAME, {"text": "Serve a Hugging Face transformer on "})[1]
    assert "ClearML Serving and NVIDIA Triton" in answer["text"]


@pytest.fixture
def tab(shown: Shown, tmp_path: Path) -> Iterator[Tab]:
    """At the endpoint. Afterwards: nothing failed in the page, and nothing came from elsewhere."""
    address = f"http://127.0.0.1:{shown.stack.base}/"
    with browser(tmp_path) as new:
        made = new()
        made.resize(1200, 900)
        made.open(f"{address}#{NAME}")
        made.until(f"document.querySelector('#name').innerText === '{NAME}'")
        yield made
        assert made.faults == []
        assert [url for url in made.asked if not url.startswith((address, "about:"))] == []


def send(tab: Tab, body: Any) -> None:
    tab.write("#body", json.dumps(body))
    tab.press("Enter", control=True)
    tab.until(SENT)


@needs_chromium
def test_the_page_streams(shown: Shown, tab: Tab, tmp_path: Path) -> None:
    """Its example as it stands, then the demo's request; the same as the copied code says."""
    assert json.loads(tab.evaluate("document.querySelector('#body').value"))["stream"] is True
    whole = shown.stack.post(NAME, {"text": PROMPT})[1]["text"]
    grew = "new MutationObserver(() => grown.push(answer.textContent.length))"
    tab.evaluate(
        "window.grown = []; window.answer = document.querySelector('#answer');"
        f"{grew}.observe(answer, {{ childList: true }})"
    )
    # Long enough to come in several messages, which a browser that is short of processor time may
    # find all at once.
    for _ in range(5):
        tab.evaluate("grown.length = 0")
        send(tab, {**LONG, "stream": True})
        grown = tab.evaluate("grown")
        assert sorted(grown) == grown
        if len(set(grown)) > 1:
            break
    assert len(set(grown)) > 1, grown
    send(tab, {"text": PROMPT, "stream": True})
    assert tab.text("#outcome .status") == "200"
    assert tab.evaluate(ANSWER) == whole.removeprefix(PROMPT)
    pace = tab.text("#pace")
    assert "first text after" in pace
    assert "tokens a second" in pace
    assert "tokenize" in tab.text("#timing")
    assert tab.evaluate("document.querySelector('#stop').hidden")
    for name, command in (("curl", "bash"), ("Python", sys.executable)):
        tab.evaluate(f"document.getElementById('as-{name}').click()")
        script = tmp_path / name
        script.write_text(tab.evaluate(CODE))
        done = subprocess.run(
            [command, script], capture_output=True, text=True, timeout=60, check=True
        )
        rows = [row for row in done.stdout.split("\n") if row.startswith("data: {")]
        told = "".join(json.loads(row.removeprefix("data: "))["text"] for row in rows)
        assert PROMPT + told == whole, name


@needs_chromium
def test_the_page_stops_what_it_asked(shown: Shown, tab: Tab) -> None:
    """As soon as there is a text; what had come by then stays."""
    tab.evaluate(
        "new MutationObserver(() => document.querySelector('#stop').click())"
        ".observe(document.querySelector('#answer'), { childList: true })"
    )
    metrics = f"http://127.0.0.1:{shown.stack.base}/metrics"

    def ended() -> bool:
        with urllib.request.urlopen(metrics, timeout=60) as answer:
            rows = answer.read().decode().splitlines()
        return any("cut_sequences" in row and "disconnect" in row for row in rows) and any(
            "running_streams" in row and row.endswith(" 0.0") for row in rows
        )

    def stopped() -> bool:
        """Its text may be there, or in the engine be whole, before the page can stop it."""
        send(tab, {**LONG, "stream": True})
        if tab.text("#outcome .status") != "stopped":
            return False
        with contextlib.suppress(AssertionError):
            wait_until(ended, 5)
        return ended()

    assert any(stopped() for _ in range(10)), tab.evaluate(ANSWER)
    came = tab.evaluate(ANSWER)
    status, answer = shown.stack.post(NAME, LONG)
    assert status == 200
    whole = answer["text"].removeprefix(PROMPT)
    assert whole.startswith(came)
    assert len(came) < len(whole)


@needs_chromium
def test_errors_and_hostile_texts_are_shown_as_text(tab: Tab) -> None:
    send(tab, {"text": HOSTILE, "stream": True, "parameters": {"max_new_tokens": 0}})
    assert tab.text("#outcome .status") == "400"
    assert json.loads(tab.evaluate(ANSWER))["code"] == "invalid_field"
    # The gateway's own stream, with an error in its middle that no healthy engine has.
    told = [
        {"index": 0, "text": HOSTILE},
        {"code": "engine_failed", "message": HOSTILE, "field": None, "limit": None, "got": None},
    ]
    stream = f"data: {json.dumps(told[0])}\n\nevent: error\ndata: {json.dumps(told[1])}\n\n"
    tab.evaluate(
        f"window.fetch = async () => new Response({json.dumps(stream)}, "
        "{ headers: { 'content-type': 'text/event-stream' } })"
    )
    send(tab, {"text": "a", "stream": True})
    assert tab.text("#outcome .status") == "engine_failed"
    answer = tab.evaluate(ANSWER)
    assert answer.startswith(HOSTILE)
    assert json.loads(answer.removeprefix(HOSTILE)) == told[1]
    assert tab.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in tab.evaluate("document.title")
