"""Whom the desk shows the operator's ClearML token: a model's address may lead anywhere."""

from __future__ import annotations

import http.server
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.test_http import serving
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.failure import Failure

Said = list[tuple[str, str | None]]
Start = Callable[[], tuple[str, Said]]


@contextmanager
def server() -> Iterator[tuple[str, Said]]:
    """Logs everybody in, and has every file; its address and who asked it for what with what."""
    said: Said = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.append((self.path, self.headers.get("Authorization")))
            body = json.dumps({"data": {"token": "T"}}).encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as listening:
        yield f"http://127.0.0.1:{listening.server_port}", said


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as running:
        yield lambda: running.enter_context(server())


@pytest.fixture
def api(start: Start) -> ClearmlApi:
    return ClearmlApi({
        "CLEARML_API_HOST": start()[0],
        "CLEARML_API_ACCESS_KEY": "key",
        "CLEARML_API_SECRET_KEY": "secret",
    })  # fmt: skip


def test_the_file_server_and_the_api_are_shown_it(start: Start, tmp_path: Path) -> None:
    (plane, of_plane), (files, of_files) = start(), start()
    api = ClearmlApi({"CLEARML_API_HOST": plane, "CLEARML_FILES_HOST": f"{files}/"})
    for place in (plane, files):
        api.download(f"{place}/a/model.zip", tmp_path / "file")
    assert of_plane[-1] == of_files[-1] == ("/a/model.zip", "Bearer T")


def test_nobody_else_is(api: ClearmlApi, start: Start, tmp_path: Path) -> None:
    elsewhere, said = start()
    api.download(f"{elsewhere}/a/model.zip", tmp_path / "file")
    assert said == [("/a/model.zip", None)]
    assert json.loads((tmp_path / "file").read_text())["data"]


@pytest.mark.parametrize("address", ["http://[1/x", "http://127.0.0.1:none/x", "s3://bucket/x"])
def test_an_address_that_is_none_is_refused(api: ClearmlApi, tmp_path: Path, address: str) -> None:
    with pytest.raises(Failure, match=r"no address of http|in s3 storage"):
        api.download(address, tmp_path / "file")
