"""Weights that are pickles: reading one runs whatever program its writer put into it.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from transformer_serving.desk.failure import ConversionRefused

# *.bin is torch's older name for them; of these, the others are no weights.
PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NO_WEIGHTS = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*", "openvino_*.bin")
_SAFE = "*.safetensors"


def refuse_pickles(folder: Path, *, allowed: bool) -> None:
    """Raises ConversionRefused for a model whose weights are pickles and nothing else.

    Beside safetensors they are not read. sentence-transformers keeps weights in folders of its
    modules, too.
    """
    if allowed:
        return
    for place in (folder, *_modules(folder)):
        found = None if any(place.glob(_SAFE)) else next(_pickles(place), None)
        if found is not None:
            raise ConversionRefused(
                f"'{found.relative_to(folder)}' is a pickle: reading it runs what its writer put "
                "into it; take a model with .safetensors, or, where you trust the writer, say "
                "--allow-pickle"
            )


def _pickles(place: Path) -> Iterator[Path]:
    for pattern in PATTERNS:
        for path in sorted(place.glob(pattern)):
            if not any(path.match(name) for name in _NO_WEIGHTS):
                yield path


def _modules(folder: Path) -> Iterator[Path]:
    """The folders of modules.json, as far as they lie in the model's."""
    try:
        rows = json.loads((folder / "modules.json").read_bytes())
        paths = [str(row["path"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for path in paths:
        place = folder / path
        if path and place.is_dir():
            yield place
