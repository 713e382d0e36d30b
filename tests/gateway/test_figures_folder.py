from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from tests.gateway.figures import of, read
from transformer_serving.gateway.figures.folder import (
    VARIABLE,
    figures_folder,
    note_end,
    take_ends,
)
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.server import command


def test_what_killed_servers_left_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    # The last as a release before named it.
    names = f"{int(ended.stdout)}-ab_c", f"{os.getppid()}-d", f"{os.getpid()}-e", f"{os.getpid()}"
    left, other, *mine = (tmp_path / f"transformer-serving-figures-{name}" for name in names)
    for folder in (left, other, *mine):
        folder.mkdir()
        (folder / "counter_1.db").touch()
    with figures_folder():
        own = Path(os.environ[VARIABLE])
        assert own.name.startswith(f"transformer-serving-figures-{os.getpid()}-")
        assert (stat.S_IMODE(own.stat().st_mode), list(own.iterdir())) == (0o700, [])
        assert set(tmp_path.iterdir()) == {other, own}
    assert set(tmp_path.iterdir()) == {other}
    assert VARIABLE not in os.environ


def test_nobody_takes_the_name_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user of the machine may make any folder in the temporary one, or a link."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    taken = tmp_path / f"transformer-serving-figures-{os.getpid()}"
    taken.symlink_to(tmp_path / "elsewhere")
    with figures_folder():
        assert Path(os.environ[VARIABLE]).is_dir()
    assert taken.is_symlink()


def test_a_named_folder_is_made_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "of" / "mine"
    monkeypatch.setenv(VARIABLE, str(named))
    with figures_folder():
        assert named.is_dir()
    assert os.environ[VARIABLE] == str(named)
    assert named.is_dir()


def test_one_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was the traceback of an OSError."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/file/figures")
    with pytest.raises(SystemExit) as ended:
        command.main(["--port=0"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: the folder of figures, {tmp_path}/file/figures, cannot be made: Not a directory; "
        f"name one in {VARIABLE} that can, or unset it\n"
    )


@pytest.mark.parametrize("known", [True, False])
def test_without_room_for_its_own_it_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: bool
) -> None:
    """Workers make it once there is room. On a full disk Python knows no temporary folder."""
    full = tmp_path / "full"
    full.touch()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(full))
    monkeypatch.setattr(tempfile, "tempdir", str(full) if known else None)
    if not known:
        monkeypatch.setattr(tempfile, "_get_default_tempdir", nowhere)
    with figures_folder():
        own = Path(os.environ[VARIABLE])
        assert own.name.startswith(f"transformer-serving-figures-{os.getpid()}-")
        assert own.parent == full
        note_end()
        assert take_ends() == 0
    assert VARIABLE not in os.environ


def nowhere() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


async def answered() -> bytes:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await Metrics().answer(send)
    assert sent[0]["status"] == 200
    return bytes(sent[1]["body"])


async def test_metrics_are_answered_after_their_folder_went(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    await answered()


async def test_files_that_were_only_just_made_count_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    counts = MmapedDict(str(tmp_path / f"counter_{gone.pid}.db"))
    counts.write_value(mmap_key("seen", "seen_total", [], [], ""), 3.0, 0.0)
    counts.close()
    for pid in (os.getpid(), gone.pid):
        for kind in ("histogram", "gauge_livesum"):
            (tmp_path / f"{kind}_{pid}.db").touch()
    (tmp_path / f"counter_{os.getpid()}.db").touch()
    for _ in range(2):
        assert b"seen_total 3.0" in await answered()
    assert not list(tmp_path.glob(f"*_{gone.pid}.db"))


async def test_what_workers_left_is_folded_though_nobody_asks_for_a_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that is killed again and again would fill the disk where no Prometheus looks."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for _ in range(2):
        gone = subprocess.Popen(["true"])
        gone.wait()
        counts = MmapedDict(str(tmp_path / f"counter_{gone.pid}.db"))
        counts.write_value(mmap_key("seen", "seen_total", [], [], ""), 3.0, 0.0)
        counts.close()
        (tmp_path / f"gauge_livesum_{gone.pid}.db").touch()
        (tmp_path / f"exemplars_{gone.pid}.json").touch()
        (tmp_path / f".exemplars_{gone.pid}.json.{'a0' * 8}").touch()
        (tmp_path / f".histogram_{gone.pid}.db.{'a1' * 8}").touch()
        (tmp_path / f".counter_ended.db.{'a2' * 8}").touch()
    mine = tmp_path / f".counter_{os.getpid()}.db.{'a3' * 8}"
    mine.touch()
    await Metrics().goldens({})
    assert {path.name for path in tmp_path.iterdir()} == {"counter_ended.db", "lock", mine.name}
    assert b"seen_total 6.0" in await answered()


async def test_a_workers_end_is_counted_once_by_whoever_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was told to the one that was started next, which may die in its start each time."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    note_end()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for _ in range(3):
        note_end()
    before = ends_counted()
    for _ in range(2):
        await answered()
        assert ends_counted() - before == 3
    note_end()
    # Without any page, too.
    await Metrics().goldens({})
    assert ends_counted() - before == 4
    monkeypatch.delenv(VARIABLE)
    note_end()
    assert take_ends() == 0


def ends_counted() -> float:
    name = "transformer_serving_gateway_worker_restarts_total"
    return prometheus.REGISTRY.get_sample_value(name) or 0


@pytest.mark.parametrize("taken", ["file", "folder"])
def test_files_that_a_cleaner_took_are_made_again(tmp_path: Path, taken: str) -> None:
    """Counts of before and after are on the page, and a round makes them before anybody asks."""
    folder = tmp_path / "figures"
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, taken], env={**os.environ, VARIABLE: str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    asked, rounds, after = done.stdout.split("\f")
    for text, number in ((asked, 2), (rounds, 3), (after, 4)):
        figures = read(text)
        assert of(figures, "gateway_requests_total", key="mine") == number
        assert of(figures, "gateway_requests_total", key="of-before") == 1
        assert of(figures, "texts_total", endpoint="m") == 1


TAKEN = """
import asyncio, os, shutil, sys
from pathlib import Path
from preprocess.stats import EndpointFigures
from transformer_serving.gateway.figures.file import keep_figures_with_room
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.figures.page import page
keep_figures_with_room()
folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
metrics = Metrics()

def take():
    if sys.argv[1] == "folder":
        shutil.rmtree(folder)
        return
    for file in folder.glob("*.db"):
        file.unlink()

def asked():
    return asyncio.run(metrics.text()).decode()

EndpointFigures("m").request(200, 1, 5, {})
metrics.asked("of-before")
metrics.asked("mine")
take()
metrics.asked("mine")
first = asked()
take()
asyncio.run(metrics.goldens({}))
metrics.asked("mine")
# As another worker makes it.
second = page().decode()
metrics.asked("mine")
print(first, second, asked(), sep="\\f", end="")
"""
