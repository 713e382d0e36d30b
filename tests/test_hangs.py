"""A test that hangs ends the run, which names it and shows where: as make test has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Of pytest's plugins what these options need: the others take seconds to be imported.
PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "xdist.plugin")
HANGS = """
import threading


def test_that_hangs():
    threading.Event().wait()
"""


def options(name: str) -> list[str]:
    """What the Makefile gives to pytest under this name, in as many processes as it says itself."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    found = re.search(rf"^{name} :?= (.*)$", makefile, re.MULTILINE)
    processes = re.search(r"^PROCESSES \?= (\d+)$", makefile, re.MULTILINE)
    assert found
    assert processes
    return found[1].replace("$(PROCESSES)", processes[1]).split()


@pytest.mark.slow
def test_it_is_named_and_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(HANGS)
    own = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), *PLUGINS]
    soon = [re.sub("=600$", "=2", option) for option in options("SOON")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *options("BESIDE"), *soon, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode not in (0, 5), said
    assert "crashed while running 'test_waits.py::test_that_hangs'" in said
    assert re.search(r'test_waits.py", line \d+ in test_that_hangs', said)
