"""What .ci/run leaves out where its time has gone, and says so: the script, with another make."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.outside_make import outside_make

RUN = Path(__file__).parent.parent / ".ci" / "run"
INSTALLED = ("ab", "amtool", "chromium", "gcc", "iptables", "java", "npm", "promtool", "wrk")
PACKAGES = {
    "apache2-utils", "chromium", "default-jdk-headless", "gcc", "iptables", "libc6-dev", "npm",
    "prometheus", "prometheus-alertmanager", "wrk",
}  # fmt: skip
# What tests look for in the packages of another program, or under another name of it.
BESIDE = {
    "cc": "gcc", "chromium-browser": "chromium", "node": "npm", "prometheus": "promtool",
    "prometheus-alertmanager": "amtool",
}  # fmt: skip
# No test is left out without them: the tests bring them, or fail.
NEEDED = {"curl", "docker", "py-spy", "runc"}
# What else the script asks a machine for.
TOOLS = ("bash", "cat", "dirname", "env", "mkdir", "nice", "tail")
MAKE = """#!/bin/sh
echo "made $*${PYTEST:+ PYTEST='$PYTEST'}"
case " $HANGING " in *" $1 "*) sleep 90 ;; esac
case " $FAILING " in *" $1 "*) exit 1 ;; esac
"""
# As they are left out on a slower and slower machine; the first of them are asked last.
SPARE = ("test-compose PYTEST='-m spare'", "test-stack PYTEST='-m \"long and spare\"'")
PARTS = (*SPARE, "test-stack", "test-compose", "test-clients")
# Before time to spare is known of.
FIRST = {
    "test-stack": "test-stack PYTEST='-m \"long and not by_hand and not spare\"'",
    "test-compose": "test-compose PYTEST='-m \"not spare\"'",
    # Beside that, and so with a list of its own of what failed.
    "test-clients": "test-clients PYTEST='-o cache_dir=build/clients-cache'",
}


def run(
    folder: Path, minutes: int, failing: str = "", *, installed: Sequence[str] = INSTALLED,
    path: str = os.environ["PATH"], kept: Sequence[int] = (), hanging: str = "",
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """As if so many minutes had gone before it began."""
    programs = folder / "bin"
    programs.mkdir()
    for name in (*installed, "make", "apt-get"):
        (programs / name).write_text(MAKE)
        (programs / name).chmod(0o755)
    (folder / ".ci").mkdir()
    copy = shutil.copy(RUN, folder / ".ci" / "run")
    told = {
        "PATH": f"{programs}:{path}", "SECONDS": str(60 * minutes), "FAILING": failing,
        "HANGING": hanging,
    }  # fmt: skip
    return subprocess.run(
        [copy], capture_output=True, text=True, check=False, timeout=120, env=outside_make() | told,
        pass_fds=kept,
    )  # fmt: skip


def bare(folder: Path) -> str:
    """A PATH of what every machine has."""
    tools = folder / "tools"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(str(shutil.which(name)))
    return str(tools)


@pytest.mark.parametrize(
    ("minutes", "left_out"),
    [
        (0, ()),
        (39, ()),
        (40, PARTS[:1]),
        (41, PARTS[:1]),
        (42, PARTS[:2]),
        (51, PARTS[:2]),
        (52, PARTS[:3]),
        (58, PARTS[:3]),
        (59, PARTS[:4]),
        (60, PARTS[:4]),
        (61, PARTS),
    ],
)
def test_a_part_that_would_end_too_late_is_named_at_the_end(
    tmp_path: Path, minutes: int, left_out: tuple[str, ...]
) -> None:
    done = run(tmp_path, minutes)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    made = {line.removeprefix("made ") for line in lines if line.startswith("made ")}
    assert made == {"check", "test"} | {FIRST.get(part, part) for part in PARTS} - {
        FIRST.get(part, part) for part in left_out
    }
    told = [f"make {part} is left out: it would end after" for part in PARTS]
    end = lines[lines.index("What this run has not tested:") :] if left_out else []
    assert len(end) == len(left_out) + bool(left_out)
    for part, line in zip(PARTS, told, strict=True):
        assert any(one.startswith(line) for one in end) == (part in left_out)
    assert ("Nothing is left out." in lines) == (not left_out)
    # Not begun for containers that are asked nothing.
    assert (tmp_path / "build" / "images.log").exists() == ("test-stack" not in left_out)


def test_what_the_make_of_the_tests_was_told_is_not_told_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST", "-x")
    assert "made check" in run(tmp_path, 0).stdout.splitlines()


def test_images_that_are_not_done_end_with_the_run(tmp_path: Path) -> None:
    """With all that they have started, as their daemon."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nsleep 90 &\nwait\n")
    python.chmod(0o755)
    end, held = os.pipe()
    with open(end, "rb") as pipe:
        done = run(tmp_path, 0, "test-stack test-failed", kept=[held])
        os.close(held)
        assert done.returncode == 1, done.stdout
        # At its end, that is, when no process holds the other side.
        assert select.select([pipe], [], [], 60)[0]


def test_clients_that_are_not_done_end_with_the_run(tmp_path: Path) -> None:
    """The containers fail meanwhile."""
    end, held = os.pipe()
    with open(end, "rb") as pipe:
        done = run(tmp_path, 0, "test-compose test-failed", kept=[held], hanging="test-clients")
        os.close(held)
        assert done.returncode == 1, done.stdout
        assert select.select([pipe], [], [], 60)[0]


def test_what_tests_would_be_left_out_without_is_installed(tmp_path: Path) -> None:
    """On a bare machine: a test that has not what it needs is skipped, and the run says nothing."""
    done = run(tmp_path, 0, installed=(), path=bare(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    log = (tmp_path / "build" / "packages.log").read_text()
    lines = [line.split() for line in log.splitlines() if "install" in line]
    assert {word for line in lines for word in line[2:] if word[0] != "-"} == PACKAGES


def test_each_program_that_tests_look_for_is_installed() -> None:
    folders = (RUN.parents[1] / "tests", RUN.parents[1] / "benchmarks")
    texts = [path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py")]
    found = {name for text in texts for name in re.findall(r'\bwhich\("([^"]+)"', text)}
    assert {BESIDE.get(name, name) for name in found - NEEDED} <= set(INSTALLED)
    asked = re.findall(r"^program (\S+)", RUN.read_text("utf-8"), re.MULTILINE)
    assert sorted(asked) == sorted(INSTALLED)


def test_packages_that_cannot_be_installed_end_the_run_with_what_apt_said(tmp_path: Path) -> None:
    done = run(tmp_path, 0, "install", installed=INSTALLED[1:], path=bare(tmp_path))
    assert done.returncode == 1, done.stdout
    assert "made install -qq --no-install-recommends apache2-utils" in done.stdout.splitlines()
    assert "made test" not in done.stdout.splitlines()


@pytest.mark.parametrize("minutes", [0, 60])
def test_clients_that_fail_fail_the_run_with_and_without_containers(
    tmp_path: Path, minutes: int
) -> None:
    done = run(tmp_path, minutes, "test-clients test-failed")
    assert done.returncode == 1, done.stdout
    assert "What failed is asked a third time, alone." in done.stdout
