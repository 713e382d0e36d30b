"""A file's new content in its place at once: a reader finds the old file or the new one, whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, *, aside: Path | None = None, durable: bool = False) -> Iterator[Path]:
    """A free name to write to; what stands there when the block ends takes the place of `path`.

    In the folder `aside`, on the same disk, or else beside `path`; nobody can guess it, so that in
    a shared folder nobody puts a link there. `durable`: the content is on the disk before. When
    the block raises, `path` is as it was, and nothing is left.
    """
    new = (aside or path.parent) / f".{path.name}.{secrets.token_hex(8)}"
    try:
        yield new
        if durable:
            sync(new)
        new.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            new.unlink()
        raise


def replace_file(
    path: Path,
    content: str | bytes,
    *,
    aside: Path | None = None,
    mode: int | None = None,
    durable: bool = False,
) -> None:
    """As `replacing`, with this content and exactly this mode; None: as a new file has it."""
    raw = content.encode() if isinstance(content, str) else content
    with replacing(path, aside=aside, durable=durable) as new:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(new, flags, 0o666 if mode is None else 0o600), "wb") as file:
            file.write(raw)
            if mode is not None:
                os.fchmod(file.fileno(), mode)


def sync(path: Path) -> None:
    """Return when what a file, or a folder's list of names, holds is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
