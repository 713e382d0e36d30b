"""`python notebooks/execute.py`: run the notebooks against the running stack and keep the outputs.

`make up` first. Each begins in its own folder, as where an editor opens it. Metadata that changes
with every run is left out, so that a second run differs only where the answers do.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parent
_CELL_S = 600


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path, environment: Mapping[str, str]) -> Any:
    """The notebook with fresh outputs. Raises nbclient's CellExecutionError for a failing cell."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        # Over unix sockets: nobody else on the machine can speak to the kernel, which is in another
        # folder than this process.
        sockets = {"transport": "ipc", "ip": str(Path(folder) / "kernel")}
        config = Config({"KernelManager": sockets})
        client = NotebookClient(notebook, timeout=_CELL_S, kernel_name="python3", config=config)
        client.execute(cwd=str(path.parent), env=dict(environment))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    for path in notebooks():
        print(path.name, flush=True)  # noqa: T201
        nbformat.write(executed(path, os.environ), path)


if __name__ == "__main__":
    main()
