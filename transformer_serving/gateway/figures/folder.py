"""The folder in which the workers of one server keep their figures together.

prometheus_client looks for it when it is imported, which only the workers do: this module must not.

Tested by tests/gateway/test_figures_folder.py.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transformer_serving.contract.worker.process_figures import process_runs

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "transformer-serving-figures-"
_END = "worker-end-"


def figures_folder() -> contextlib.AbstractContextManager[None]:
    """Make one and name it in the environment, unless the operator has named one.

    Raises ValueError where that one cannot be made.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return _own_folder()
    try:
        Path(named).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the folder of figures, {named}, cannot be made: {error.strerror}; name one in "
            f"{VARIABLE} that can, or unset it"
        ) from None
    return contextlib.nullcontext()


@contextlib.contextmanager
def _own_folder() -> Iterator[None]:
    """It carries this process's number: a server that was killed cannot remove its own, so the next
    one does. The rest of its name nobody can foresee, and take before: the temporary folder is
    everybody's.
    """
    place = _temporary_folder()
    for left in place.glob(f"{_PREFIX}*"):
        number = left.name.removeprefix(_PREFIX).partition("-")[0]
        if number == str(os.getpid()) or not process_runs(number):
            shutil.rmtree(left, ignore_errors=True)
    own = place / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    # Where there is no room for it, workers say so, and make it once there is some.
    with contextlib.suppress(OSError):
        own.mkdir(mode=0o700)
    os.environ[VARIABLE] = str(own)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(own, ignore_errors=True)


def _temporary_folder() -> Path:
    """Python knows of none where nothing can be written to any, as on a full disk."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path(os.environ.get("TMPDIR") or "/tmp")


def note_end() -> None:
    """A worker ended unasked. Any that serves takes it: the next one may never come to that."""
    if folder := os.environ.get(VARIABLE):
        # Without room, or after a cleaner of temporary files, an end is not counted.
        with contextlib.suppress(OSError):
            number, _ = tempfile.mkstemp(prefix=_END, dir=folder)
            os.close(number)


def take_ends() -> int:
    """How many workers ended unasked that nobody has taken yet: each is counted once."""
    folder, taken = os.environ.get(VARIABLE), 0
    for end in Path(folder).glob(f"{_END}*") if folder else ():
        # Another worker may have been quicker.
        with contextlib.suppress(OSError):
            end.unlink()
            taken += 1
    return taken
