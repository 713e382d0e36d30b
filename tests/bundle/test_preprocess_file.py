"""The generated preprocess.py, loaded as clearml-serving loads a single file."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from preprocess import settings
from tests.loaded_file import loaded_file
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.desk.bundle import preprocess_file

ENDPOINT = SimpleNamespace(serving_url="loaded", version="")


def executed(path: Path) -> Any:
    """As BasePreprocessRequest does it: a module named Preprocess that sys.modules never sees."""
    return loaded_file(path, "Preprocess")


def load(path: Path) -> Any:
    instance = executed(path).Preprocess()
    instance.model_endpoint = ENDPOINT
    return instance


def refused_by(instance: Any) -> Any:
    """Its answer to a body that it refuses."""
    state: dict[str, Any] = {}
    return instance.postprocess(instance.preprocess({}, state), state)


def packages() -> set[str]:
    """Of packed code; beside them stands the one module of what all of them share."""
    ours = {name for name in sys.modules if name.startswith("transformer_serving_")}
    return ours - {"transformer_serving_live"}


@pytest.fixture(autouse=True)
def _nothing_is_live() -> Iterator[None]:
    yield
    process_wide("live", dict).clear()


@pytest.fixture
def write(tmp_path: Path, tokenizer_json: bytes, endpoint_fields: dict[str, Any]) -> Any:
    def write(version: int, code: str | None = None) -> Path:
        endpoint_fields["bundle_version"] = version
        text = preprocess_file.build(json.dumps(endpoint_fields), tokenizer_json)
        if code is not None:
            text = text.replace(preprocess_file.code_hash(), code)
        path = tmp_path / f"preprocess_{version}_{code}.py"
        path.write_text(text, "utf-8")
        return path

    return write


def look_at_everything() -> None:
    """As a worker does every ten minutes: a long collection meanwhile left out what it saw."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def test_it_says_its_bundle_version_in_its_head(write: Any) -> None:
    head = write(41).read_text("utf-8").splitlines()[:5]
    assert "# bundle-version: 41" in head


def test_two_bundles_of_the_same_code_share_it(write: Any) -> None:
    one, two = load(write(1)), load(write(2))
    assert (one.endpoint.bundle_version, two.endpoint.bundle_version) == (1, 2)
    assert type(one).__mro__[1] is type(two).__mro__[1]
    assert one.own.tokenizer is two.own.tokenizer


def test_old_and_new_code_count_together(write: Any) -> None:
    """An update brings new code beside the old; a figure can be registered once a process."""

    def refused() -> float:
        labels = {"endpoint": ENDPOINT.serving_url, "status": "400"}
        return REGISTRY.get_sample_value("transformer_serving_requests_total", labels) or 0

    before = refused()
    for version, code in ((1, "0" * 12), (2, "1" * 12)):
        one = load(write(version, code))
        refused_by(one)
    assert refused() == before + 2


def test_old_and_new_code_let_in_together(write: Any) -> None:
    """The limit of waiting tokens is the worker's, whichever code a request is of."""
    loaded = [load(write(version, code)) for version, code in ((1, "0" * 12), (2, "1" * 12))]
    package, other = (type(one).__mro__[1].__module__.rpartition(".")[0] for one in loaded)
    assert package != other
    old, new = (sys.modules[f"{name}.engine"].admission(1000, 2.0) for name in (package, other))
    share, others = (sys.modules[f"{name}.queue.admission"].Share() for name in (package, other))
    shares = (share, type(share)())
    taken = [old.enter(one, 600, lambda: 0.0) for one in shares]
    assert new.tokens == 1200
    with pytest.raises(Exception, match="too many tokens wait"):
        new.enter(others, 600, lambda: 0.0)
    small = new.enter(others, 10, lambda: 0.0)
    assert REGISTRY.get_sample_value("transformer_serving_waiting_tokens") == 1210
    for one, held in zip(shares, taken, strict=True):
        old.leave(one, held)
    new.leave(others, small)
    assert (old.tokens, new.tokens) == (0, 0)
    assert REGISTRY.get_sample_value("transformer_serving_waiting_tokens") == 0


def test_new_code_runs_beside_old_and_old_code_goes(write: Any) -> None:
    old = load(write(1, "0" * 12))
    new = load(write(2, "1" * 12))
    assert type(old).__mro__[1] is not type(new).__mro__[1]
    refused = refused_by(old)
    assert (refused.status_code, refused.headers["x-bundle-version"]) == (400, "1")
    new.handover.take_over()  # until then the old one serves
    del old
    look_at_everything()
    assert not any("0" * 12 in name for name in packages())
    assert any("1" * 12 in name for name in packages())
    del new


class TellingLock:
    """Sets `waited` where somebody has to wait for it."""

    def __init__(self, waited: threading.Event) -> None:
        self.waited = waited
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            self.waited.set()
            self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_code_that_comes_back_while_its_last_user_goes_in_another_thread_is_there(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's sync thread may let go of an endpoint while the event loop builds another."""
    onward = threading.Event()
    process_wide("packages_lock", threading.RLock)
    live = vars(sys.modules["transformer_serving_live"])
    monkeypatch.setitem(live, "packages_lock", TellingLock(onward))
    code = "0" * 12
    gone = [load(write(1, code))]
    newest = load(write(2, "1" * 12))
    newest.handover.take_over()
    package = sys.modules[type(gone[0]).__mro__[1].__module__.rpartition(".")[0]]
    dropping, close = threading.Event(), package.close

    def slow_close() -> None:
        dropping.set()
        # At this place the other thread goes on, as far as it can: to its end, or to the lock.
        assert onward.wait(60)
        close()

    package.close = slow_close  # type: ignore[attr-defined]

    def let_go() -> None:
        gone.clear()
        look_at_everything()

    thread = threading.Thread(target=let_go)
    thread.start()
    assert dropping.wait(30)
    again = load(write(3, code))
    onward.set()
    thread.join()
    module = sys.modules[type(again).__mro__[1].__module__]
    assert module.Successor is type(again).__mro__[1]
    assert any(getattr(one, "serving_package", "").endswith(code) for one in sys.meta_path)
    again.handover.take_over()
    assert refused_by(again).headers["x-bundle-version"] == "3"


def test_all_loaded_files_have_one_lock_which_a_finalizer_may_take_within(write: Any) -> None:
    one, two = executed(write(1)), executed(write(2, "1" * 12))
    assert one._lock is two._lock
    finder = one._finder
    with one._lock:
        # Within the other's own step, as the collector has it.
        assert two._lock.acquire(blocking=False)
        one._drop(finder)
        one._drop(finder)
        two._lock.release()
    assert finder not in sys.meta_path


@pytest.mark.slow
def test_twenty_updates_leave_one_code_package(write: Any) -> None:
    serving: Any = None
    for version in range(1, 21):
        serving = load(write(version, f"{version:012d}"))
    look_at_everything()
    finders = [finder for finder in sys.meta_path if hasattr(finder, "serving_package")]
    assert len(finders) == 1
    assert serving.endpoint.bundle_version == 20


def longest_text(module: Any) -> int:
    """Of all strings that the module holds, its functions' constants included."""
    functions = [value for value in vars(module).values() if hasattr(value, "__code__")]
    held = [*vars(module).values(), *(c for one in functions for c in one.__code__.co_consts)]
    return max(len(value) for value in held if isinstance(value, str | bytes))


def test_a_loaded_file_has_let_go_of_its_text(write: Any) -> None:
    """A module that the host has left is freed by a collection, which may be far away."""
    one, two = executed(write(1)), executed(write(2))
    served = [module.Preprocess() for module in (one, two)]
    for module, instance in zip((one, two), served, strict=True):
        instance.model_endpoint = ENDPOINT
        assert not {"CODE", "DATA"} & vars(module).keys()
        assert longest_text(module) < 1000
        assert refused_by(instance).status_code == 400


def test_many_loads_without_a_collection_hold_no_text(write: Any) -> None:
    path = write(1)
    load(path)  # the code itself is imported once
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            load(path)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()
    assert grown < 10 * path.stat().st_size


def test_a_second_preprocess_of_one_load_is_refused(write: Any) -> None:
    module = executed(write(1))
    module.Preprocess()
    with pytest.raises(RuntimeError, match="DATA was taken already: load the file again"):
        module.Preprocess()


def test_only_what_preprocess_imports_is_packed() -> None:
    names = {name for name, _ in preprocess_file._sources()}
    assert {"transformer_serving/contract/endpoint.py", "preprocess/answers/embedding.py"} <= names
    assert "transformer_serving/contract/manifest.py" not in names


def test_equal_inputs_give_equal_files(write: Any) -> None:
    assert write(5).read_bytes() == write(5).read_bytes()


def test_it_needs_nothing_of_the_checkout(write: Any, tmp_path: Path) -> None:
    """In the inference container only site-packages are there, and no transformers or torch."""
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('Preprocess', {str(write(3))!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.Preprocess()\n"
        "ours = {'preprocess', 'transformer_serving', 'torch', 'transformers'}\n"
        "print(*(ours & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_settings_come_from_the_environment() -> None:
    beside = settings.read_settings({"CLEARML_DEFAULT_TRITON_GRPC_ADDR": "triton:8001"})
    assert beside.triton == "triton:8000"
    own = settings.read_settings({"TRANSFORMER_SERVING_TRITON_HTTP": "unix:/run/triton"})
    assert own.triton == "unix:/run/triton"
    with pytest.raises(
        ValueError, match="TRANSFORMER_SERVING_TIMEOUT_S must be a number from 0.001"
    ):
        settings.read_settings({"TRANSFORMER_SERVING_TIMEOUT_S": "soon"})
