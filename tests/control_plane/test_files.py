"""The file store: whole files, and no path that leads out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.file_path import path_parts
from transformer_serving.control_plane.files.store import FileStore


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "data")


def put(files: FileStore, path: str, content: bytes) -> None:
    incoming = files.receive()
    try:
        incoming.write(content)
        files.put(incoming, path)
    finally:
        incoming.discard()


def read(files: FileStore, path: str) -> bytes:
    with files.open(path).content as content:
        return content.read()


def outside(tmp_path: Path) -> set[Path]:
    """Everything beside the store's own folders."""
    own = {tmp_path / "data", tmp_path / "data" / "files", tmp_path / "data" / "incoming"}
    inside = set((tmp_path / "data" / "files").rglob("*"))
    return set(tmp_path.rglob("*")) - own - inside


def test_write_read_replace_delete(files: FileStore) -> None:
    put(files, "P one/t.1/models/m.onnx", b"first")
    opened = files.open("/P one/t.1//models/./m.onnx")
    put(files, "P one/t.1/models/m.onnx", b"second")
    assert read(files, "P one/t.1/models/m.onnx") == b"second"
    with opened.content as content:
        assert (content.read(), opened.size) == (b"first", 5)
    assert files.delete("P one/t.1/models/m.onnx") is True
    assert files.delete("P one/t.1/models/m.onnx") is False
    with pytest.raises(ApiError, match="not found"):
        files.open("P one/t.1/models/m.onnx")


def test_what_an_earlier_kit_put_under_the_code_of_a_quote_is_reached(
    files: FileStore, tmp_path: Path
) -> None:
    earlier = tmp_path / "data" / "files" / "a%22b"
    earlier.mkdir()
    (earlier / "w").write_bytes(b"old")
    assert read(files, "a%22b/w") == b"old"
    put(files, "a%22b/w", b"new")
    assert read(files, "a%22b/w") == read(files, 'a"b/w') == b"new"
    assert files.delete("a%22b/w") is True
    with pytest.raises(ApiError, match="not found"):
        files.open("a%22b/w")


def test_a_name_that_is_too_long_as_its_code_only_is_not_looked_for_there(
    files: FileStore,
) -> None:
    path = "%22" * 100
    with pytest.raises(ApiError, match="not found"):
        files.open(path)
    put(files, path, b"x")
    assert read(files, path) == b"x"


def test_what_was_being_received_is_gone_after_a_restart(files: FileStore, tmp_path: Path) -> None:
    half = files.receive()
    half.write(b"half")
    assert list((tmp_path / "data" / "incoming").iterdir())
    FileStore(tmp_path / "data")
    assert not list((tmp_path / "data" / "incoming").iterdir())
    half.discard()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "./.",
        "..",
        "../x",
        "a/../../x",
        "a/..",
        "nul\0x",
        "line\nx",
        "half\udc80pair",
        "n" * 256,
        "ä" * 128,
        "p/" * 1000 + "x",
    ],
)
def test_refuses_a_path(files: FileStore, tmp_path: Path, path: str) -> None:
    for attempt in (lambda: put(files, path, b"x"), lambda: files.open(path)):
        with pytest.raises(ApiError, match="path") as refused:
            attempt()
        assert refused.value.failure is ApiFailure.FIELD_VALUE
    with pytest.raises(ApiError, match="path"):
        files.delete(path)
    assert outside(tmp_path) == set()


def test_symbolic_links_lead_nowhere(files: FileStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "data" / "files"
    (root / "folder").symlink_to(tmp_path)
    (root / "file").symlink_to(tmp_path / "secret")
    for path in ("folder/secret", "file"):
        with pytest.raises(ApiError, match="not found"):
            files.open(path)
    with pytest.raises(ApiError, match="runs into"):
        put(files, "folder/new", b"x")
    assert files.delete("folder/secret") is False
    # An upload to a link's own name replaces the link, not what it points to.
    put(files, "file", b"new")
    assert (tmp_path / "secret").read_text() == "secret"
    assert read(files, "file") == b"new"


def test_files_and_folders_do_not_replace_each_other(files: FileStore) -> None:
    put(files, "a/b", b"x")
    for path in ("a", "a/b/c"):
        with pytest.raises(ApiError, match="runs into"):
            put(files, path, b"y")
    with pytest.raises(ApiError, match="not found"):
        files.open("a")
    assert files.delete("a") is False
    assert read(files, "a/b") == b"x"


def test_only_plain_files_are_opened(files: FileStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data" / "files" / "pipe")
    with pytest.raises(ApiError, match="not found"):
        files.open("pipe")


def _round_trip(files: FileStore, path: str) -> ApiFailure | None:
    try:
        put(files, path, b"new")
        assert read(files, path) == b"new"
        assert files.delete(path)
    except ApiError as error:
        return error.failure
    return None


_PIECES = strategies.sampled_from(
    ["..", ".", "", "/", "//", "a", "b", "%2e%2e", "..%2f", "\\..\\", "\0", "~", "file", "folder"]
)
_PATHS = strategies.one_of(
    strategies.lists(_PIECES, max_size=8).map("/".join),
    strategies.lists(_PIECES, max_size=8).map("".join),
    strategies.text(max_size=60),
)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=_PATHS)
@example(path="/etc/passwd")
@example(path="folder/../../secret")
@example(path="folder/secret")
def test_no_path_leaves_the_store(tmp_path: Path, path: str) -> None:
    files = FileStore(tmp_path / "data")
    folder, secret = tmp_path / "data" / "files" / "folder", tmp_path / "secret"
    if not secret.exists():
        secret.write_text("secret")
        folder.symlink_to(tmp_path)
    before = outside(tmp_path)
    failure = _round_trip(files, path)
    assert failure in (None, ApiFailure.FIELD_VALUE, ApiFailure.FILE_NOT_FOUND)
    assert outside(tmp_path) == before
    assert secret.read_text() == "secret"
    if not folder.is_symlink():
        folder.symlink_to(tmp_path)


@given(path=_PATHS)
def test_parts_are_plain_names(path: str) -> None:
    try:
        parts = path_parts(path)
    except ApiError:
        return
    assert parts
    assert all(part not in ("", ".", "..") and "/" not in part for part in parts)
