"""Code in the place of clearml-serving's command line, for what that one is never seen to do."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import indent


def in_its_place(folder: Path, code: str) -> None:
    """Whoever has `path_with(folder)` as PYTHONPATH runs the code as clearml-serving's `main`."""
    package = folder / "clearml_serving"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"def main():\n{indent(code, '    ')}")


def path_with(folder: Path) -> str:
    """The folder before what is on the path already."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
