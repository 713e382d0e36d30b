"""Exports of small models, once a run: what many tests convert is one graph, and takes seconds."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from transformer_serving.desk.conversion import encoder, workshop
from transformer_serving.desk.export import onnx
from transformer_serving.desk.export.onnx import ExportedGraph
from transformer_serving.desk.source.model import ModelSource


@dataclass(frozen=True)
class KeptGraphs:
    """Graphs in `folder`, which all processes of a run share, by what they are made of."""

    folder: Path

    def graph(self, source: ModelSource, folder: Path) -> ExportedGraph:
        """As workshop.onnx_graph, which makes it where none is kept."""
        key = _key(source)
        kept = self.folder / key
        with (self.folder / f"{key}.lock").open("w") as lock:
            # Whoever comes meanwhile waits for it; its end closes the file, also of a lost process.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                made = self.folder / f"{key}.made"
                shutil.rmtree(made, ignore_errors=True)
                (made / "files").mkdir(parents=True)
                made_of_it = workshop.onnx_graph(source, made / "files")
                (made / "graph").write_bytes(pickle.dumps(made_of_it))
                made.rename(kept)
        shutil.copytree(kept / "files", folder, dirs_exist_ok=True)
        graph: ExportedGraph = pickle.loads((kept / "graph").read_bytes())
        return replace(graph, path=folder / graph.path.name)


@contextmanager
def conversions_of(kept: KeptGraphs) -> Iterator[None]:
    """What is converted here takes its graph of the kept ones."""
    with pytest.MonkeyPatch.context() as patched:
        # Not of the workshop itself, of which a kept one is made.
        patched.setattr(encoder, "onnx_graph", kept.graph)
        yield


def _key(source: ModelSource) -> str:
    """All that an export reads; nothing of it is the tokenizer's text."""
    given = (
        source.task, source.head, source.model_type, source.max_length, source.takes_token_types,
        source.tokenizer.pad_id, source.sentence, onnx.INLINE_LIMIT,
    )  # fmt: skip
    found = hashlib.sha256(repr(given).encode())
    for path in sorted(source.folder.rglob("*")):
        if path.is_file() and not path.name.startswith("tokenizer"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(source.folder)} {content}\n".encode())
    return found.hexdigest()


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of a run: a process of several has its own below that of the run."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = run / "kept-graphs"
    folder.mkdir(exist_ok=True)
    return folder
