"""The page's question for a key, as a person meets it: Chromium before a gateway with keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import PROGRAM, Tab, browser
from tests.gateway.conftest import Server
from tests.gateway.text_serving import TextServing
from transformer_serving.contract.keys import Key, digest_of, new_key, now

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]
ALL, BOUND, METRICS, UNKNOWN = (new_key() for _ in range(4))
ROWS = (
    Key("all", digest_of(ALL), now()),
    Key("bound", digest_of(BOUND), now(), ("vectors",)),
    Key("metrics", digest_of(METRICS), now(), metrics=True),
)
SHOWN = "[...document.querySelectorAll('#endpoints a')].map(e => e.innerText.split('\\n')[0])"
KEPT = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"


@pytest.fixture(scope="module")
def door(text_serving: TextServing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with text_serving.behind_keys(tmp_path_factory.mktemp("keys"), *ROWS) as server:
        yield server


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    with browser(tmp_path) as new:
        made = new()
        yield made
        assert made.faults == []


def enter(tab: Tab, key: str) -> None:
    tab.write("#key", key)
    tab.press("Enter")


def shown(tab: Tab, selector: str) -> bool:
    return not tab.evaluate(f"document.querySelector({selector!r}).hidden")


@pytest.mark.parametrize("page", ["", "docs"])
def test_a_key_is_asked_for_and_kept_nowhere(tab: Tab, door: Server, page: str) -> None:
    address = f"http://127.0.0.1:{door.port}/{page}"
    tab.open(address)
    tab.until("!document.querySelector('#door').hidden")
    assert not shown(tab, "#room")
    assert not shown(tab, "#notice")
    assert tab.evaluate("document.activeElement.id") == "key"
    assert "vectors" not in tab.evaluate("document.documentElement.outerHTML")
    for wrong in (UNKNOWN, METRICS):
        enter(tab, wrong)
        tab.until("!document.querySelector('#notice').hidden")
        assert "key" in tab.text("#notice")
        assert not shown(tab, "#room")
        assert tab.evaluate("document.querySelector('#key').value") == ""
        tab.evaluate("document.querySelector('#notice').hidden = true")
    # As a chat has it: no header can hold it, so nobody is asked.
    enter(tab, f"{ALL}\N{HORIZONTAL ELLIPSIS}")
    tab.until("!document.querySelector('#notice').hidden")
    assert "no key has" in tab.text("#notice")
    assert tab.evaluate("document.querySelector('#key').value") == ""
    enter(tab, ALL)
    tab.until("!document.querySelector('#room').hidden")
    assert not shown(tab, "#door")
    everything = tab.evaluate(KEPT) + tab.evaluate("document.documentElement.outerHTML")
    assert ALL not in everything
    assert METRICS not in everything
    tab.evaluate("document.querySelector('#forget').click()")
    tab.until("document.readyState === 'complete' && !document.querySelector('#door').hidden")
    assert not shown(tab, "#room")


def test_a_key_shows_the_endpoints_that_it_may_ask(tab: Tab, door: Server) -> None:
    tab.open(f"http://127.0.0.1:{door.port}/")
    tab.until("!document.querySelector('#door').hidden")
    enter(tab, BOUND)
    tab.until("document.querySelector('#name').innerText")
    assert tab.evaluate(SHOWN) == ["vectors"]
    tab.evaluate("document.querySelector('#send').click()")
    tab.until("!document.querySelector('#answered').hidden")
    assert tab.text("#outcome .status") == "200"
    # The code of the call names a variable, not the key.
    assert BOUND not in tab.evaluate("document.documentElement.outerHTML")
    assert "authorization" in tab.text("#code").lower()
