"""A full disk, a download that ends early, and a clock that jumps back."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.small_disk import fill, small_disk
from tests.stack.conftest import started
from tests.stack.desk import THEIRS, Desk
from tests.stack.small_bundles import TEXT, Parts, write_small

pytestmark = pytest.mark.long

BODY = {"text": TEXT}


@pytest.mark.spare
def test_a_full_disk_in_the_model_store(tmp_path: Path) -> None:
    """Old answers go on, status names the cause, and the update comes once there is room."""
    state = tmp_path / "stack"
    state.mkdir(mode=0o700)
    with (
        small_disk(state / "triton" / "models", 4) as models,
        small_disk(state / "control-plane", 16) as uploads,
        started(state) as stack,
    ):
        first, second = (
            write_small(tmp_path / str(scale), Parts(scale=scale)) for scale in (1, -1)
        )
        stack.run("deploy", str(first.folder), "--endpoint", "full")
        good = stack.seen("full", BODY)
        filler = fill(models)
        with ThreadPoolExecutor(1) as pool:
            arguments = ("deploy", str(second.folder), "--endpoint", "full", "--timeout", "300")
            deploying = pool.submit(stack.run, *arguments)
            stack.until(
                lambda: "No space left" in (stack.rows()["full"]["reason"] or ""), "the cause"
            )
            assert stack.seen("full", BODY) == good
            assert not deploying.done()
            filler.unlink()
            deploying.result()
        assert stack.seen("full", BODY).version != good.version
        filler = fill(uploads)
        said = stack.run("deploy", str(first.folder), "--endpoint", "other", code=1)
        assert "clearml-serving model upload failed" in said
        assert "insufficient disk space" in said
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


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the wall clock of the stack that is started next, by seconds."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a moved clock needs a C compiler")
    library, offset = tmp_path / "shifted_clock.so", tmp_path / "offset"
    source = str(Path(__file__).with_name("shifted_clock.c"))
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    offset.write_bytes(bytes(8))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("SHIFTED_CLOCK", str(offset))

    def move(seconds: int) -> None:
        with offset.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    return move


@pytest.mark.spare
def test_a_clock_set_back_an_hour(tmp_path: Path, clock: Callable[[int], None]) -> None:
    """Logins, syncs, updates, the way back and the watchdog go on; nothing waits for the time."""
    with started(tmp_path / "stack") as stack:
        first, second, third = (write_small(tmp_path / str(n), Parts(scale=n)) for n in (1, 2, 3))
        before = stack.parts()
        for bundle in (first, second):
            stack.run("deploy", str(bundle.folder), "--endpoint", "timed")
        clock(-3600)
        # The grace of the first one ends, too.
        now = [second.manifest.bundle_version]
        stack.until(lambda: stack.rows()["timed"]["versions_loaded"] == now, "the old one goes")
        stack.run("deploy", str(third.folder), "--endpoint", "timed")
        assert stack.seen("timed", BODY).version == third.manifest.bundle_version
        assert stack.json("rollback", "timed")["bundle_version"] == second.manifest.bundle_version
        assert {name: part["pid"] for name, part in stack.parts().items()} == {
            name: part["pid"] for name, part in before.items()
        }
