"""A model over a line that breaks, of the embedded control plane and of a server like ClearML's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.archives import climbing, file_rows, tarred
from tests.control_plane.conftest import ACCESS_KEY, SECRET_KEY, ServerProcess
from tests.engine.cutting import CutLine, file_server
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
WEIGHTS = os.urandom(400_000)
_SCRIPT = """
import sys
from pathlib import Path
from clearml.storage.cache import CacheManager
from transformer_serving.engine.controller.files.room import Room
from transformer_serving.engine.controller.files.storage import model_copy
from transformer_serving.engine.errors import EngineError
uri, unfinished = sys.argv[1], Path(sys.argv[2]) if sys.argv[2] else None
try:
    with Room().share(unfinished) as share, model_copy(uri, unfinished, share) as copy:
        # Whoever stages it tells its part of the room, however it came.
        assert copy.share is share
        files = [copy.path] if copy.path.is_file() else sorted(copy.path.iterdir())
        print([(file.name, len(file.read_bytes())) for file in files])
except EngineError as error:
    print("failed:", type(error).__name__, error)
# Each retry of a model that is refused would leave one.
left = [name for name in CacheManager._CacheManager__cache_managers if name != "global"]
assert not left, left
"""
# A controller whose state, downloads and cache lie on one volume, and what it takes of that.
_PEAK = """
import os, sys
from functools import partial
from pathlib import Path
from clearml.storage import StorageManager
from transformer_serving.engine.controller.files import repository, storage
from transformer_serving.engine.controller.files.model_cache import ModelCache
from transformer_serving.engine.controller.files.room import Room
from transformer_serving.engine.controller.files.storage import model_copy
from transformer_serving.engine.errors import StorageError
uri, limit, state = sys.argv[1], int(sys.argv[2]), Path(os.environ["CLEARML_CACHE_DIR"])
peak = 0
def watched(step):
    def look(*arguments, **options):
        global peak
        done = step(*arguments, **options)
        files = [path for path in state.rglob("*") if path.is_file()]
        peak = max(peak, sum(path.stat().st_size for path in files))
        return done
    return look
# Each is the last of those that write.
StorageManager.get_local_copy = watched(StorageManager.get_local_copy)
storage.unpack = watched(storage.unpack)
repository._sync_tree = watched(repository._sync_tree)
store = repository.Repository(state / "models")
cache = ModelCache(None, state / "downloads", Room(state, limit))
try:
    with cache.model("m", partial(model_copy, uri)) as copy:
        token = store.stage("m", copy.path, "", ours=copy.ours, share=copy.share)
    print(peak, sorted(path.name for path in store.files("m", token).iterdir()))
except StorageError as error:
    print("failed:", error)
print([path.name for path in (state / "downloads").iterdir() if path.is_dir()])
"""
# The claim that several pods mount is full, and the pod's own disk is not.
_FULL = """
import errno, sys
from functools import partial
from pathlib import Path
from transformer_serving.engine.controller.files.download import Download
from transformer_serving.engine.controller.files.model_cache import ModelCache
from transformer_serving.engine.controller.files.storage import model_copy
from transformer_serving.engine.errors import StorageError
claim, own, wrote = Path("claim"), Path("own"), Download._write
full = (claim,) if sys.argv[2] == "claim" else (claim, own)
def write(self, answer, file, about):
    if any(each in self.path.parents for each in full):
        raise OSError(errno.ENOSPC, "No space left on device")
    wrote(self, answer, file, about)
Download._write = write
try:
    with ModelCache(claim, own).model(sys.argv[2], partial(model_copy, sys.argv[1])) as copy:
        print(copy.path.stat().st_size)
except StorageError as error:
    print(error)
"""
# As a controller ends that is told to while it fetches.
_ENDED = """
import os, sys
from transformer_serving.engine.controller.files.storage import fresh_copy
with fresh_copy(sys.argv[1], "model"):
    os._exit(0)
"""
_STARTED = """
import sys
from pathlib import Path
from transformer_serving.engine.controller.control_plane.clearml_edge import ClearmlControlPlane
from transformer_serving.engine.controller.files.storage import fresh_copy
with fresh_copy(sys.argv[1], "model") as copy:
    ClearmlControlPlane("0" * 32)
    print(copy.path.stat().st_size)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("plane") / "data", free_port())
    running.start()
    yield running
    running.close()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """As clearml-serving uploads a folder."""
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("manifest.json", "{}")
        file.writestr("model.onnx", WEIGHTS)
    return path


def copied(folder: Path, api: int, files: str, uri: str, unfinished: Path | None) -> str:
    """What a process of the controller's has of it."""
    return ran(_SCRIPT, folder, api, files, uri, str(unfinished or ""))


def ran(script: str, folder: Path, api: int, files: str, *arguments: str) -> str:
    """What a process of the controller's says."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CLEARML_")}
    (folder / "clearml.conf").touch()
    plane = f"http://127.0.0.1:{api}"
    environment = {
        **kept, "CLEARML_API_HOST": plane, "CLEARML_WEB_HOST": plane, "CLEARML_FILES_HOST": files,
        "CLEARML_API_ACCESS_KEY": ACCESS_KEY, "CLEARML_API_SECRET_KEY": SECRET_KEY,
        "CLEARML_CONFIG_FILE": str(folder / "clearml.conf"),
        "CLEARML_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=folder,
    )  # fmt: skip
    return done.stdout.strip()


def test_an_archive_comes_over_a_line_that_breaks(
    server: ServerProcess, archive: Path, tmp_path: Path
) -> None:
    session = server.session()
    with archive.open("rb") as file:
        sent = session.post(server.url, files={"models/a b/model.zip": ("model.zip", file)})
    assert sent.status_code == 200, sent.text
    with CutLine(server.port, [150_000, 150_000]).listening() as line:
        host = f"http://127.0.0.1:{line.port}"
        uri = f"{host}/models/a%20b/model.zip"
        said = copied(tmp_path, server.port, host, uri, tmp_path / "unfinished")
        ranges = line.ranges()
    assert said == f"[('manifest.json', 2), ('model.onnx', {len(WEIGHTS)})]"
    assert [bool(row) for row in ranges] == [False, True, True]
    assert not (tmp_path / "unfinished").exists()


def test_one_file_comes_from_a_server_like_clearmls(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(WEIGHTS)
    with (
        file_server(tmp_path) as port,
        CutLine(port, [100_000]).listening() as line,
    ):
        host = f"http://127.0.0.1:{line.port}"
        said = copied(tmp_path, server.port, host, f"{host}/model.onnx", tmp_path / "unfinished")
        # The suffix is what the kind of model is known by.
        assert said == f"[('model.onnx', {len(WEIGHTS)})]"
        assert len(line.ranges()) == 2
        missing = copied(tmp_path, server.port, host, f"{host}/none.onnx", tmp_path / "unfinished")
    assert missing == (
        f"failed: NotStored the model could not be downloaded from {host}/none.onnx: "
        "the server answered 404"
    )


def test_what_a_controller_had_in_its_hands_when_it_ended_goes_at_the_next_start(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(WEIGHTS)
    cache = tmp_path / "cache" / "storage_manager"
    with file_server(tmp_path) as port:
        host = f"http://127.0.0.1:{port}"
        ran(_ENDED, tmp_path, server.port, host, f"{host}/model.onnx")
        [left] = cache.iterdir()
        assert [path.stat().st_size for path in left.iterdir()] == [len(WEIGHTS)]
        # Of others, and of another controller that is at work.
        for name in ("global", "engine-mine"):
            (cache / name).mkdir()
        said = ran(_STARTED, tmp_path, server.port, host, f"{host}/model.onnx")
    assert said == str(len(WEIGHTS))
    assert {path.name for path in cache.iterdir()} == {"global", "engine-mine"}


@pytest.mark.parametrize(
    ("name", "copies"), [("model.zip", 2), ("model.onnx", 1)], ids=["archive", "file"]
)
def test_a_model_on_its_way_lies_on_the_volume_twice_at_most(
    server: ServerProcess, archive: Path, tmp_path: Path, name: str, copies: int
) -> None:
    (tmp_path / "model.onnx").write_bytes(WEIGHTS)
    with file_server(tmp_path) as port:
        host = f"http://127.0.0.1:{port}"
        said = ran(_PEAK, tmp_path, server.port, host, f"{host}/{name}", "0").splitlines()
    peak, _, names = said[0].partition(" ")
    assert len(WEIGHTS) <= int(peak) < copies * len(WEIGHTS) + 10_000
    assert names == str(["manifest.json", "model.onnx"] if name == archive.name else [name])
    assert said[1] == "[]"


def test_what_the_volume_has_no_room_for_is_not_fetched(
    server: ServerProcess, archive: Path, tmp_path: Path
) -> None:
    """The kubelet would end the pod, and each one in its place."""
    with file_server(tmp_path) as port, CutLine(port, []).listening() as line:
        host = f"http://127.0.0.1:{line.port}"
        uri, fits = f"{host}/{archive.name}", str(3 * len(WEIGHTS))
        assert ran(_PEAK, tmp_path, server.port, host, uri, fits).startswith("80")
        # What is there already counts.
        left = ran(_PEAK, tmp_path, server.port, host, uri, fits).splitlines()
        assert len(line.asked) == 2
    assert left[0].startswith(
        "failed: the model needs 0.8 MB while it is fetched, and of the 1.2 MB"
    )
    assert "raise triton.store.size" in left[0]
    assert left[1] == "[]"


def test_an_archive_that_unpacks_to_more_than_there_is_room_for(
    server: ServerProcess, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model.onnx", bytes(10_000_000))
    with file_server(tmp_path) as port:
        host = f"http://127.0.0.1:{port}"
        said = ran(_PEAK, tmp_path, server.port, host, f"{host}/model.zip", "9000000")
    assert said.startswith("failed: the model needs 10.0 MB")


def test_an_archive_that_cannot_be_unpacked_is_no_model(
    server: ServerProcess, archive: Path, tmp_path: Path
) -> None:
    archive.write_bytes(archive.read_bytes()[:-1000])
    with file_server(tmp_path) as port:
        host = f"http://127.0.0.1:{port}"
        said = ran(_PEAK, tmp_path, server.port, host, f"{host}/model.zip", "9000000")
    said, left = said.splitlines()
    assert left == "[]"
    assert said.startswith("failed: the model 'model.zip' could not be unpacked: it is damaged")


def test_a_full_claim_keeps_no_model_from_a_disk_that_has_room(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(WEIGHTS)
    with file_server(tmp_path) as port:
        host = f"http://127.0.0.1:{port}"
        uri = f"{host}/model.onnx"
        said = ran(_FULL, tmp_path, server.port, host, uri, "claim")
        assert said == str(len(WEIGHTS))
        said = ran(_FULL, tmp_path, server.port, host, uri, "both")
    assert said.endswith("model.onnx: the disk of own has no room for it")


def test_a_file_of_the_users_own_is_left_where_it_is(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(WEIGHTS)
    said = copied(tmp_path, server.port, server.url, file.as_uri(), tmp_path / "unfinished")
    assert said == f"[('model.onnx', {len(WEIGHTS)})]"
    assert file.is_file()
    assert not (tmp_path / "unfinished").exists()


def uploaded(server: ServerProcess, path: Path) -> str:
    with path.open("rb") as file:
        sent = server.session().post(server.url, files={f"models/{path.name}": (path.name, file)})
    assert sent.status_code == 200, sent.text
    return f"{server.url}/models/{path.name}"


@pytest.mark.parametrize("by", ["web", "file"])
def test_an_archive_with_links_is_refused_before_anything_is_written(
    server: ServerProcess, tmp_path: Path, by: str
) -> None:
    """The SDK follows a link to `.` and by it one that leads to the root."""
    (tmp_path / "own").mkdir()
    path = climbing(tmp_path / "own" / "model.tar.gz")
    uri = uploaded(server, path) if by == "web" else path.as_uri()
    said = copied(tmp_path, server.port, server.url, uri, tmp_path / "unfinished")
    assert said.startswith("failed: EngineError the model 'model.tar.gz' could not be unpacked: ")
    assert "its entry 'x' is a link" in said
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert not list((tmp_path / "cache" / "storage_manager").iterdir())


@pytest.mark.parametrize("by", ["web", "file"])
def test_a_tar_of_a_model_is_unpacked(server: ServerProcess, tmp_path: Path, by: str) -> None:
    path = tarred(tmp_path / "tar.tgz", *file_rows({"a.json": b"{}", "model.onnx": WEIGHTS}))
    uri = uploaded(server, path) if by == "web" else path.as_uri()
    said = copied(tmp_path, server.port, server.url, uri, tmp_path / "unfinished")
    assert said == f"[('a.json', 2), ('model.onnx', {len(WEIGHTS)})]"
    assert path.is_file()


@pytest.mark.parametrize("by", ["web", "file"])
def test_a_tar_that_unpacks_to_more_than_there_is_room_for(
    server: ServerProcess, tmp_path: Path, by: str
) -> None:
    """Nothing in it says what all of it takes."""
    path = tarred(tmp_path / "zeros.tgz", *file_rows({"model.onnx": bytes(10_000_000)}))
    uri = uploaded(server, path) if by == "web" else path.as_uri()
    said = ran(_PEAK, tmp_path, server.port, server.url, uri, "9000000")
    assert said.startswith("failed: the model needs 10.0 MB")


_CROWDED = """
import shutil, sys
from pathlib import Path
from types import SimpleNamespace
from transformer_serving.engine.controller.files.room import Room
from transformer_serving.engine.controller.files.storage import model_copy
from transformer_serving.engine.errors import StorageError
shutil.disk_usage = lambda folder: SimpleNamespace(free=200_000)
try:
    with Room().share(None) as share, model_copy(sys.argv[1], None, share):
        print("taken")
except StorageError as error:
    print(error)
"""


def test_a_disk_without_room_is_not_filled(server: ServerProcess, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model.onnx", bytes(10_000_000))
    uri = (tmp_path / "model.zip").as_uri()
    said = ran(_CROWDED, tmp_path, server.port, server.url, uri)
    cache = tmp_path / "cache" / "storage_manager"
    assert said.endswith(f"more than 200000 bytes, and {cache} has room for no more")
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://me:s3cret@{}/m.zip?X-Amz-Signature=s3cret", ""),
        ("s3://me:s3cret@b/m?s3cret", "ValueError: Storage access failed: s3://b/m"),
        (
            "azure://me.blob.core.windows.net/c/m.zip?sig=s3cret",
            "StorageError: Can't find azure configuration",
        ),
    ],
    ids=["web", "s3", "azure"],
)
@pytest.mark.parametrize("by", ["download", "sdk"])
def test_what_failed_is_told_without_what_its_address_opens(
    server: ServerProcess, tmp_path: Path, address: str, why: str, by: str
) -> None:
    uri = address.format(f"127.0.0.1:{server.port}")
    unfinished = tmp_path / "unfinished" if by == "download" else None
    said = copied(tmp_path, server.port, server.url, uri, unfinished).splitlines()[-1]
    assert said.startswith("failed: ")
    assert "the model could not be downloaded from " in said
    assert why in said
    assert "s3cret" not in said


_CODE = """
import sys
from transformer_serving.engine.controller.files.storage import fresh_copy
with fresh_copy(sys.argv[1], "preprocess") as copy:
    print(copy.path.read_bytes()[:2])
"""


def test_code_is_never_unpacked(server: ServerProcess, tmp_path: Path) -> None:
    """One file, whatever its address says; the bundle's own check refuses what it is."""
    (tmp_path / "own").mkdir()
    path = climbing(tmp_path / "own" / "preprocess.py.tar.gz")
    said = ran(_CODE, tmp_path, server.port, server.url, uploaded(server, path))
    assert said.endswith(repr(b"\x1f\x8b"))
    assert [one.name for one in path.parent.iterdir()] == [path.name]
