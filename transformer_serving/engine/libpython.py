"""The shared libpython of a Python: the stub of Triton's Python backend loads it.

`python -m transformer_serving.engine.libpython` says whether the Python that runs it has one; the
standard library is enough for that.

Tested by tests/engine/test_triton_process.py.
"""

from __future__ import annotations

import ctypes.util
import sys
import sysconfig
from pathlib import Path

from transformer_serving.engine.errors import EngineError

# As Debian and Ubuntu call it.
PACKAGE = f"libpython{sys.version_info.major}.{sys.version_info.minor}"


def libpython_folder() -> Path | None:
    """The folder with the running interpreter's shared libpython; None when the system's is it.

    Raises EngineError when there is no shared libpython at all.
    """
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    if ".so" in name and (folder / name).is_file():
        return folder
    if ctypes.util.find_library(PACKAGE.removeprefix("lib")):
        return None
    raise EngineError(
        f"no shared {PACKAGE}.so was found in {folder} or on the system; Triton's Python stub "
        f"needs one: install {PACKAGE} or a Python built with --enable-shared"
    )


def main() -> None:
    try:
        libpython_folder()
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
