"""What holds a file of ClearML's storage up, holds nothing else up: with the host's own classes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import struct
import tempfile
import threading
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from clearml_serving.serving import model_request_processor
from clearml_serving.serving.endpoints import ModelEndpoint
from clearml_serving.serving.model_request_processor import (
    EndpointNotFoundException,
    FastWriteCounter,
    ModelRequestProcessor,
)
from clearml_serving.serving.preprocess_service import BasePreprocessRequest
from starlette.responses import JSONResponse

from tests.contract.archives import climbing, full_for_writing
from tests.gateway.played_host import host_of
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE, TrustedKeys
from transformer_serving.gateway import golden_rounds
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.host import building, code_copy, code_files, preprocess_gate
from transformer_serving.gateway.host.code_copy import CodeCopyError
from transformer_serving.gateway.settings import read_settings

CODE = """
from starlette.responses import JSONResponse


class Preprocess:
    serves_responses = {ours}
    operations = frozenset()

    {steps} preprocess(self, body, state, collect=None):
        return body

    async def process(self, data, state, collect=None):
        return data

    {steps} postprocess(self, data, state, collect=None):
        return JSONResponse({{"code": "{says}"}})
"""
# Of the SDK's own copy of pyhocon, which reads where its cache is.
of_the_sdk = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TENSORS = {
    "input_name": "x", "input_type": "float32", "input_size": [1], "output_name": "y",
    "output_type": "float32", "output_size": [1],
}  # fmt: skip


class Artifact:
    """Of the serving task, in a store that is well or not."""

    type = "custom"

    def __init__(
        self, folder: Path, name: str, says: str, *, ours: bool = True, steps: str = "def"
    ) -> None:
        self.name = name
        self.url = f"https://me:secret@store.example/{folder.name}/{name}?signature=secret"
        self.file = folder / f"{says}.py"
        self.file.write_text(CODE.format(says=says, ours=ours, steps=steps))
        self.hash = hashlib.sha256(self.file.read_bytes()).hexdigest()
        self.store = "well"
        self.let_go = threading.Event()
        self.asked: list[threading.Thread] = []

    def get_local_copy(self, extract_archive: bool = True, force_download: bool = False) -> Any:
        self.asked.append(threading.current_thread())
        if self.store == "hangs":
            # Were it in the loop, the test would still end.
            self.let_go.wait(30)
        if self.store == "raises":
            raise ConnectionError(f"of the store at {self.url}")
        return None if self.store == "refuses" else str(self.file)


class Task:
    id = "0" * 32

    def __init__(self, *artifacts: Artifact) -> None:
        self.artifacts = {one.name: one for one in artifacts}


def processor_of(task: Task, **endpoints: str) -> Any:
    """The host's own, that serves each endpoint by the artifact of that name."""
    made = ModelRequestProcessor.__new__(ModelRequestProcessor)
    made._task, made._canary_route, made._engine_processor_lookup = task, {}, {}
    made._model_monitoring_endpoints, made._metric_logging = {}, {}
    made._kafka_stats_url, made._update_lock_flag = None, False
    made._request_processing_state = FastWriteCounter()
    made._sync_daemon_thread = threading.current_thread()
    made._endpoints = {url: endpoint(url, name) for url, name in endpoints.items()}
    return made


def endpoint(url: str, artifact: str, engine: str = "triton") -> Any:
    return ModelEndpoint(
        engine_type=engine, serving_url=url, model_id="m", preprocess_artifact=artifact, **TENSORS
    )


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's classes as the gateway has them, and no pause of a second."""
    for owner, name in (
        (ModelRequestProcessor, "deserialize"),
        (BasePreprocessRequest, "__init__"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    code_files.fetch_beside(ModelRequestProcessor, BasePreprocessRequest)
    code_files.code_files.cache_clear()
    for module in (building, golden_rounds):
        monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    monkeypatch.setattr(building, "_UPDATE_WAIT_S", 0.02)
    # The host's own sleep while it takes a change over is half a second longer than this.
    monkeypatch.setattr(model_request_processor, "random", lambda: -0.48)
    monkeypatch.setattr(golden_rounds, "_TIMEOUT_S", 5.0)
    monkeypatch.setattr(golden_rounds, "EVERY_S", 0.1)
    monkeypatch.setattr(golden_rounds, "_LOOK_S", 0.05)
    monkeypatch.setattr(code_files, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(code_files, "_LONGEST_PAUSE_S", 0.2)


class Gateway:
    def __init__(self, processor: Any) -> None:
        self.host = host_of(processor)
        self.host.EndpointNotFoundException = EndpointNotFoundException
        self.door = FrontDoor(self.host, read_settings({}))
        transport = httpx.ASGITransport(self.door)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def ask(self, url: str) -> httpx.Response:
        return await self.client.post(f"/serve/{url}", json={})

    async def says(self, url: str) -> Any:
        answer = await self.ask(url)
        return answer.json()["code"] if answer.status_code in (200, 503) else answer.status_code

    async def golden(self, url: str) -> Any:
        answer = await self.client.get(f"/health/endpoints/{url}")
        return answer.json()["state"]

    async def until(self, holds: Callable[[], Any]) -> None:
        """For a while that no machine needs."""
        async with asyncio.timeout(60):
            while not await holds():
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def serving(processor: Any) -> AsyncIterator[Gateway]:
    gateway = Gateway(processor)
    gateway.door._rounds.start()
    try:
        yield gateway
    finally:
        gateway.door._rounds.stop()
        await gateway.client.aclose()


@pytest.mark.parametrize("store", ["hangs", "refuses", "raises"])
async def test_one_file_that_does_not_come_leaves_the_other_endpoints_alone(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(golden_rounds, "_TIMEOUT_S", 0.05)
    bad, good = Artifact(tmp_path, "py_bad", "bad"), Artifact(tmp_path, "py_good", "good")
    bad.store = store
    caplog.set_level("INFO")
    async with serving(processor_of(Task(bad, good), bad="py_bad", good="py_good")) as gateway:
        for _ in range(3):
            answer = await gateway.ask("bad")
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.headers["retry-after"]
            assert await gateway.says("good") == "good"
            assert (await gateway.client.get("/health/live")).status_code == 200
        await gateway.until(lambda: ready(gateway))
        row = (await gateway.client.get("/health/endpoints/bad")).json()
        assert row["state"] == "failed"
        assert row["reason"].startswith("503 unavailable")
        assert await gateway.golden("good") != "failed"
        bad.store = "well"
        bad.let_go.set()
        await gateway.until(lambda: is_ok(gateway, "bad"))
        assert await gateway.says("bad") == "bad"
    assert threading.main_thread() not in {*bad.asked, *good.asked}
    assert "https://store.example/" in caplog.text
    assert "secret" not in caplog.text
    said = {
        "hangs": "still waiting",
        "refuses": "no copy came",
        "raises": "ConnectionError: of the",
    }
    assert said[store] in caplog.text
    lines = [one for one in caplog.messages if one.startswith("endpoint bad")]
    assert [one.endswith("is here") for one in lines].index(True) == len(lines) - 1


async def ready(gateway: Gateway) -> bool:
    return (await gateway.client.get("/health/ready")).status_code == 200


async def is_ok(gateway: Gateway, url: str) -> bool:
    return bool(await gateway.golden(url) == "ok")


async def test_an_update_is_served_by_the_code_before_until_its_own_has_come(
    tmp_path: Path,
) -> None:
    old, new = Artifact(tmp_path, "py_a", "old"), Artifact(tmp_path, "py_a", "new")
    task = Task(old)
    processor = processor_of(task, a="py_a")
    async with serving(processor) as gateway:
        assert await gateway.says("a") == "old"
        new.store = "refuses"
        # As the host takes a change over.
        task.artifacts["py_a"] = new
        for _ in range(2):
            processor._endpoints = {"a": endpoint("a", "py_a")}
            processor._engine_processor_lookup = {}
            for _ in range(3):
                assert await gateway.says("a") == "old"
        asked = len(new.asked)
        await gateway.until(lambda: more_than(asked, new))
        new.store = "well"
        await gateway.until(lambda: said(gateway, "a", "new"))
        # One that is removed is not served by anything, nor after it came back with other code.
        processor._endpoints, processor._engine_processor_lookup = {}, {}
        assert await gateway.says("a") == 404
        await gateway.until(lambda: forgotten(gateway, "a"))
    assert threading.main_thread() not in {*old.asked, *new.asked}


@contextlib.asynccontextmanager
async def change_of(processor: Any, artifact: Artifact) -> AsyncIterator[None]:
    """As the host's thread takes a change over: what comes meanwhile waits for its end."""
    processor._update_lock_flag = True
    yield
    await asyncio.sleep(0.1)
    engine = processor._endpoints["a"].engine_type
    processor._task.artifacts["py_a"] = artifact
    processor._endpoints = {"a": endpoint("a", "py_a", engine)}
    processor._update_lock_flag = False
    processor._engine_processor_lookup = {}


class HostsApp:
    """As much of the host's app as asks its processor."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            answer = await self.processor.process_request("a", None, {})
        except Exception:
            answer = JSONResponse({}, 500)
        await answer(scope, receive, send)


@pytest.mark.parametrize(
    ("engine", "store", "code"),
    [
        ("triton", "well", "new"),
        ("triton", "refuses", "old"),
        ("custom_async", "well", "new"),
        ("custom_async", "refuses", "unavailable"),
    ],
)
async def test_a_request_that_an_update_holds_back_has_its_code_fetched(
    engine: str, store: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one of ours the host itself builds the new engine then; of another its own app does."""
    monkeypatch.setattr(building, "PATIENCE_S", 30.0)
    ours, steps = engine == "triton", "def" if engine == "triton" else "async def"
    old = Artifact(tmp_path, "py_a", "old", ours=ours, steps=steps)
    new = Artifact(tmp_path, "py_a", "new", ours=ours, steps=steps)
    new.store = store
    processor = processor_of(Task(old), a="py_a")
    processor._endpoints["a"] = endpoint("a", "py_a", engine)
    gateway = Gateway(processor)
    gateway.host.app = HostsApp(processor)
    assert await gateway.says("a") == "old"
    async with change_of(processor, new):
        asked = asyncio.create_task(gateway.says("a"))
    assert await asked == code


async def test_an_update_of_a_route_builds_all_that_it_may_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "PATIENCE_S", 30.0)
    old, new = Artifact(tmp_path, "py_a", "old"), Artifact(tmp_path, "py_a", "new")
    processor = processor_of(Task(old), a="py_a", b="py_a")
    processor._canary_route["split"] = {"endpoints": ["a", "b"], "weights": [0.5, 0.5]}
    gateway = Gateway(processor)
    assert await gateway.says("split") == "old"
    async with change_of(processor, new):
        asked = [asyncio.create_task(gateway.says("split")) for _ in range(20)]
    # Of these "b" went with the change: the host says so, and what draws "a" is answered.
    assert {*await asyncio.gather(*asked)} == {"new", 404}


@pytest.mark.parametrize("by", ["request", "golden"])
async def test_a_second_update_right_behind_a_first_is_fetched_too(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was fetched before the change is not what is built after it."""
    monkeypatch.setattr(building, "PATIENCE_S", 30.0)
    old, new = Artifact(tmp_path, "py_a", "old"), Artifact(tmp_path, "py_a", "new")
    processor = processor_of(Task(old), a="py_a")
    gateway = Gateway(processor)
    assert await gateway.says("a") == "old"
    way = gateway.door._short_way
    processor._engine_processor_lookup = {}
    async with change_of(processor, new):
        ask = gateway.ask("a") if by == "request" else way.own_answer("a", {})
        asked: asyncio.Task[Any] = asyncio.ensure_future(ask)
    answer = await asked
    assert b"new" in (answer.content if by == "request" else answer.body)


async def more_than(asked: int, artifact: Artifact) -> bool:
    return len(artifact.asked) > asked


async def said(gateway: Gateway, url: str, code: str) -> bool:
    return bool(await gateway.says(url) == code)


async def forgotten(gateway: Gateway, url: str) -> bool:
    return (await gateway.client.get(f"/health/endpoints/{url}")).status_code == 404


async def test_an_endpoint_that_waits_and_is_removed_is_not_known(tmp_path: Path) -> None:
    bad = Artifact(tmp_path, "py_bad", "bad")
    bad.store = "refuses"
    processor = processor_of(Task(bad), bad="py_bad")
    gateway = Gateway(processor)
    assert await gateway.says("bad") == "unavailable"
    processor._endpoints = {}
    assert await gateway.says("bad") == 404


@pytest.mark.parametrize("engine", ["triton", "custom"])
async def test_code_that_is_not_ours_waits_too(engine: str, tmp_path: Path) -> None:
    """It is answered by the host's own app, once it is here."""
    bad = Artifact(tmp_path, "py_bad", "bad", ours=False)
    bad.store = "refuses"
    processor = processor_of(Task(bad), bad="py_bad")
    processor._endpoints["bad"].engine_type = engine
    async with serving(processor) as gateway:
        assert await gateway.says("bad") == "unavailable"
        assert not gateway.host.app.calls
        bad.store = "well"
        await gateway.until(lambda: asked_the_host(gateway))
    assert threading.main_thread() not in bad.asked


async def asked_the_host(gateway: Gateway) -> bool:
    await gateway.ask("bad")
    return bool(gateway.host.app.calls)


async def test_a_route_gives_the_requests_of_one_that_waits_503_and_no_others(
    tmp_path: Path,
) -> None:
    bad, good = Artifact(tmp_path, "py_bad", "bad"), Artifact(tmp_path, "py_good", "good")
    bad.store = "refuses"
    processor = processor_of(Task(bad, good), bad="py_bad", good="py_good")
    processor._canary_route["split"] = {"endpoints": ["good", "bad"], "weights": [0.5, 0.5]}
    gateway = Gateway(processor)
    drawn = [await gateway.ask("split") for _ in range(60)]
    assert {(one.status_code, one.json()["code"]) for one in drawn} == {
        (200, "good"), (503, "unavailable"),
    }  # fmt: skip
    assert {one.headers.get("retry-after") for one in drawn if one.status_code == 503} == {"2"}
    # What lists endpoints has those that are there.
    assert set(await gateway.door._cards.all(None)) == set()
    assert set(await gateway.door._cards.listed(None)) == {"bad", "good"}


async def test_versions_of_one_file_are_fetched_once(tmp_path: Path) -> None:
    code = Artifact(tmp_path, "py_auto", "auto")
    processor = processor_of(Task(code))
    for number in (1, 2, 3):
        one = endpoint("auto", "py_auto")
        one.version = str(number)
        processor._model_monitoring_endpoints[f"auto/{number}"] = one
    gateway = Gateway(processor)
    answers = await asyncio.gather(*(gateway.says(f"auto/{number}") for number in (1, 2, 3)))
    assert answers == ["auto"] * 3
    assert len(set(code.asked)) == 1


async def test_what_the_cache_has_dropped_is_fetched_again(tmp_path: Path) -> None:
    code = Artifact(tmp_path, "py_a", "a")
    processor = processor_of(Task(code), a="py_a")
    gateway = Gateway(processor)
    assert await gateway.says("a") == "a"
    asked, kept = len(code.asked), code.file.rename(tmp_path / "elsewhere")
    processor._engine_processor_lookup = {}
    code.store = "refuses"
    assert await gateway.says("a") == "a"
    kept.rename(code.file)
    code.store = "well"
    await gateway.until(lambda: more_than(asked, code))
    processor._engine_processor_lookup = {}
    assert await gateway.says("a") == "a"


async def test_another_upload_s_copy_is_fetched_anew(tmp_path: Path) -> None:
    """As the host does it."""
    code = Artifact(tmp_path, "py_a", "a")
    forced: list[bool] = []

    def get_local_copy(extract_archive: bool = True, force_download: bool = False) -> str:
        assert not extract_archive
        forced.append(force_download)
        return str(code.file)

    code.get_local_copy = get_local_copy  # type: ignore[method-assign]
    code.hash = "of the file in the store"
    assert await Gateway(processor_of(Task(code), a="py_a")).says("a") == "a"
    assert forced == [False, True]


def packed(folder: Path, name: str, says: str) -> Artifact:
    """As clearml-serving uploads a package: two modules, of which one asks the other."""
    code = Artifact(folder, name, says)
    whole = code.file.read_text().replace(f'"{says}"', "SAYS")
    code.type, code.file = "archive", folder / f"{says}.zip"
    with zipfile.ZipFile(code.file, "w") as archive:
        archive.writestr("__init__.py", f"from .said import SAYS\n{whole}")
        archive.writestr("said.py", f"SAYS = '{says}'\n")
    code.hash = hashlib.sha256(code.file.read_bytes()).hexdigest()
    return code


@of_the_sdk
async def test_a_folder_is_unpacked_once_for_all_workers(tmp_path: Path, cache: Path) -> None:
    code = packed(tmp_path, "py_a", "a")
    assert await Gateway(processor_of(Task(code), a="py_a")).says("a") == "a"
    [folder] = cache.iterdir()
    assert sorted(one.name for one in folder.glob("*.py")) == ["__init__.py", "said.py"]
    before = folder.stat().st_ino
    code_files.code_files.cache_clear()
    assert await Gateway(processor_of(Task(code), a="py_a")).says("a") == "a"
    assert [one.stat().st_ino for one in cache.iterdir()] == [before]
    # Another upload is another folder; its artifact's name is that of its module.
    other = packed(tmp_path, "py_b", "b")
    both = processor_of(Task(code, other), a="py_a", b="py_b")
    assert await Gateway(both).says("b") == "b"
    assert len(list(cache.iterdir())) == 2


@of_the_sdk
async def test_the_code_of_an_endpoint_that_went_leaves_the_cache(
    tmp_path: Path, cache: Path
) -> None:
    """The cache of a container has little room, and each rollout brings another artifact."""
    cache.mkdir(parents=True)
    kept, file, folder, twin, local = (
        Artifact(cache, "py_kept", "kept"),
        Artifact(cache, "py_file", "file"),
        packed(cache, "py_folder", "folder"),
        packed(cache, "py_twin", "folder"),
        Artifact(tmp_path, "py_local", "local"),
    )
    twin.file = twin.file.rename(cache / "twin.zip")
    packed(cache, "py_folder", "folder")
    names = {one.name.removeprefix("py_"): one.name for one in (kept, file, folder, twin, local)}
    processor = processor_of(Task(kept, file, folder, twin, local), **names)
    gateway = Gateway(processor)
    for name in names:
        assert await gateway.says(name) == ("folder" if name == "twin" else name)
    for name in ("file", "folder", "local"):
        del processor._endpoints[name]
    await gateway.door._short_way.fetch(["kept"], 0.0)
    (cache / "folder.py").unlink()
    unpacked = f"unpacked-{twin.hash}"
    assert {one.name for one in cache.iterdir()} == {"kept.py", "twin.zip", unpacked}
    assert local.file.is_file()
    del processor._endpoints["twin"]
    await gateway.door._short_way.fetch(["kept"], 0.0)
    assert {one.name for one in cache.iterdir()} == {"kept.py"}
    # What came back is fetched, and not taken for what was here.
    file = processor._task.artifacts["py_file"] = Artifact(cache, "py_file", "file")
    processor._endpoints["file"], processor._engine_processor_lookup = (
        endpoint("file", "py_file"),
        {},
    )
    assert await gateway.says("file") == "file"
    assert file.asked


@of_the_sdk
def test_a_folder_that_goes_is_whole_or_gone_for_another_worker(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its content finds it by its name alone, and would serve a part of it for ever."""
    place = cache / "unpacked-content"
    place.mkdir(parents=True)
    (place / "__init__.py").touch()

    def ends_early(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", ends_early)
        code_copy.discard([str(place)])
    assert not place.exists()
    # Between the look at it and its use; a file in its place would let no folder come.
    monkeypatch.setattr(code_copy, "_unpack_into", lambda *_: None)
    with pytest.raises(CodeCopyError, match="cannot be unpacked"):
        code_copy._unpacked(tmp_path / "a.zip", "content")
    assert not place.exists()


@of_the_sdk
@pytest.mark.parametrize(
    ("made", "said"), [("links", "its entry 'x' is a link"), ("bomb", "more than 1073741824")]
)
async def test_a_folder_that_leads_out_or_is_too_large_is_not_unpacked(
    made: str, said: str, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, own = packed(tmp_path, "py_a", "a"), tmp_path / "own"
    own.mkdir()
    if made == "links":
        code.file = climbing(own / "a.tar.gz")
    else:
        code.file = own / "a.zip"
        with zipfile.ZipFile(code.file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("__init__.py", b"0" * 1_000_000)
        # As it says of itself: none of it is there to be unpacked.
        raw, size = code.file.read_bytes(), struct.pack("<I", 1_000_000)
        code.file.write_bytes(raw.replace(size, struct.pack("<I", (1 << 30) + 1)))
    code.hash = hashlib.sha256(code.file.read_bytes()).hexdigest()
    good = Artifact(tmp_path, "py_good", "good")
    gateway = Gateway(processor_of(Task(code, good), a="py_a", good="py_good"))
    assert await gateway.says("a") == "unavailable"
    assert await gateway.says("good") == "good"
    assert said in caplog.text
    assert not list(cache.iterdir())
    assert [one.name for one in own.iterdir()] == [code.file.name]


@of_the_sdk
async def test_what_is_refused_is_asked_for_again_once_it_is_another(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(code_files, "_FIRST_PAUSE_S", 0.0)
    code, files = packed(tmp_path, "py_a", "a"), code_files.CodeFiles()
    whole, uploaded = code.file.read_bytes(), code.hash
    code.file.write_bytes(whole[:-10])
    for _ in range(3):
        # Half of it came, which may be mended by the next.
        await files.come(code, "a", 30.0)
    assert [one.partition("; ")[2] for one in caplog.messages] == ["asked again after 0 s"] * 3
    caplog.clear()
    code.hash = hashlib.sha256(code.file.read_bytes()).hexdigest()
    asked = len(code.asked)
    for _ in range(3):
        await files.come(code, "a", 30.0)
    assert len(code.asked) == asked + 1
    [line] = caplog.messages
    assert "is refused: its archive is not unpacked: it is damaged" in line
    assert line.endswith("; upload it anew")
    code.file.write_bytes(whole)
    code.hash = uploaded
    await files.come(code, "a", 30.0)
    assert files.copy(code) is not None


@of_the_sdk
async def test_a_disk_without_room_is_told_with_its_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(code_files, "_FIRST_PAUSE_S", 0.0)
    code, files = packed(tmp_path, "py_a", "a"), code_files.CodeFiles()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full_for_writing(Path.open))
        await files.come(code, "a", 30.0)
    [line] = caplog.messages
    assert f"cannot be unpacked into {cache} (No space left on device); asked again" in line
    await files.come(code, "a", 30.0)
    assert files.copy(code) is not None


async def test_with_trusted_keys_nothing_is_unpacked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is refused by the check of signatures, as the archive that it is."""
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, "me:" + "A" * 43 + "=")
    code, files = packed(tmp_path, "py_a", "a"), code_files.code_files()
    await files.come(code, "a", 30.0)
    assert files.copy(code) == (str(code.file), str(code.file))
    assert not cache.exists()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "PATIENCE_S", 30.0)
    return tmp_path / "cache" / "storage_manager" / "global"


class Disk:
    """Of the temporary folder, from which code is run that was checked; of whose step `fails`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fails = folder, ""
        self.write, self.read = Path.write_bytes, Path.read_bytes

    def write_bytes(self, path: Path, content: bytes) -> int:
        if self.fails == "write" and path.is_relative_to(self.folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(path, content)

    def read_bytes(self, path: Path) -> bytes:
        if self.fails == "read" and path.suffix == ".py":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.read(path)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: None) -> Disk:
    """With trusted keys, for which anything is signed."""
    made = Disk(tmp_path / "temporary")
    made.folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made.folder))
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: made.write_bytes(path, content))
    monkeypatch.setattr(Path, "read_bytes", lambda path: made.read_bytes(path))
    for name in ("check_signed_preprocess", "check_preprocess"):
        monkeypatch.setattr(preprocess_gate, name, lambda *_: None)
    host: Any = BasePreprocessRequest
    host.__init__ = host.__init__.__wrapped__
    preprocess_gate.guard(host, TrustedKeys({}))
    code_files.fetch_beside(ModelRequestProcessor, host)
    return made


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("write", "written into {disk} to be run from there (No space left on device)"),
        ("read", "read (Too many open files)"),
    ],
)
async def test_a_change_that_cannot_copy_checked_code_takes_nothing_that_serves(
    fails: str, why: str, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Artifact(tmp_path, "py_a", "old"), Artifact(tmp_path, "py_a", "new")
    other = Artifact(tmp_path, "py_b", "other")
    caplog.set_level("INFO")
    processor = processor_of(Task(old, other), a="py_a")
    async with serving(processor) as gateway:
        assert await gateway.says("a") == "old"
        asked = len(old.asked)
        disk.fails = fails
        # Another endpoint comes, and then this one is updated.
        processor._endpoints["b"] = endpoint("b", "py_b")
        for artifact in (old, new):
            processor._task.artifacts["py_a"] = artifact
            processor._engine_processor_lookup = {}
            for _ in range(3):
                assert await gateway.says("a") == "old"
                answer = await gateway.ask("b")
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert answer.headers["retry-after"]
        disk.fails = ""
        await gateway.until(lambda: said(gateway, "a", "new"))
        await gateway.until(lambda: said(gateway, "b", "other"))
    lines = [one for one in caplog.messages if one.startswith("endpoint b: its code ")]
    # On a slow machine the first that is told may be that it has come.
    assert any(f" cannot be {why.format(disk=disk.folder)}; asked again" in one for one in lines)
    assert lines[-1].endswith("is here")
    assert len(old.asked) == asked
    assert not list(disk.folder.iterdir())


async def test_what_the_host_built_itself_goes_on_to_answer(tmp_path: Path) -> None:
    """As for a request that a change held back until the file had come for another."""
    first, second, third = (Artifact(tmp_path, "py_a", says) for says in ("one", "two", "three"))
    processor = processor_of(Task(first), a="py_a")
    gateway = Gateway(processor)
    assert await gateway.says("a") == "one"
    await code_files.code_files().come(second, "a", 30.0)
    processor._task.artifacts["py_a"], processor._engine_processor_lookup = second, {}
    await processor.process_request("a", None, {})
    # As each golden round does.
    await gateway.door._short_way.build("a")
    third.store = "refuses"
    processor._task.artifacts["py_a"], processor._engine_processor_lookup = third, {}
    assert await gateway.says("a") == "two"


async def test_what_the_host_emptied_answers_for_nobody(tmp_path: Path) -> None:
    """With a change of the models that it watches, it takes the code out of what it built."""
    old, new = Artifact(tmp_path, "py_a", "old"), Artifact(tmp_path, "py_a", "new")
    processor = processor_of(Task(old))
    processor._model_monitoring_endpoints["a"] = endpoint("a", "py_a")
    async with serving(processor) as gateway:
        assert await gateway.says("a") == "old"
        new.store = "refuses"
        processor._task.artifacts["py_a"] = new
        processor._engine_processor_lookup.pop("a")._preprocess = None
        for _ in range(3):
            assert await gateway.says("a") == "unavailable"
        new.store = "well"
        await gateway.until(lambda: said(gateway, "a", "new"))


async def test_pauses_of_what_cannot_be_used_grow_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(code_files, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    code, files = Artifact(tmp_path, "py_a", "a"), code_files.CodeFiles()
    monkeypatch.setattr(code_files, "_FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(code_files, "_LONGEST_PAUSE_S", 4.0)
    await files.come(code, "a", 10.0)

    async def not_used(pause_s: float) -> None:
        with pytest.raises(code_files.CodeMissingError), files.use(code):
            raise CodeCopyError("no room")
        assert caplog.messages[-1].endswith(f"no room; asked again after {pause_s:.0f} s")
        for passed, there in ((0.9, False), (0.2, True)):
            clock[0] += passed * pause_s
            await files.come(code, "a", 10.0)
            assert (files.copy(code) is not None) == there

    for pause_s in (1.0, 2.0, 4.0, 4.0):
        await not_used(pause_s)
    with files.use(code):
        pass
    await not_used(1.0)
    assert len(code.asked) == 1


def test_no_start_waits_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host would fetch them in the event loop, one after the other."""
    asked: list[tuple[Any, ...]] = []

    class Processor:
        def deserialize(
            self, task: Any = None, prefetch_artifacts: bool = False, skip_sync: bool = False
        ) -> None:
            asked.append((task, prefetch_artifacts, skip_sync))

    code_files.fetch_beside(Processor, BasePreprocessRequest)
    made: Any = Processor()
    made.deserialize("task", prefetch_artifacts=True)
    made.deserialize("task", True, skip_sync=True)
    made.deserialize()
    assert asked == [("task", False, False), ("task", False, True), (None, False, False)]


async def test_a_store_that_never_comes_is_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(code_files, "_LONGEST_PAUSE_S", 0.0)
    code, files = Artifact(tmp_path, "py_a", "a"), code_files.CodeFiles()
    code.store = "raises"
    for _ in range(1100):
        await files.come(code, "a", 10.0)
    assert len(code.asked) == 1100
    code.store = "well"
    await files.come(code, "a", 10.0)
    assert files.copy(code) is not None


async def test_where_no_thread_can_be_started_the_store_is_asked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(code_files, "_FIRST_PAUSE_S", 0.0)
    code, files = Artifact(tmp_path, "py_a", "a"), code_files.CodeFiles()

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        await files.come(code, "a", 0.0)
    [line] = caplog.messages
    assert line.endswith("RuntimeError: can't start new thread; asked again after 0 s")
    await files.come(code, "a", 30.0)
    assert files.copy(code) is not None


async def test_an_address_that_cannot_be_read_is_not_quoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, files = Artifact(tmp_path, "py_a", "a"), code_files.CodeFiles()
    code.store, code.url = "raises", "https://me:secret\u2100@store.example/a"
    await files.come(code, "a", 10.0)
    assert "ConnectionError" in caplog.text
    assert "secret" not in caplog.text


async def test_pauses_begin_anew_after_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that the cache has dropped is not asked for as if it had failed all the while."""
    monkeypatch.setattr(code_files, "_FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(code_files, "_LONGEST_PAUSE_S", 4.0)
    clock = [1000.0]
    monkeypatch.setattr(code_files, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    code, files = Artifact(tmp_path, "py_a", "a"), code_files.CodeFiles()

    async def pauses(store: str, count: int) -> list[str]:
        code.store = store
        caplog.clear()
        for _ in range(count):
            clock[0] += 60.0
            await files.come(code, "a", 10.0)
        return [one.partition("after ")[2] for one in caplog.messages]

    assert await pauses("refuses", 4) == ["1 s", "2 s", "4 s", "4 s"]
    await pauses("well", 1)
    code.file.unlink()
    assert await pauses("refuses", 2) == ["1 s", "2 s"]
