"""What others packed, with the modules that read it: nothing lies outside, and no more than may."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from clearml.storage.archive import extract_tar_archive
from hypothesis import given, settings, strategies as st

from tests.contract.archives import FILES, OUTSIDE, climbing, file_rows, full_for_writing, tarred
from transformer_serving.contract import archives
from transformer_serving.contract.archives import (
    ArchiveDamaged,
    ArchiveFault,
    ArchiveTooLarge,
    is_archive,
    unpack,
)

MOST = 1_000_000


def zipped(path: Path, files: Mapping[str, bytes] = FILES, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            row = zipfile.ZipInfo(name)
            row.compress_type, row.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            archive.writestr(row, content)
    return path


def found(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if not path.is_dir()]
    assert not any(path.is_symlink() for path in paths)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_files_and_folders_come_as_they_were_packed(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with tarfile.open(tmp_path / "of-a-shell.tgz", "w:gz") as archive:
        archive.add(folder, ".")
    with zipfile.ZipFile(tmp_path / "of-the-sdk.ZIP", "w") as packed:
        for path in folder.rglob("*"):
            packed.write(path, path.relative_to(folder))
    # As requests has it of a server that calls it gzip's.
    plain = tmp_path / "plain.tar.gz"
    plain.write_bytes(gzip.decompress(tarred(plain, *file_rows()).read_bytes()))
    sizes: list[int] = []
    for path in (
        zipped(tmp_path / "a.zip"),
        tarred(tmp_path / "a.tar.gz", *file_rows()),
        *(plain, tmp_path / "of-a-shell.tgz", tmp_path / "of-the-sdk.ZIP"),
    ):
        assert is_archive(path.name)
        unpack(path, tmp_path / "out" / path.stem, MOST, sizes.append)
        assert found(tmp_path / "out" / path.stem) == FILES
    assert sizes == [100_002] * 5
    assert not any(map(is_archive, ("model.onnx", "model.tar", "model.gz", "zip", "a.zip.part")))


def packed_by(tool: str, folder: Path, path: Path) -> Path:
    """As one packs a folder that has a file under two names."""
    if tool == "shutil":
        return Path(shutil.make_archive(str(path), "gztar", folder))
    words = {"links": ["-h", "."], "names": [".", "./manifest.json"]}[tool]
    subprocess.run(["tar", "-C", str(folder), "-czf", str(path), *words], check=True)
    return path


@pytest.mark.parametrize("tool", ["links", "names", "shutil"])
def test_a_file_under_two_names_comes_as_often(tmp_path: Path, tool: str) -> None:
    """What packs it makes a hard link of the second, which a symlink was before."""
    folder, one = tmp_path / "packed", tmp_path / "one"
    (folder / "model").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(b"{}")
    one.write_bytes(os.urandom(50_000))
    makers: dict[str, Callable[[Path, Path], object]] = {"links": os.symlink, "shutil": os.link}
    make, names = makers.get(tool, shutil.copyfile), ("a", "b", "c")
    for name in names:
        make(one, folder / "model" / name)
    path, sizes = packed_by(tool, folder, tmp_path / "a.tgz"), list[int]()
    with tarfile.open(path) as archive:
        assert any(member.islnk() for member in archive)
    unpack(path, tmp_path / "out", MOST, sizes.append)
    content = {f"model/{name}": one.read_bytes() for name in names}
    assert found(tmp_path / "out") == {"manifest.json": b"{}", **content}
    assert sizes == [150_002]


def test_a_link_is_counted_as_the_file_that_it_becomes(tmp_path: Path) -> None:
    rows = [(f"a{number}", tarfile.LNKTYPE, "a", b"") for number in range(9)]
    path = tarred(tmp_path / "a.tgz", ("a", tarfile.REGTYPE, "", bytes(100_000)), *rows)
    unpack(path, tmp_path / "out", MOST)
    with pytest.raises(ArchiveTooLarge, match="more than 999999 bytes"):
        unpack(path, tmp_path / "less", MOST - 1)


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_a_sparse_file_is_told_as_one(tmp_path: Path, kind: str) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(500_000)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    path = tmp_path / "a.tgz"
    words = ["-C", str(tmp_path), "-S", f"--format={kind}", "-czf", str(path), "weights"]
    subprocess.run(["tar", *words], check=True)
    with pytest.raises(ArchiveFault, match="its entry 'weights' is packed without the holes in it"):
        unpack(path, tmp_path / "out", MOST)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE])
def test_a_name_that_stands_twice_is_refused_before_anything_is_written(
    tmp_path: Path, kind: bytes
) -> None:
    path = tarred(tmp_path / "a.tgz", *file_rows(), ("./model//empty", kind, "manifest.json", b""))
    told: list[int] = []
    with pytest.raises(ArchiveFault, match="its entry 'model/empty' stands in it twice"):
        unpack(path, tmp_path / "out", MOST, told.append)
    assert told == []


@pytest.mark.parametrize("mode", ["w:bz2", "w:xz", "zip"])
def test_what_is_packed_otherwise_says_so(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.tar.gz"
    if mode == "zip":
        zipped(path)
    else:
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
            archive.add(__file__, "a")
    with pytest.raises(ArchiveFault, match=r"is not gzip's.*; pack it with `tar -czf`") as fault:
        unpack(path, tmp_path / "out", MOST)
    # Which another download would not mend.
    assert not isinstance(fault.value, ArchiveDamaged)


def test_names_that_are_kept_are_no_more_than_a_list_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_LIST", 1000)
    rows = [(f"{number:010}", tarfile.DIRTYPE, "", b"") for number in range(101)]
    unpack(tarred(tmp_path / "a.tgz", *rows[:100]), tmp_path / "out", MOST)
    with pytest.raises(ArchiveFault, match="names in it have more than 1000 characters"):
        unpack(tarred(tmp_path / "b.tgz", *rows), tmp_path / "none", MOST)


def test_links_that_the_sdk_follows_are_refused(tmp_path: Path) -> None:
    path = climbing(tmp_path / "a.tar.gz")
    with pytest.raises(ArchiveFault, match="its entry 'x' is a link"):
        unpack(path, tmp_path / "ours", MOST)
    assert not (tmp_path / OUTSIDE).exists()
    assert not (tmp_path / "ours").exists()
    (tmp_path / "sdk").mkdir()
    extract_tar_archive(str(path), ".tar.gz", str(tmp_path / "sdk"))
    assert (tmp_path / OUTSIDE).read_bytes() == b"written"


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("a", tarfile.SYMTYPE, "manifest.json"),
        ("a", tarfile.LNKTYPE, "a"),
        ("a", tarfile.LNKTYPE, "model"),
        ("a", tarfile.LNKTYPE, "../of the folder"),
        ("a", tarfile.LNKTYPE, "/etc/passwd"),
        ("manifest.json", tarfile.LNKTYPE, "model/empty"),
        ("a", tarfile.FIFOTYPE, ""),
        ("a", tarfile.CHRTYPE, ""),
        ("../a", tarfile.REGTYPE, ""),
        ("b/../../a", tarfile.REGTYPE, ""),
        ("/a", tarfile.REGTYPE, ""),
        ("../b", tarfile.DIRTYPE, ""),
        ("manifest.json", tarfile.REGTYPE, ""),
        ("manifest.json/a", tarfile.REGTYPE, ""),
        ("manifest.json", tarfile.DIRTYPE, ""),
        ("a" * 300, tarfile.REGTYPE, ""),
        ("a/" * 64 + "a", tarfile.REGTYPE, ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_tar_of_anything_else_is_refused(
    tmp_path: Path, name: str, kind: bytes, link: str
) -> None:
    path = tarred(tmp_path / "a.tgz", *file_rows(), (name, kind, link, b""))
    with pytest.raises(ArchiveFault, match="its entry|cannot be written"):
        unpack(path, tmp_path / "out", MOST)
    assert [one.name for one in tmp_path.iterdir()] == ["a.tgz"]


@pytest.mark.parametrize("name", ["../a", "b/../../a", "/a", "manifest.json", "manifest.json/a"])
def test_a_zip_with_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a") as archive:
        # zipfile itself warns of a name that is there.
        archive.NameToInfo.clear()
        archive.writestr(name, b"")
    with pytest.raises(ArchiveFault, match="its entry"):
        unpack(path, tmp_path / "out", MOST)
    assert [one.name for one in tmp_path.iterdir()] == ["a.zip"]


def encrypted(path: Path) -> Path:
    packed = bytearray(zipped(path).read_bytes())
    at = packed.index(b"PK\1\2")
    packed[at + 8] |= 1
    path.write_bytes(packed)
    return path


def of_lzma(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", b"a")
    return path


def of_links(path: Path) -> Path:
    return zipped(path, {"a": b"/etc/passwd"}, stat.S_IFLNK | 0o777)


@pytest.mark.parametrize(
    ("made", "said"),
    [(encrypted, "encrypted"), (of_lzma, "otherwise than by deflate"), (of_links, "is a link")],
)
def test_a_zip_of_other_things_is_refused(
    tmp_path: Path, made: Callable[[Path], Path], said: str
) -> None:
    with pytest.raises(ArchiveFault, match=said):
        unpack(made(tmp_path / "a.zip"), tmp_path / "out", MOST)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_no_more_is_unpacked_than_may_be(tmp_path: Path, name: str) -> None:
    path, files = tmp_path / name, {"a": bytes(600_000), "b": bytes(600_000)}
    _ = zipped(path, files) if name == "a.zip" else tarred(path, *file_rows(files))
    with pytest.raises(ArchiveTooLarge, match="more than 1000000 bytes"):
        unpack(path, tmp_path / "out", MOST)
    with pytest.raises(ZeroDivisionError):
        unpack(path, tmp_path / "out", 2 * MOST, lambda size: size // 0)
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_a_zip_that_says_less_than_it_holds_is_damaged(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"a": bytes(600_000)})
    packed, size = path.read_bytes(), struct.pack("<I", 600_000)
    path.write_bytes(packed.replace(size, struct.pack("<I", 10)))
    with pytest.raises(ArchiveDamaged):
        unpack(path, tmp_path / "out", 10)
    assert not (tmp_path / "out").exists()


def test_a_tar_that_is_all_heads_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_HEADS", 100_000)
    rows = [(f"a{number}", tarfile.DIRTYPE, "", b"") for number in range(300)]
    with pytest.raises(ArchiveFault, match="files and heads take more than 100010 bytes"):
        unpack(tarred(tmp_path / "a.tgz", *rows), tmp_path / "out", 10)
    monkeypatch.setattr(archives, "_MOST_ENTRIES", 299)
    for path in (
        tarred(tmp_path / "b.tgz", *rows),
        zipped(tmp_path / "b.zip", {row[0]: b"" for row in rows}),
    ):
        with pytest.raises(ArchiveFault, match="more than 299 files"):
            unpack(path, tmp_path / "out", 10 * MOST)


def head_of(size: int, kind: bytes) -> bytes:
    head = tarfile.TarInfo("a")
    head.type, head.size = kind, size
    return head.tobuf(tarfile.GNU_FORMAT)


def sparse_head() -> bytes:
    """With its list of places in the blocks behind it."""
    head = bytearray(head_of(512, tarfile.GNUTYPE_SPARSE))
    head[482] = 1
    head[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(head))[0]  # type: ignore[attr-defined]
    return bytes(head)


def sparse_list() -> bytes:
    """That goes on in the next block."""
    return (b"%011o\0" % 1 * 2 * 21).ljust(504, b"\0") + b"\1" * 8


@pytest.mark.parametrize(
    ("packed", "fault"),
    [
        # It would be read into memory at once, and sought through again for each digit in it.
        (head_of(1 << 30, tarfile.GNUTYPE_LONGNAME) + bytes(1 << 20), ArchiveFault),
        (head_of(100_000, tarfile.XHDTYPE) + b"1" * 100_352, ArchiveFault),
        # Each head has tarfile call itself.
        (head_of(1, tarfile.GNUTYPE_LONGNAME) * 2 * 2000, ArchiveDamaged),
        (head_of(-1024, tarfile.REGTYPE), ArchiveDamaged),
        # Each block of it would be kept as 21 pairs.
        (sparse_head() + sparse_list() * 20_000, ArchiveFault),
        (b"", ArchiveDamaged),
        (b"no tar" * 200, ArchiveDamaged),
    ],
    ids=["long-name", "digits", "name-of-names", "negative", "holes", "empty", "noise"],
)
def test_what_traps_tarfile_is_refused(
    tmp_path: Path, packed: bytes, fault: type[ArchiveFault]
) -> None:
    (tmp_path / "a.tgz").write_bytes(gzip.compress(packed))
    with pytest.raises(fault) as raised:
        unpack(tmp_path / "a.tgz", tmp_path / "out", MOST)
    assert type(raised.value) is fault


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_half_an_archive_is_damaged(tmp_path: Path, name: str, kept: float) -> None:
    path, files = tmp_path / name, {"a": os.urandom(50_000), "b": os.urandom(50_000)}
    _ = zipped(path, files) if name == "a.zip" else tarred(path, *file_rows(files))
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(ArchiveDamaged, match="it is damaged"):
        unpack(path, tmp_path / "out", MOST)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.sampled_from([".zip", ".tgz"]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=8),
)
def test_no_bytes_raise_anything_else_or_lie_outside(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, changes: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    whole = {"a/b": b"some", "a/c": b"more"}
    path = folder / f"a{suffix}"
    if suffix == ".zip":
        packed = bytearray(zipped(path, whole).read_bytes())
    else:
        packed = bytearray(gzip.decompress(tarred(path, *file_rows(whole)).read_bytes()))
    for at, value in changes:
        packed[at % len(packed)] = value
    path.write_bytes(packed if suffix == ".zip" else gzip.compress(packed))
    try:
        unpack(path, folder / "out", MOST)
    except ArchiveFault:
        assert not (folder / "out").exists()
    assert {one.name for one in folder.iterdir()} <= {path.name, "out"}


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", full_for_writing(Path.open))
    with pytest.raises(OSError, match="No space left"):
        unpack(zipped(tmp_path / "a.zip"), tmp_path / "out", MOST)
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fails_is_no_fault_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another time it is unpacked."""
    path, opened = zipped(tmp_path / "a.zip"), Path.open

    def open_(self: Path, mode: str = "r", *more: Any) -> Any:
        if mode == "xb":
            raise OSError(errno.EIO, "Input/output error")
        return opened(self, mode, *more)

    monkeypatch.setattr(Path, "open", open_)
    with pytest.raises(OSError, match="Input/output error"):
        unpack(path, tmp_path / "out", MOST)
    assert not (tmp_path / "out").exists()
