"""Archives as the tests pack them, and one that has the SDK write outside of its folder."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

FILES = {"manifest.json": b"{}", "model/weights.bin": bytes(100_000), "model/empty": b""}
Row = tuple[str, bytes, str, bytes]


OUTSIDE = "of the archive"


def tarred(path: Path, *rows: Row) -> Path:
    """Rows of a name, a type, where a link leads and what is in it."""
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, link, content in rows:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def file_rows(files: Mapping[str, bytes] = FILES) -> list[Row]:
    return [(name, tarfile.REGTYPE, "", content) for name, content in files.items()]


def climbing(path: Path) -> Path:
    """A link to `.`, and by it one to the root, which is the folder itself to who reads names."""
    count = 20
    up = "/".join(["x"] * count + [".."] * count)
    away = f"y{path.parent / OUTSIDE}"
    return tarred(
        path,
        ("x", tarfile.SYMTYPE, ".", b""),
        ("y", tarfile.SYMTYPE, up, b""),
        (away, tarfile.REGTYPE, "", b"written"),
    )


def full_for_writing(opened: Callable[..., io.IOBase]) -> Callable[..., io.IOBase]:
    """In the place of Path.open: what is unpacked goes to a device that is full."""

    def open_(self: Path, mode: str = "r", *more: object) -> io.IOBase:
        return opened(Path("/dev/full"), "wb") if mode == "xb" else opened(self, mode, *more)

    return open_
