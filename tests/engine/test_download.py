"""Downloads over a line that breaks, from a server that answers as ClearML's file server does."""

from __future__ import annotations

import contextlib
import errno
import gzip
import http.server
import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings, strategies as st

from tests.engine.cutting import CutLine, file_server
from tests.test_http import serving
from transformer_serving.engine.controller.files import download
from transformer_serving.engine.controller.files.download import (
    DiskFull,
    Download,
    DownloadFailed,
    Get,
    clear_unfinished,
    downloaded,
)
from transformer_serving.engine.errors import NotWanted, StorageError

CONTENT = random.Random(7).randbytes(600_000)
LITTLE = CONTENT[:10]
# The head of an answer and the last piece of one that breaks are shorter.
LOST = 70_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A folder and the port that it is served at."""
    folder = tmp_path_factory.mktemp("served")
    with file_server(folder) as port:
        yield folder, port


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE_S", 0.0)


def getter(port: int, name: str = "model.onnx") -> Get:
    def get(headers: Mapping[str, str]) -> requests.Response:
        return requests.get(
            f"http://127.0.0.1:{port}/{name}", headers=dict(headers), stream=True, timeout=20
        )

    return get


def write(folder: Path, content: bytes, name: str = "model.onnx") -> None:
    (folder / name).write_bytes(content)


def test_a_line_that_breaks_costs_no_byte_twice(served: tuple[Path, int], tmp_path: Path) -> None:
    folder, port = served
    write(folder, CONTENT)
    with CutLine(port, [200_000, 0, 220_000]).listening() as line:
        with downloaded("http://host/a/model.onnx", tmp_path / "d", getter(line.port)) as path:
            assert path.name == "model.onnx"
            assert path.read_bytes() == CONTENT
        ranges = line.ranges()
    assert not (tmp_path / "d").exists()
    starts = [int(row.removeprefix("bytes=").rstrip("-")) for row in ranges[1:]]
    # Nothing came of the second connection, so the third begins where that one did.
    assert ranges[0] == ""
    assert 200_000 - LOST <= starts[0] == starts[1] <= 200_000
    assert starts[1] + 220_000 - LOST <= starts[2] <= starts[1] + 220_000


def test_another_process_goes_on(served: tuple[Path, int], tmp_path: Path) -> None:
    folder, port = served
    write(folder, CONTENT)
    with CutLine(port, [150_000, *[0] * 5]).listening() as line:
        with pytest.raises(DownloadFailed, match=r"0\.1 MB of it came and are kept"):
            Download("http://host/model.onnx", tmp_path).fetch(getter(line.port))
        path = Download("http://host/model.onnx", tmp_path).fetch(getter(line.port))
        assert path.read_bytes() == CONTENT
        first = int(line.ranges()[-1].removeprefix("bytes=").rstrip("-"))
    assert 150_000 - LOST <= first <= 150_000


def test_a_file_that_changed_meanwhile_comes_whole(
    served: tuple[Path, int], tmp_path: Path
) -> None:
    folder, port = served
    write(folder, CONTENT)
    after = CONTENT[::-1]
    with CutLine(port, [150_000, *[0] * 5]).listening() as line:
        with pytest.raises(DownloadFailed):
            Download("http://host/model.onnx", tmp_path).fetch(getter(line.port))
        write(folder, after)
        os.utime(folder / "model.onnx", (1, 1))
        path = Download("http://host/model.onnx", tmp_path).fetch(getter(line.port))
    assert path.read_bytes() == after


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 300_000), max_size=8), st.integers(0, 600_000))
def test_wherever_it_breaks_the_bytes_are_those_of_the_file(
    served: tuple[Path, int],
    tmp_path_factory: pytest.TempPathFactory,
    cuts: list[int],
    size: int,
) -> None:
    folder, port = served
    write(folder, CONTENT[:size], "some.zip")
    target = tmp_path_factory.mktemp("target")
    with CutLine(port, cuts).listening() as line:
        for _ in range(3):
            try:
                path = Download("http://host/some.zip", target).fetch(getter(line.port, "some.zip"))
                break
            except DownloadFailed:
                # Five times in a row nothing came, which these cuts allow once.
                assert sum(cut < LOST for cut in cuts) >= 5
    assert path.read_bytes() == CONTENT[:size]


class Compressed(http.server.BaseHTTPRequestHandler):
    """Whatever it is asked for: a file that is called gzip's, as servers do with a .tgz, or was
    compressed on its way."""

    def do_GET(self) -> None:
        body = gzip.compress(CONTENT)
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        return


@pytest.mark.parametrize("cuts", [[], [200_000, 0, 599_000]], ids=["whole", "broken"])
def test_what_was_compressed_on_its_way_comes_as_it_was(tmp_path: Path, cuts: list[int]) -> None:
    with (
        serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Compressed)) as server,
        CutLine(server.server_port, cuts).listening() as line,
    ):
        path = Download("http://host/model.onnx", tmp_path).fetch(getter(line.port))
        # Nothing says which of its bytes those are that came, so all of it is asked for again.
        assert line.ranges() == [""] * (len(cuts) + 1)
    assert path.read_bytes() == CONTENT


class InChunks(Compressed):
    """Says nothing of a size; asked to go on, it sends more than it says."""

    def do_GET(self) -> None:
        goes_on = "Range" in self.headers
        self.send_response(206 if goes_on else 200)
        if goes_on:
            self.send_header("Content-Range", f"bytes 1-9/{len(LITTLE)}")
        self.send_header("ETag", '"one"')
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            for at in range(0, len(CONTENT), 50_000):
                self.wfile.write(b"%x\r\n%b\r\n" % (50_000, CONTENT[at : at + 50_000]))
            self.wfile.write(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("server", "begun"), [(Compressed, False), (InChunks, False), (InChunks, True)],
    ids=["compressed", "in chunks", "more than it says"],
)  # fmt: skip
def test_what_comes_without_its_size_is_no_more_than_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: type[Compressed], *, begun: bool
) -> None:
    monkeypatch.setattr(download, "_ROOM_EVERY", 100_000)
    room, most = 400_000, 0
    folder = tmp_path / "d"

    def fits(size: int, is_all: bool) -> None:
        nonlocal most
        assert is_all == (size == len(LITTLE))
        most = max(most, (folder / "part").stat().st_size if (folder / "part").exists() else 0)
        if size > room:
            raise StorageError("too large")

    if begun:
        folder.mkdir()
        (folder / "part").write_bytes(LITTLE[:1])
        (folder / "about.json").write_text(json.dumps({"size": len(LITTLE), "tag": '"one"'}))
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), server)) as one:
        with pytest.raises(StorageError, match="too large"):
            Download("http://host/model.onnx", folder, fits).fetch(getter(one.server_port))
        assert 0 < most <= room
        assert not folder.exists()
        room = len(CONTENT) + 200_000
        if not begun:
            path = Download("http://host/model.onnx", folder, fits).fetch(getter(one.server_port))
            assert path.read_bytes() == CONTENT


def test_a_server_that_begins_anew_each_time_is_given_up(tmp_path: Path) -> None:
    """Of each second connection more comes than of the one before, and never the file."""
    with (
        serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Compressed)) as server,
        CutLine(server.server_port, [200_000, 300_000] * 10).listening() as line,
    ):
        with pytest.raises(DownloadFailed):
            Download("http://host/model.onnx", tmp_path).fetch(getter(line.port))
        assert len(line.ranges()) == 7


@pytest.mark.parametrize("about", [b"", b"{}", b"[]", b'{"size": "x", "tag": 1}', b"\xff"])
def test_a_damaged_note_begins_anew(served: tuple[Path, int], tmp_path: Path, about: bytes) -> None:
    folder, port = served
    write(folder, CONTENT)
    (tmp_path / "part").write_bytes(b"of something else")
    (tmp_path / "about.json").write_bytes(about)
    path = Download("http://host/model.onnx", tmp_path).fetch(getter(port))
    assert path.read_bytes() == CONTENT


def test_more_than_the_file_has_is_not_its_beginning(
    served: tuple[Path, int], tmp_path: Path
) -> None:
    """As where a disk came back after a cut of power with other sizes."""
    folder, port = served
    write(folder, CONTENT)
    tag = requests.head(f"http://127.0.0.1:{port}/model.onnx", timeout=20).headers["ETag"]
    (tmp_path / "part").write_bytes(CONTENT + b"more")
    note = {"size": len(CONTENT), "tag": tag}
    (tmp_path / "about.json").write_text(json.dumps(note))
    path = Download("http://host/model.onnx", tmp_path).fetch(getter(port))
    assert path.read_bytes() == CONTENT


def test_what_a_full_disk_has_of_it_is_given_up(
    served: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the disk full."""
    folder, port = served
    write(folder, CONTENT)
    wrote = Download._write

    def full(self: Download, *arguments: Any) -> None:
        wrote(self, *arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Download, "_write", full)
        with pytest.raises(DiskFull) as failed:
            Download("http://host/model.onnx", tmp_path / "d").fetch(getter(port))
    assert str(failed.value) == f"the disk of {tmp_path} has no room for it"
    assert failed.value.needed == len(CONTENT)
    assert not (tmp_path / "d").exists()
    assert Download("http://host/model.onnx", tmp_path / "d").fetch(getter(port)).is_file()


def test_what_is_not_there_is_said_at_once(served: tuple[Path, int], tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="the server answered 404"):
        Download("http://host/none", tmp_path).fetch(getter(served[1], "none"))


def test_what_is_not_wanted_any_more_ends(served: tuple[Path, int], tmp_path: Path) -> None:
    """It may be long before it is whole, and what is wanted instead waits for it."""
    folder, port = served
    write(folder, CONTENT)
    asked = iter([True, True, False])
    with (
        pytest.raises(NotWanted, match="nobody asks for it any more"),
        downloaded("http://host/model.onnx", tmp_path, getter(port), is_wanted=lambda: next(asked)),
    ):
        pass
    assert 0 < (tmp_path / "part").stat().st_size < len(CONTENT)


def test_what_nobody_takes_up_goes_after_a_day(tmp_path: Path) -> None:
    fresh, old = tmp_path / "fresh", tmp_path / "old"
    for folder, hours in ((fresh, 20), (old, 30)):
        folder.mkdir()
        (folder / "part").write_bytes(b"half")
        moment = time.time() - hours * 3600
        for path in (folder / "part", folder):
            os.utime(path, (moment, moment))
    (tmp_path / "some.lock").touch()
    clear_unfinished(tmp_path)
    clear_unfinished(tmp_path / "not there")
    assert {path.name for path in tmp_path.iterdir()} == {"fresh", "some.lock"}
