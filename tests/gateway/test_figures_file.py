"""A disk without room costs figures, never a request or a worker; each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server, Session
from tests.gateway.figures import read
from tests.small_disk import fill, small_disk
from transformer_serving.gateway.figures.file import FiguresFile, WorkersFile
from transformer_serving.gateway.figures.folder import VARIABLE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 1) as made:
        yield made


def counted(code: str, disk: Path) -> dict[str, float]:
    """The requests of keys that the page shows which `code` writes at its end."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + END, str(disk)],
        env={**os.environ, VARIABLE: str(disk)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {
        dict(labels)["key"]: value
        for (name, labels), value in read(done.stdout).items()
        if name == "gateway_requests_total"
    }


BEGIN = """
import asyncio
import sys
from pathlib import Path
from tests.small_disk import fill
from transformer_serving.gateway.figures.file import keep_figures_with_room
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.figures.page import page
disk = Path(sys.argv[1])
keep_figures_with_room()
metrics = Metrics()
"""
END = """
sys.stdout.write(page().decode())
"""
MANY = [f"k{number}" for number in range(2000)]


def test_a_figure_without_room_is_there_with_its_next_change(disk: Path) -> None:
    assert counted(FULL_FROM_THE_START, disk) == {"mine": 3.0}


FULL_FROM_THE_START = """
filler = fill(disk)
metrics.asked("mine")
metrics.asked("mine")
metrics.asked("other")
asyncio.run(metrics.goldens({}))
assert b"mine" not in page()
# Older code of an endpoint reads what is there, and falls over a file with nothing in it.
assert not [*disk.glob("*.db")]
filler.unlink()
metrics.asked("mine")
"""


def test_what_had_its_place_goes_on_counting_when_there_is_no_more(disk: Path) -> None:
    found = counted(FULL_LATER, disk)
    assert found.pop("first") == 2.0
    assert 0 < len(found) < len(MANY)
    assert set(found.values()) == {1.0}


FULL_LATER = f"""
metrics.asked("first")
fill(disk)
for number in range({len(MANY)}):
    metrics.asked(f"k{{number}}")
metrics.asked("first")
"""


def test_with_room_a_file_grows_as_before(disk: Path) -> None:
    assert counted(GROWING, disk) == dict.fromkeys(MANY, 1.0)
    (file,) = disk.glob("counter_*.db")
    # No hole is left that a later write would need room for.
    assert file.stat().st_blocks * 512 >= file.stat().st_size > 1 << 16


GROWING = f"""
for number in range({len(MANY)}):
    metrics.asked(f"k{{number}}")
"""


def test_a_folder_that_went_is_made_again(disk: Path) -> None:
    assert counted(WITHOUT_A_FOLDER, disk) == {"mine": 2.0}


WITHOUT_A_FOLDER = """
import os
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(disk / "gone")
metrics.asked("mine")
metrics.asked("mine")
"""


def test_what_ended_workers_counted_is_shown_without_room_to_fold_it(disk: Path) -> None:
    assert counted("metrics.asked('ended')", disk) == {"ended": 1.0}
    (own,) = disk.glob("counter_*.db")
    filler = fill(disk)
    assert counted("", disk) == {"ended": 1.0}
    assert own.exists()
    filler.unlink()
    assert counted("", disk) == {"ended": 1.0}
    assert not own.exists()


@pytest.mark.slow
def test_a_worker_serves_on_a_full_disk(session: Session, disk: Path) -> None:
    filler = fill(disk)
    server = session.gateway(**{VARIABLE: str(disk)}).start()
    try:
        server.wait_for("/health/ready")
        (worker,) = server.workers()
        assert server.post("ours", {"text": "a"}).status == 200
        assert server.ask("GET", "/metrics").status == 200
        assert "figures cannot be kept" in server.log.read_text()
        filler.unlink()

        def is_counted() -> bool:
            assert server.post("ours", {"text": "a"}).status == 200
            return answered(server) > 1

        wait_until(is_counted, 60)
        assert server.workers() == [worker]
    finally:
        server.stop()


def answered(server: Server) -> float:
    """By what the page says of all requests, those on the full disk included."""
    figures = read(server.ask("GET", "/metrics").raw.decode())
    return sum(value for (name, _), value in figures.items() if name.endswith("seconds_count"))


def test_what_is_written_while_a_file_is_made_anew_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a key that was let go of, and is used again before."""
    held: Any = WorkersFile(str(tmp_path / "counter_1.db"))
    for key in ("kept", "gone", "back", "back-meanwhile"):
        held.write_value(key, 1.0, 0.0)
        if key != "kept":
            held.let_go(key)
    held.write_value("back", *held.read_value("back"))
    write: Any = FiguresFile.write_value

    def written(self: Any, key: str, value: float, timestamp: float) -> None:
        monkeypatch.setattr(FiguresFile, "write_value", write)
        write(self, key, value, timestamp)
        for used in ("kept", "new", "back-meanwhile"):
            held.write_value(used, held.read_value(used)[0] + 1, 0.0)

    monkeypatch.setattr(FiguresFile, "write_value", written)
    held.renew()
    read: Any = FiguresFile.read_all_values_from_file
    rows = {key: value for key, value, *_ in read(held._filename)}
    assert rows == {"kept": 2.0, "new": 1.0, "back": 1.0, "back-meanwhile": 2.0}
    assert not held._gone
    held.close()
