"""The pages at / and /docs as a person has them: a real Chromium asks every task."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import PROGRAM, Tab, browser
from tests.stack.conftest import EveryTask
from tests.stack.shown_tasks import BODIES, NAMES
from transformer_serving.contract.heads import TASKS

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]
# What would run, load or show where an answer or a name were taken for HTML.
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
HIDDEN_ANSWER = "document.querySelector('#answered').hidden"


@pytest.fixture(scope="module")
def address(every_task: EveryTask) -> str:
    return f"http://127.0.0.1:{every_task.stack.base}/"


@pytest.fixture(scope="module")
def tabs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Tab]]:
    with browser(tmp_path_factory.mktemp("browser")) as new:
        yield new


@pytest.fixture
def tab(tabs: Callable[[], Tab], address: str) -> Iterator[Tab]:
    """Afterwards: nothing failed in the page, and nothing came from elsewhere."""
    made = tabs()
    made.resize(1200, 900)
    yield made
    assert made.faults == []
    assert [url for url in made.asked if not url.startswith((address, "about:"))] == []


def show(tab: Tab, address: str, task: str) -> None:
    tab.open(f"{address}#{NAMES[task]}")
    tab.until(f"document.querySelector('#name').innerText === '{NAMES[task]}'")


def send(tab: Tab, body: str) -> None:
    tab.evaluate("document.querySelector('#answered').hidden = true")
    tab.write("#body", body)
    tab.press("Enter", control=True)
    tab.until(f"!{HIDDEN_ANSWER}")


def answer(tab: Tab) -> Any:
    return json.loads(tab.evaluate("document.querySelector('#answer').textContent"))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_asked(tab: Tab, address: str, every_task: EveryTask, task: str) -> None:
    show(tab, address, task)
    # The example as it stands, then a body of one's own.
    tab.evaluate("document.querySelector('#send').click()")
    tab.until(f"!{HIDDEN_ANSWER}")
    assert tab.text("#outcome .status") == "200"
    send(tab, BODIES[task])
    assert tab.text("#outcome .status") == "200"
    assert "ms" in tab.text("#outcome")
    assert answer(tab) == every_task.stack.post(NAMES[task], json.loads(BODIES[task]))[1]
    assert {"tokenize", "queue", "infer"} <= set(tab.text("#timing").split())
    widths = "[...document.querySelectorAll('.bar')].map(e => e.getBoundingClientRect().width)"
    assert all(width > 0 for width in tab.evaluate(widths))
    assert task in tab.text("#facts")


def test_the_code_answers_the_same(tab: Tab, address: str, tmp_path: Path) -> None:
    body = {"text": 'it\'s "so" $HOME `x` \\ ünï', "parameters": {"top_k": None}, "truncate": True}
    show(tab, address, "text-classification")
    send(tab, json.dumps(body))
    for name, command in (("curl", ["bash"]), ("Python", [sys.executable])):
        tab.evaluate(f"document.getElementById('as-{name}').click()")
        script = tmp_path / name
        script.write_text(tab.evaluate("document.querySelector('#code').textContent"))
        done = subprocess.run(
            [*command, script], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        # Python prints its literals.
        shown = done.stdout if name == "curl" else done.stdout.replace("'", '"')
        assert json.loads(shown) == answer(tab)


def test_an_error_is_shown(tab: Tab, address: str) -> None:
    show(tab, address, "fill-mask")
    send(tab, '{"text": "nothing to fill in"}')
    assert tab.text("#outcome .status") == "422"
    assert answer(tab)["code"] == "impossible"
    send(tab, "no JSON")
    assert tab.text("#outcome .status") == "400"
    assert answer(tab)["code"] == "malformed_body"
    assert "no JSON" in tab.text("#code")


def test_an_address_that_is_cut_shows_the_first_endpoint(tab: Tab, address: str) -> None:
    for cut in ("50%", "%C3"):
        tab.open(f"{address}#{cut}")
        tab.until("document.querySelector('#name').innerText")
        assert tab.evaluate("document.querySelector('#endpoints a').ariaCurrent") == "true"


def test_a_hostile_answer_is_text(tab: Tab, address: str) -> None:
    show(tab, address, "zero-shot-classification")
    send(tab, json.dumps({"text": HOSTILE, "candidate_labels": [HOSTILE, "tea"]}))
    assert answer(tab)["sequence"] == HOSTILE
    assert HOSTILE in json.loads(json.dumps(answer(tab)))["labels"]
    tab.open(f"{address}#{HOSTILE}")
    tab.until("document.querySelector('#name').innerText")
    assert tab.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in tab.evaluate("document.title")


def test_with_the_keyboard_alone(tab: Tab, address: str) -> None:
    """From the first key to the answer and the code in another language."""
    tab.open(address)
    tab.until("document.querySelector('#name').innerText")
    focused = "document.activeElement.id || document.activeElement.innerText.split('\\n')[0]"
    seen: list[str] = []
    while not seen or seen[-1] != "reviews":
        tab.press("Tab")
        seen.append(tab.evaluate(focused))
        assert len(seen) < 30, seen
    assert seen[0] == "Skip to the request"
    tab.press("Enter")
    tab.until("document.querySelector('#name').innerText === 'reviews'")
    for wanted in ("reset", "body", "send", "as-curl"):
        while tab.evaluate(focused) != wanted:
            seen.append(tab.evaluate(focused))
            tab.press("Tab")
            assert len(seen) < 60, seen
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert tab.evaluate(outline) == "solid", wanted
        if wanted == "send":
            tab.press("Enter")
            tab.until(f"!{HIDDEN_ANSWER}")
            tab.until("!document.querySelector('#send').disabled")
            tab.evaluate("document.querySelector('#send').focus()")
    assert tab.text("#outcome .status") == "200"
    tab.press("ArrowRight")
    assert tab.evaluate(focused) == "as-Python"
    assert "import requests" in tab.text("#code")
    tab.press("End")
    tab.press("ArrowRight")
    assert tab.evaluate(focused) == "as-curl"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_stands_beside_the_window(tab: Tab, address: str, width: int, scheme: str) -> None:
    """Also with a long answer, at the width of a small telephone."""
    tab.prefer(scheme)
    tab.resize(width, 740)
    show(tab, address, "feature-extraction")
    send(tab, '{"text": "' + "tea in Oslo " * 9 + '"}')
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    shown = "document.querySelector('#endpoints [aria-current]').getBoundingClientRect()"
    assert 0 <= tab.evaluate(f"{shown}.left") < width
    tab.open(f"{address}docs")
    tab.until("document.querySelectorAll('details').length")
    tab.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    tab.until(
        "document.querySelectorAll('.inner').length === document.querySelectorAll('details').length"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") == width


def test_the_labels_of_what_is_asked(tab: Tab, address: str) -> None:
    """As a screen reader is told them."""
    show(tab, address, "rerank")
    tab.call("Accessibility.enable")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    }
    assert {
        ("textbox", "Request"), ("button", "Send"), ("button", "Example"), ("button", "Copy"),
        ("tab", "curl"), ("navigation", "Endpoints"), ("heading", "ranking"),
    } <= named  # fmt: skip
    assert ("button", "") not in named
    assert ("link", "") not in named


def test_the_document_is_shown(tab: Tab, address: str) -> None:
    tab.open(f"{address}docs")
    tab.until("document.querySelectorAll('details').length")
    shown = tab.text("#operations")
    assert all(f"/serve/{name}" in shown for name in NAMES.values())
    tab.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    tab.until("document.querySelector('#operations').innerText.includes('candidate_labels')")
    assert "422" in tab.text("#operations")
