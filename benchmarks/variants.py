"""Other code, not other settings: our own sources with a few lines changed, for `make tune`.

A variant is a copy of the packages with its edits, served in the place of the real ones: a bundle
made with its preprocess, a gateway started in its folder, a Triton with its backends. An edit whose
lines are not in the source any more is refused, so that a variant never measures the default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.process import Unusable

_PACKAGES = ("contract", "preprocess", "gateway", "engine")
_RENEW = (
    "import sys, pathlib\n"
    "from transformer_serving.bundle import renew_bundle\n"
    "renew_bundle(pathlib.Path(sys.argv[1]))\n"
)


@dataclass(frozen=True)
class Edit:
    """In `file`, below the repository's root, `old` becomes `new`; `old` stands there once."""

    file: str
    old: str
    new: str


STANDARD_JSON = (
    Edit("preprocess/response.py", "import orjson\n", "import json\n\nimport orjson\n"),
    Edit("preprocess/response.py",
         "    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)\n",
         "    plain = lambda value: value.tolist()\n"
         "    return json.dumps(answer, default=plain).encode()\n"),
    Edit("gateway/json_body.py",
         "    try:\n        body = orjson.loads(raw)\n"
         "    except orjson.JSONDecodeError as error:\n"
         "        raise _refused(error) from None\n"
         "    if not isinstance(body, dict):\n",
         "    try:\n        body = json.loads(raw)\n"
         "    except json.JSONDecodeError as error:\n"
         "        raise _refused(error) from None\n"
         "    if not isinstance(body, dict):\n"),
)  # fmt: skip
# What FastAPI does with the dict that a preprocess returns: it is walked, then written.
ENCODED_RESPONSE = (
    Edit("preprocess/response.py", "import orjson\n",
         "import json\n\nimport orjson\nfrom fastapi.encoders import jsonable_encoder\n"),
    Edit("preprocess/response.py",
         "    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)\n",
         "    plain = orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))\n"
         "    return json.dumps(jsonable_encoder(plain)).encode()\n"),
)  # fmt: skip
TOKENIZE_OFF_LOOP = (
    Edit("preprocess/threads.py", "OFF_LOOP_CHARACTERS = 4096\n", "OFF_LOOP_CHARACTERS = -1\n"),
)
# The next call may overwrite an answer that is not copied: for the clock only.
NO_OUTPUT_COPY = (
    Edit("engine/backends/openvino_runtime.py",
         "request.get_output_tensor(index).data.copy()", "request.get_output_tensor(index).data"),
)  # fmt: skip
INPUT_COPY = (
    Edit("engine/backends/openvino_runtime.py",
         "request.start_async(batch, share_inputs=True)",
         "request.start_async(batch, share_inputs=False)"),
)  # fmt: skip
PINNED_THREADS = (
    Edit("engine/backends/precision.py",
         '"ENABLE_CPU_PINNING": "NO",', '"ENABLE_CPU_PINNING": "YES",'),
)  # fmt: skip


def write_sources(target: Path, edits: Sequence[Edit]) -> Path:
    """The packages with the edits at `target`. Raises Unusable for an edit that does not fit."""
    shutil.rmtree(target, ignore_errors=True)
    for name in _PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, target / name, ignore=ignored)
    apply_edits(target, edits)
    return target


def apply_edits(folder: Path, edits: Sequence[Edit]) -> None:
    for edit in edits:
        path = folder / edit.file
        text = path.read_text("utf-8") if path.is_file() else ""
        if text.count(edit.old) != 1:
            raise Unusable(f"{edit.file} has changed: the variant's lines are not there once")
        path.write_text(text.replace(edit.old, edit.new), "utf-8")


def write_bundle(target: Path, bundle: Path, sources: Path) -> Path:
    """The bundle once more, with the preprocess of other sources. Raises Unusable."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(bundle, target)
    # The folder where Python runs comes before the installed packages.
    done = subprocess.run(
        [sys.executable, "-c", _RENEW, str(target)], cwd=sources, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(sources)},
    )  # fmt: skip
    if done.returncode:
        raise Unusable(f"the variant's bundle: {done.stderr.strip().splitlines()[-1]}")
    return target


def edit_backends(backends: Path, edits: Sequence[Edit]) -> None:
    """The edits of engine/ in every backend's own copy of its modules, below `backends`."""
    ours = [edit for edit in edits if edit.file.startswith("engine/")]
    for folder in backends.iterdir():
        if (folder / "engine").is_dir():
            apply_edits(folder, ours)
