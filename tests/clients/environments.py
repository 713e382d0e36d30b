"""An environment for each client library, from its own pinned list in requirements/."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LISTS = HERE / "requirements"
SCRIPTS = HERE / "scripts"
FOLDER = HERE.parent.parent / "build" / "clients"
_INSTALL_S = 900
_SCRIPT_S = 240


def environment_python(name: str) -> Path:
    """The Python of the environment, made or found made from the same list."""
    wanted = LISTS / f"{name}.txt"
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "list.sha256"
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return python
    # A pip of its own would take longer to install than most lists.
    venv.create(folder, with_pip=False, clear=True)
    # pip takes three minutes of a processor for all lists, uv four seconds.
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "-r", wanted],
        capture_output=True, text=True, timeout=_INSTALL_S, check=False,
    )  # fmt: skip
    hint = "where packages come from it takes from UV_DEFAULT_INDEX, not from pip's configuration"
    assert done.returncode == 0, f"uv could not install {name} ({hint}): {done.stderr[-2000:]}"
    stamp.write_text(digest)
    return python


class Environments:
    """Those of a run, installed one after the other while its stack starts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._pythons: dict[str, Future[Path]] = {
            name: self._pool.submit(environment_python, name) for name in names
        }

    def ask(self, name: str, script: str, **given: Any) -> Any:
        """What scripts/SCRIPT.py prints, as JSON, when that environment runs it.

        It gets what is given as a JSON object on its stdin.
        """
        python = self._pythons[name].result()
        # A client may read a key, a proxy or an address from the environment: there is none.
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        done = subprocess.run(
            [str(python), "-I", str(SCRIPTS / f"{script}.py")], input=json.dumps(given),
            env={**kept, "HOME": str(FOLDER / name)}, cwd=FOLDER / name, capture_output=True,
            text=True, timeout=_SCRIPT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return json.loads(done.stdout)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
