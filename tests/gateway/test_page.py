"""The pages for a browser as HTTP sends them. tests/stack/test_pages_in_a_browser.py looks
at them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.browser import PROGRAM, browser
from tests.gateway.conftest import Server, Session
from transformer_serving.gateway import page
from transformer_serving.gateway.page.files import FILES
from transformer_serving.gateway.settings import PAGE

ADDRESS = re.compile(rb"(?:https?:)?//[\w.-]+\.\w{2,}")
# What names a namespace is asked for by nobody.
NAMESPACE = b"http://www.w3.org/2000/svg"
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def without(session: Session) -> Iterator[Server]:
    server = session.gateway(**{PAGE.name: "0"}).start()
    try:
        yield server.wait_for("/health/ready")
    finally:
        server.stop()


@pytest.mark.parametrize("path", FILES)
def test_a_file_as_it_is_sent(gateway: Server, path: str) -> None:
    reply = gateway.ask("GET", path)
    headers = reply.headers
    assert reply.status == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-request-id"]
    assert headers["content-type"].startswith(KINDS[FILES[path].rpartition(".")[2]])
    assert not ADDRESS.search(reply.raw.replace(NAMESPACE, b"")), "something from elsewhere"
    head = gateway.ask("HEAD", path)
    assert (head.status, head.raw) == (200, b"")
    assert head.headers["content-length"] == str(len(reply.raw))


@pytest.mark.parametrize("path", FILES)
def test_who_has_it_is_told_so(gateway: Server, path: str) -> None:
    etag = gateway.ask("GET", path).headers["etag"]
    for known in (etag, f'"other", {etag}', f"W/{etag}"):
        reply = gateway.ask("GET", path, headers={"if-none-match": known})
        assert (reply.status, reply.raw, reply.headers["etag"]) == (304, b"", etag)
    assert gateway.ask("GET", path, headers={"if-none-match": '"older"'}).status == 200


def test_the_pages_hold_no_endpoint_and_no_script_of_their_own(gateway: Server) -> None:
    """Only files of this gateway, by addresses that also hold behind a proxy's prefix."""
    for path in ("/", "/docs"):
        html = gateway.ask("GET", path).raw.decode()
        assert not re.search(r"<script>|<style|\son\w+=|style=", html)
        addresses = re.findall(r'(?:href|src)="([^"#]+)"', html)
        assert addresses
        for address in addresses:
            assert not address.startswith("/")
            assert gateway.ask("GET", f"/{address.removeprefix('./')}").status == 200
        for name in ("ours", "other", "updated"):
            assert not re.search(rf"\b{name}\b", html)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 404), ("PUT", "/page/style.css", 404), ("GET", "/page/", 404),
        ("GET", "/page/../settings.py", 404), ("GET", "/page/files.py", 404), ("GET", "//", 404),
        ("GET", "/page/%2e%2e/settings.py", 404), ("GET", "/docs/oauth2-redirect", 404),
    ],
)  # fmt: skip
def test_nothing_else_is_there(gateway: Server, method: str, path: str, status: int) -> None:
    assert gateway.ask(method, path).status == status


def test_the_endpoints_that_are_there(gateway: Server) -> None:
    rows = gateway.ask("GET", "/page/endpoints").json["endpoints"]
    assert [row["name"] for row in rows] == ["broken", "other", "ours", "ours/2", "updated"]
    # None of them is of this kit; tests/stack asks some that are.
    assert all(row["card"] is None and row["example"] == {} for row in rows)


@pytest.mark.parametrize("path", FILES)
def test_without_the_setting_there_is_none(without: Server, path: str) -> None:
    assert without.ask("GET", path).status == 404
    assert without.ask("GET", "/openapi.json").status == 200
    assert without.post("ours", {"text": "a"}).status == 200


# As clearml-serving takes them, whatever the page has of its own.
NAMES = ("first", "main", "/main", "a/2")


class Played(BaseHTTPRequestHandler):
    """The page's files, and endpoints of these names."""

    def do_GET(self) -> None:
        if self.path == "/page/endpoints":
            rows: list[Any] = [{"name": name, "card": None, "example": {}} for name in NAMES]
            raw, kind = orjson.dumps({"endpoints": rows}), "application/json"
        else:
            name = FILES[self.path]
            raw = Path(page.__file__).with_name(name).read_bytes()
            kind = KINDS[name.rpartition(".")[2]]
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium")
def test_an_endpoint_of_any_name_is_chosen(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Played) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with browser(tmp_path) as new:
                tab = new()
                tab.open(f"http://127.0.0.1:{server.server_port}/")
                for at, name in (*enumerate(NAMES), (0, NAMES[0])):
                    tab.until(f"document.querySelectorAll('#endpoints a').length > {at}")
                    tab.evaluate(f"document.querySelectorAll('#endpoints a')[{at}].click()")
                    tab.until(f"document.querySelector('#name').innerText === '{name}'")
                    tab.evaluate("document.querySelector('.skip').click()")
                    tab.until("document.activeElement.tagName === 'MAIN'")
                    assert tab.text("#name") == name
                assert tab.faults == []
        finally:
            server.shutdown()
