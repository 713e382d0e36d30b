"""A full disk, told where an engine's builder fails of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_serving.contract.full_disk import FULL, is_full_disk
from transformer_serving.desk.failure import Failure, no_space

# What the cut file of a builder leaves free at most, where it is still there.
_LEAST = 1 << 20


@contextmanager
def room_told(folder: Path, size: int = _LEAST) -> Iterator[None]:
    """Raises Failure for whatever the block raises where the disk of `folder` has no room for
    `size` bytes, of a model, say; else that.

    Of a full disk OpenVINO and safetensors raise what has no errno, and ONNX Runtime what it thinks
    of a file that it has cut short itself.
    """
    try:
        yield
    except Failure:
        raise
    except Exception as error:
        said = is_full_disk(error) or any(os.strerror(code) in str(error) for code in FULL)
        if said or not _has_room(folder, max(size, _LEAST)):
            raise Failure(no_space(folder)) from error
        raise


def _has_room(folder: Path, size: int) -> bool:
    """Asked by taking it: of a share of the disk the free space says nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        return not is_full_disk(error)
    return True
