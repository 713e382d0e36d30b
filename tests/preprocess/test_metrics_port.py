"""The figures' own port: there before anybody asks, and another worker's when its worker ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import generate_latest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from preprocess.metrics_port import _registry, open_metrics_port
from tests.engine.triton_server import wait_until
from tests.free_ports import free_port
from tests.gateway.figures import of, read
from transformer_serving.contract.worker.process_wide import process_wide

# A worker with an endpoint that nobody asks; it ends with its input.
WORKER = """
import sys
from pathlib import Path
from preprocess import Preprocess
from preprocess.queue.admission import Admission
from preprocess.stats import EndpointFigures
if sys.argv[2]:
    EndpointFigures(sys.argv[2]).abandoned("deadline", 1)
    Admission(1000, 2.0)
folder = Path(sys.argv[1])
for again in range(2):
    Preprocess((folder / "endpoint.json").read_bytes(), (folder / "tokenizer.json").read_bytes)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker(
    tmp_path: Path, endpoint_fields: dict[str, Any], tokenizer_json: bytes
) -> Callable[..., Any]:
    (tmp_path / "endpoint.json").write_text(json.dumps(endpoint_fields))
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)

    @contextmanager
    def started(name: str, port: int, **more: str) -> Iterator[subprocess.Popen[str]]:
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), name],
            env={"TRANSFORMER_SERVING_METRICS_PORT": str(port), **more},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            yield child
        finally:
            child.kill()
            child.communicate()

    return started


def page(port: int) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def shown_by(port: int) -> str | None:
    """Whose figures the port shows; None for nobody's."""
    text = page(port) or ""
    return next((name for name in ("first", "second") if f'endpoint="{name}"' in text), None)


@pytest.mark.slow
def test_it_is_open_before_the_first_request_and_another_workers_after_its_end(worker: Any) -> None:
    port = free_port()
    with worker("first", port) as first, worker("second", port):
        assert shown_by(port) == "first"
        first.kill()
        wait_until(lambda: shown_by(port) == "second", 60)


def test_a_port_that_older_code_of_the_process_has_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state: dict[str, float] = process_wide("metrics_port", lambda: {"again": 0.0})
    monkeypatch.setitem(state, "again", inf)
    port = free_port()
    open_metrics_port("127.0.0.1", port)
    assert page(port) is None


def test_where_there_are_keys_it_stays_closed_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(process_wide("metrics_port", dict), "again", 0.0)
    monkeypatch.setenv("TRANSFORMER_SERVING_KEYS_FILE", "/run/keys/keys.json")
    opened: list[int] = []
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda *to: opened.append(to[0]))
    for _ in range(2):
        open_metrics_port("127.0.0.1", 8082)
    assert not opened
    assert caplog.text.count("port 8082 stays closed, as TRANSFORMER_SERVING_KEYS_FILE is set") == 1


# prometheus_client leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_where_no_thread_can_be_started_the_next_endpoint_opens_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(process_wide("metrics_port", dict), "again", 0.0)
    port, opened = free_port(), []

    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        open_metrics_port("127.0.0.1", port)
    assert page(port) is None
    assert (
        "port is not tried until the next endpoint is built: can't start new thread" in caplog.text
    )
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda *to: opened.append(to[0]))
    for _ in range(2):
        open_metrics_port("127.0.0.1", port)
    assert opened == [port]


@pytest.mark.slow
def test_it_has_the_processes_of_all_workers(worker: Any, tmp_path: Path) -> None:
    folder, port = tmp_path / "figures", free_port()
    folder.mkdir()
    figures = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    with worker("first", port, **figures) as first, worker("second", port, **figures) as second:
        text = page(port) or ""
        for child in (first, second):
            assert f'process_cpu_seconds_total{{pid="{child.pid}"}}' in text
        assert text.count("# TYPE process_cpu_seconds_total") == 1


@pytest.mark.slow
def test_what_a_killed_worker_held_is_shown_no_more_and_its_counts_are(
    worker: Any, tmp_path: Path
) -> None:
    folder, port = tmp_path / "figures", free_port()
    folder.mkdir()
    figures = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    held = "transformer_serving_waiting_tokens_limit"
    counted = 'transformer_serving_abandoned_requests_total{endpoint="%s",reason="deadline"} 1.0'

    def shown() -> tuple[float, ...]:
        text = page(port) or ""
        rows = (line.split() for line in text.splitlines() if line.startswith(f"{held} "))
        return tuple(float(value) for _, value in rows)

    with worker("first", port, **figures):
        assert shown() == (1000,)
        with worker("second", port, **figures) as second:
            assert shown() == (2000,)
            second.kill()
            second.wait()
            assert shown() == (1000,)
    # Of both that are gone, in a third one.
    with worker("third", port, **figures):
        wait_until(lambda: shown() == (1000,), 60)
        text = page(port) or ""
        for name in ("first", "second", "third"):
            assert counted % name in text


# A worker behind a gateway; it misses an endpoint from the moment it is told, and says what the
# port would show an hour later.
FORGETS = """
import asyncio, gc, json, sys
from prometheus_client import generate_latest
from preprocess.metrics_port import _registry
from preprocess.stats import EndpointFigures
from transformer_serving.gateway.figures.departed import Departed
from transformer_serving.gateway.figures.file import keep_figures_with_room
from transformer_serving.gateway.figures.metrics import Metrics
keep_figures_with_room()
now = 0.0
metrics = Metrics(lambda: {"m"})
metrics._departed = Departed(lambda: now)
EndpointFigures("m/7").request(200, 1, 5, {}, 1000)
gc.collect()
print("counted", flush=True)
sys.stdin.readline()
for now in (0.0, 3601.0):
    asyncio.run(metrics.goldens({}))
    asyncio.run(metrics.text())
print(json.dumps(generate_latest(_registry()).decode()), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("port", "left"), [("9100", [2000, 2000]), ("", [1000, 0]), ("0", [1000, 0])]
)
def test_its_counts_of_endpoints_that_went_do_not_fall_worker_by_worker(
    tmp_path: Path, port: str, left: list[float]
) -> None:
    figures = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "TRANSFORMER_SERVING_METRICS_PORT": port}
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(asked_worker(figures)) for _ in range(2)]
        seen = []
        for child in workers:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            text = json.loads(child.stdout.readline())
            seen.append(of(read(text), "requests_total", endpoint="m/7", status="200"))
    assert seen == left


@contextmanager
def asked_worker(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", FORGETS], env={**os.environ, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "counted\n"
        yield child


@pytest.mark.slow
def test_a_figures_folder_that_has_gone_fails_no_endpoint(worker: Any, tmp_path: Path) -> None:
    folder, port = tmp_path / "figures", free_port()
    with worker("", port, PROMETHEUS_MULTIPROC_DIR=str(folder)):
        assert page(port) is None
        folder.mkdir()
        wait_until(lambda: page(port) is not None, 60)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which this process and one that ended counted 3 and 4."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for number, seen in ((os.getpid(), 3.0), ("ended", 4.0)):
        counts: Any = MmapedDict(str(tmp_path / f"counter_{number}.db"))
        counts.write_value(mmap_key("seen", "seen_total", [], [], ""), seen, 0.0)
        counts.close()
    return tmp_path


def rows() -> list[str]:
    text = generate_latest(_registry()).decode()
    return [line for line in text.splitlines() if line.startswith("seen_total")]


def while_it_reads(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], object], times: int
) -> None:
    """What comes to be between a look at the folder and the reading of a file."""
    read: Any = MmapedDict.read_all_values_from_file
    left = [times]

    def read_values(path: str) -> Any:
        if left[0]:
            left[0] -= 1
            happens(Path(path))
        return read(path)

    monkeypatch.setattr(MmapedDict, "read_all_values_from_file", read_values)


def test_a_file_that_was_only_just_made_counts_nothing(counted: Path) -> None:
    """It stays so where its worker was killed then, or found no room on the disk."""
    for name in (f"histogram_{os.getpid()}", f"gauge_livesum_{os.getpid()}", "counter_1"):
        (counted / f"{name}.db").touch()
    assert rows() == ["seen_total 7.0"]


@pytest.mark.parametrize(("gone", "left"), [(1, 1), (2, 0)])
def test_a_file_that_is_taken_away_while_it_reads_counts_nothing(
    counted: Path, monkeypatch: pytest.MonkeyPatch, gone: int, left: int
) -> None:
    while_it_reads(monkeypatch, Path.unlink, gone)
    assert len(rows()) == left == len(list(counted.glob("*.db")))


def test_no_gateway_folds_files_while_it_reads(
    counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fold(_: Path) -> None:
        with (counted / "lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    while_it_reads(monkeypatch, fold, 1)
    assert rows() == ["seen_total 7.0"]
