"""`status --watch` and `logs --request` on a stack that is asked, changed, stopped and started."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.engine.triton_server import wait_until
from tests.stack.conftest import CLI, ROOT, Stack, started
from tests.stack.load import Client
from tests.stack.small_bundles import TEXT, Parts, write_small

pytestmark = pytest.mark.long
COLUMNS = 80
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LEFT_THE_SCREEN = "\x1b[?1049l"
LOAD: tuple[tuple[dict[str, Any], int], ...] = (
    ({"text": TEXT}, 200), ({"text": 1}, 400), ({"text": TEXT}, 200),
)  # fmt: skip


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with the endpoint `small`, whose gateway logs every request."""
    folder = tmp_path_factory.mktemp("watched")
    with started(folder / "stack", TRANSFORMER_SERVING_LOG_REQUESTS="1") as stack:
        bundle = write_small(folder / "bundle", Parts())
        stack.run("deploy", str(bundle.folder), "--endpoint", "small")
        yield stack


@contextlib.contextmanager
def loaded(stack: Stack) -> Iterator[None]:
    """Asked again and again, by one client."""
    ended = threading.Event()

    def ask() -> None:
        client = Client(stack.base)
        while not ended.wait(0.02):
            for body, status in LOAD:
                assert client.post("small", body).status == status
        client.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def begun(stack: Stack, *options: str, output: int | IO[Any]) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        [CLI, "status", "--watch", "--interval", "0.5", *options, "--state", str(stack.state)],
        stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"},
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def interrupted(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_a_terminal_of_80_columns_shows_rates_times_and_a_sparkline(asked: Stack) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    said = b""

    def read() -> None:
        nonlocal said
        with contextlib.suppress(OSError):  # how a terminal says that the other side is closed
            while raw := os.read(ours, 65536):
                said += raw

    with loaded(asked), begun(asked, output=theirs) as process:
        os.close(theirs)
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: said.count(b"small") > 6, 120, lambda: said)
        interrupted(process)
        reader.join(60)
    os.close(ours)
    text = said.decode()
    assert "Traceback" not in text
    # In its place again, below what was there before.
    last = ANSI.sub("", text.rpartition(LEFT_THE_SCREEN)[2]).replace("\r", "").splitlines()
    assert all(len(line) <= COLUMNS for line in last), last
    picture = "\n".join(line.rstrip() for line in last)
    assert re.search(r"^\d\d:\d\d:\d\d UTC  stack in ", picture), picture
    assert re.search(r"^waiting \d+ of 400k tokens", picture, re.MULTILINE), picture
    row = re.search(
        r"^small +([\d.k]+) +([▁▂▃▄▅▆▇█ ]+?) +([\d.]+) +([\d.]+) +([\d.]+) +0$", picture, re.M
    )
    assert row, picture
    rate, spark, p50, p99, refused = row.groups()
    assert set(spark) & set("▅▆▇█")
    # One in three is answered with 400.
    assert 0 < float(refused) < float(rate)
    assert 0 < float(p50) <= float(p99)


class Lines:
    """What it prints, as far as it came, while it goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = 0

    def all(self) -> list[str]:
        return self._path.read_text().splitlines(keepends=True)

    def new(self) -> list[str]:
        """Whole lines since the last `forget`."""
        return [line for line in self.all()[self._from :] if line.endswith("\n")]

    def forget(self) -> None:
        self._from = len(self.all())

    def until(self, pattern: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def seen() -> bool:
            found[:] = [hit for line in self.new() if (hit := re.search(pattern, line))]
            return bool(found)

        wait_until(seen, 120, lambda: f"{pattern}: {''.join(self.all()[-20:])}")
        return found[0]


def test_lines_of_a_stack_that_is_changed_stopped_and_started(asked: Stack, tmp_path: Path) -> None:
    lines = Lines(tmp_path / "said")
    with (tmp_path / "said").open("wb") as output, begun(asked, output=output) as process:
        try:
            with loaded(asked):
                lines.until(r"small: [1-9][\d.]* req/s, p50 [\d.]+ ms, p99 [\d.]+ ms, [1-9]")
                bundle = asked.state.parent / "bundle"
                asked.run("deploy", str(bundle), "--endpoint", "second")
                lines.until(r" second: ")
            asked.run("remove", "second")
            # For as long as the window has its golden request, it is said to be removed.
            lines.until(r" up, waiting 0 of 400k tokens$")
            wait_until(lambda: not of_the_last_look(lines, " second: "), 120)
            asked.run("down")
            lines.until(r" the stack is down; start it: .*transformer-serving up --state .*$")
            lines.forget()
            asked.run("up")
            asked.until(lambda: asked.post("small", {"text": TEXT})[0] == 200, "it is back")
            lines.until(r" small: ")
            with loaded(asked):
                lines.until(r"small: [1-9][\d.]* req/s, p50 [\d.]+ ms, p99 [\d.]+ ms, [1-9]")
            interrupted(process)
        finally:
            process.kill()
    said = "".join(lines.all())
    assert "Traceback" not in said
    assert "\x1b" not in said
    assert not re.search(r"-\d[\d.]* req/s", said)
    assert len(re.findall(r" the stack is down;", said)) == 1
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 \S", line) for line in lines.all())


def of_the_last_look(lines: Lines, word: str) -> bool:
    said = lines.new()
    at = max(at for at, line in enumerate(said) if " up, " in line)
    return any(word in line for line in said[at:])


def test_json_is_a_line_a_look_with_the_figures(asked: Stack) -> None:
    with loaded(asked), begun(asked, "--json", output=subprocess.PIPE) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    plain = asked.json("status")
    for look in looks:
        assert look.keys() == plain.keys() | {"time", "figures", "fault"}
    first, last = looks[0]["figures"], looks[-1]["figures"]
    assert first["seconds"] == 0
    assert last["endpoints"]["small"]["requests_per_s"] > 0
    assert last["endpoints"]["small"]["text"] is None
    assert last["waiting_tokens_limit"] == 400_000


def sent(stack: Stack, body: Any, request: str, **headers: str) -> int:
    """The status of one request with that id."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.base, timeout=60)
    try:
        given = {"content-type": "application/json", "x-request-id": request, **headers}
        connection.request("POST", "/serve/small", json.dumps(body), given)
        return connection.getresponse().status
    finally:
        connection.close()


def found(stack: Stack, request: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = stack.json("logs", "--request", request)["lines"]
    return lines


def test_one_request_is_found_in_the_logs(asked: Stack) -> None:
    """Told from others as data: what would be a pattern, or stands within another id, is none."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    ids = ["order 7", "order 77", 'a"b\\c', ".*", "x-order 7-y"]
    for request in ids:
        parent = f"00-{trace}-b7ad6b7169203331-01"
        assert sent(asked, {"text": TEXT}, request, traceparent=parent) == 200
    late = {"text": [TEXT] * 100, "timeout_ms": 1}
    wait_until(lambda: sent(asked, late, "late") == 504, 60)
    for request in ids:
        (line,) = found(asked, request)
        assert line["part"] == "inference"
        entry = line["entry"]
        assert json.loads(line["text"]) == entry
        assert (entry["request_id"], entry["endpoint"], entry["status"], entry["trace_id"]) == (
            request, "small", 200, trace
        )  # fmt: skip
        assert entry["ms"] > 0
    # What the preprocess says of its fault, beside the gateway's line.
    faults = [line["entry"] for line in found(asked, "late") if line["entry"]["status"] == 504]
    assert {entry.get("code") for entry in faults} == {"deadline", None}
    shown = asked.run("logs", "--request", "order 7", "inference")
    assert re.fullmatch(r'inference\.log:\d+: \{.*"request_id": "order 7".*\}\n', shown)
    assert "no line has that request id" in asked.run(
        "logs", "controller", "--request", ".*", code=1
    )


def test_an_id_that_is_nowhere_says_where_was_looked(asked: Stack) -> None:
    said = asked.run("logs", "--request", "order", code=1)
    for name in ("control-plane.log", "triton.log", "controller.log", "inference.log"):
        assert name in said
    assert len(said.strip().splitlines()) == 1
    assert "1 to 128 printable ASCII" in asked.run("logs", "--request", "", code=2)
    assert "--json is for --request" in asked.run("logs", "--json", code=2)
    assert "leave --follow" in asked.run("logs", "--request", "a", "-f", code=2)
