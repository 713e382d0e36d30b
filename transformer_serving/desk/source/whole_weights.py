"""Weights that are not whole: a download that ended early, or a git-lfs pointer in their place.

The packages that load them end in errors of many types, after what may be a long way.

Tested by tests/source/test_whole_weights.py.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.pickled_weights import INDEX, WHOLE, listed, modules_of

# The length of the header of safetensors, in bytes.
_LENGTH = 8
_WHOLE_PICKLE, _INDEX_OF_PICKLES = "pytorch_model.bin", "pytorch_model.bin.index.json"
# How torch's older pickles begin, which say nowhere how long they are.
_OLDER_PICKLE = b"\x80"


def refuse_cut(folder: Path) -> None:
    """Raises ConversionRefused for weights of the model or of its modules that are not whole."""
    for place in (folder, *modules_of(folder).values()):
        for file in _weights(place):
            if not file.is_file():
                raise ConversionRefused(
                    f"the weights '{file.relative_to(folder)}' are not there, and the model's "
                    "index of weights names them; fetch the model whole"
                )
            whole = _is_safetensors if file.suffix == ".safetensors" else _is_pickle
            if not whole(file):
                raise ConversionRefused(
                    f"the weights '{file.relative_to(folder)}' are not whole: the file is cut "
                    "short, or a git-lfs pointer (git lfs pull); fetch the model whole"
                )


def _weights(place: Path) -> list[Path]:
    """Those that are read; of an index all that it names, whether or not they are there."""
    for whole, index in ((WHOLE, INDEX), (_WHOLE_PICKLE, _INDEX_OF_PICKLES)):
        if (place / whole).is_file():
            return [place / whole]
        if (place / index).is_file():
            # Only the folder's own: others are refused where they are read.
            own = {name for name in listed(place / index) if name == Path(name).name}
            return [place / name for name in sorted(own) if name.endswith(Path(whole).suffix)]
    return []


def _is_safetensors(file: Path) -> bool:
    """Whether it has a header and all the bytes that this tells of."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH), "little")
        size = file.stat().st_size
        if _LENGTH + length > size:
            return False
        try:
            header = json.loads(opened.read(length))
            tensors = (value for name, value in header.items() if name != "__metadata__")
            ends = [tensor["data_offsets"][1] for tensor in tensors]
            return size == _LENGTH + length + max(ends, default=0)
        except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError):
            return False


def _is_pickle(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(1) == _OLDER_PICKLE or zipfile.is_zipfile(opened)
