"""A full disk, a download that ends early, and a clock that jumps back."""

from __future__ import annotations

import functools
import http.server
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.stack.conftest import started
from tests.stack.desk import THEIRS, Desk
from tests.stack.small_bundles import TEXT, Parts, write_small

BODY = {"text": TEXT}
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size; skips where this user cannot mount one."""
    folder.mkdir(parents=True)
    size = f"size={megabytes}m"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk needs the right to mount tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb") as file:
        file.truncate(0)
        try:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        except OSError:
            return filler


def test_a_full_disk_in_the_model_store(tmp_path: Path) -> None:
    """Old answers go on, status names the cause, and the update comes once there is room."""
    state = tmp_path / "stack"
    with (
        small_disk(state / "triton" / "models", 4) as models,
        small_disk(state / "control-plane" / "files", 8) as files,
        started(state) as stack,
    ):
        first, second = (
            write_small(tmp_path / str(scale), Parts(scale=scale)) for scale in (1, -1)
        )
        stack.run("deploy", str(first.folder), "--endpoint", "full")
        good = stack.seen("full", BODY)
        filler = fill(models)
        arguments = ("deploy", str(second.folder), "--endpoint", "full")
        stack.run(*arguments, "--timeout", "5", code=1)
        stack.until(lambda: "No space left" in (stack.rows()["full"]["reason"] or ""), "the cause")
        assert stack.seen("full", BODY) == good
        filler.unlink()
        stack.until(lambda: stack.seen("full", BODY).version != good.version, "the new bundle")
        filler = fill(files)
        said = stack.run("deploy", str(first.folder), "--endpoint", "other", code=1)
        assert "clearml-serving model upload failed" in said
        filler.unlink()
        stack.run("deploy", str(first.folder), "--endpoint", "other")


class EndsEarly(http.server.SimpleHTTPRequestHandler):
    """Promises the whole file and closes after half of it, until `whole` is set."""

    whole = threading.Event()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        outputfile.write(content if self.whole.is_set() else content[: len(content) // 2])
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_download_that_ends_early(desk: Desk) -> None:
    """Half a model is never loaded; the next try gets the whole one."""
    path = desk.model(2.0, "half.onnx")
    handler = functools.partial(EndsEarly, directory=str(path.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/half.onnx"
    try:
        desk.add("half", "--model-id", desk.upload("half", "--url", address))
        desk.stack.until(lambda: bool((desk.stack.rows().get("half") or {}).get("reason")
                         not in (None, "loading")), "the cause")  # fmt: skip
        assert desk.stack.post("half", THEIRS)[0] != 200
        EndsEarly.whole.set()
        desk.until_answers("half", 2.0)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.skipif(not FAKETIME.exists(), reason="libfaketime is not installed")
def test_a_clock_set_back_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logins, syncs, updates and the watchdog go on; nothing waits for the old time to come."""
    offset = tmp_path / "offset"
    offset.write_text("+0s")
    for name, value in {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with started(tmp_path / "stack") as stack:
        first, second, third = (write_small(tmp_path / str(n), Parts(scale=n)) for n in (1, 2, 3))
        before = stack.parts()
        for bundle in (first, second):
            stack.run("deploy", str(bundle.folder), "--endpoint", "timed")
        offset.write_text("-3600s")
        # The grace of the first one ends, too.
        now = [second.manifest.bundle_version]
        stack.until(lambda: stack.rows()["timed"]["versions_loaded"] == now, "the old one goes")
        stack.run("deploy", str(third.folder), "--endpoint", "timed")
        assert stack.seen("timed", BODY).version == third.manifest.bundle_version
        assert {name: part["pid"] for name, part in stack.parts().items()} == {
            name: part["pid"] for name, part in before.items()
        }
