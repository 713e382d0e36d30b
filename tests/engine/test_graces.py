"""A version that dies in its grace goes alone, in a real Triton."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import psutil
from tritonclient.utils import InferenceServerException

from tests.engine.serving import Serving, preprocess_of, serving, write_bundle
from tests.engine.test_orphans import stubs
from tests.engine.test_service import answers, ask
from tests.engine.triton_server import TritonServer, wait_until
from transformer_serving.engine.controller.graces import Graces
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.state import StateFile


def process_of(server: TritonServer, version: int) -> psutil.Process:
    """Once that of an earlier test has left."""
    found: list[psutil.Process] = []

    def is_one() -> bool:
        found[:] = [
            one
            for one in stubs(server)
            if one.status() != psutil.STATUS_ZOMBIE
            and any(f"kept/{version}/" in word for word in one.cmdline())
        ]
        return len(found) == 1

    wait_until(is_one, 60)
    return found[0]


def updated(one: Serving, folder: Path) -> None:
    """101 is in its grace, 202 serves."""
    one.control_plane.add("kept", write_bundle(folder / "a", 101), preprocess_of(101))
    one.wait("kept", ready=True)
    one.control_plane.add("kept", write_bundle(folder / "b", 202, scale=2.0), preprocess_of(202))
    one.wait("kept", bundle_version=202, versions_loaded=[101, 202])


def is_refused(server: TritonServer, version: int) -> bool:
    try:
        ask(server, "kept", version)
    except InferenceServerException:
        return True
    return False


def test_the_one_that_serves_stays_when_the_one_before_dies(
    triton_server: TritonServer, tmp_path: Path
) -> None:
    with serving(triton_server, tmp_path, grace_s=600, notice_s=0) as one:
        updated(one, tmp_path)
        current = process_of(triton_server, 202)
        failed: list[Exception] = []
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                try:
                    assert answers(triton_server, "kept", 202, 2.0)
                except (InferenceServerException, AssertionError) as error:
                    failed.append(error)

        asking = threading.Thread(target=load)
        asking.start()
        try:
            process_of(triton_server, 101).kill()
            # As a worker does that does not know of the update yet.
            wait_until(lambda: is_refused(triton_server, 101), 60)
            one.wait("kept", ready=True, versions_loaded=[202])
        finally:
            stop.set()
            asking.join()
        assert failed == []
        assert process_of(triton_server, 202) == current
        one.control_plane.remove("kept")
        one.wait_gone("kept")


def test_the_one_that_serves_is_loaded_again_when_it_dies_itself(
    triton_server: TritonServer, tmp_path: Path
) -> None:
    with serving(triton_server, tmp_path, grace_s=600) as one:
        updated(one, tmp_path)
        process_of(triton_server, 202).kill()
        wait_until(lambda: is_refused(triton_server, 202), 60)
        wait_until(lambda: not is_refused(triton_server, 202), 60)
        assert answers(triton_server, "kept", 202, 2.0)
        one.wait("kept", ready=True, versions_loaded=[101, 202])
        one.control_plane.remove("kept")
        one.wait_gone("kept")


def test_it_ends_once_no_job_has_the_model(tmp_path: Path) -> None:
    """What a job reads of the record, it may write."""
    newest = Version(3, "t", "", "onnxruntime", 3, True, "m", "c", 5.0)
    older = [replace(newest, number=number, drop_at=500.0) for number in (2, 1)]
    record = ModelRecord("m", "m", "f", (newest, *older), "")
    state = StateFile(tmp_path / "state.json")
    state.commit("m", record)
    graces = Graces(state, lambda record: True)
    assert [graces.has("m", number) for number in (3, 2, 7)] == [False, True, False]
    assert not graces.has("other", 2)
    graces.end(10.0, lambda _: False)
    assert state.records()["m"] == record
    graces.end(10.0, lambda _: True)
    assert state.records()["m"].kept(10.0) == (newest, older[1])


def test_until_workers_know_of_the_update_the_one_before_is_put_back(tmp_path: Path) -> None:
    """It is what they ask for."""
    newest = Version(2, "t", "", "onnxruntime", 2, True, "m", "c", 5.0)
    older = replace(newest, number=1, drop_at=500.0)
    state = StateFile(tmp_path / "state.json")
    state.commit("m", ModelRecord("m", "m", "f", (newest, older), ""))
    assert not Graces(state, lambda record: False).has("m", 1)
    assert Graces(state, lambda record: True).has("m", 1)


def test_one_that_serves_by_then_is_not_ended(tmp_path: Path) -> None:
    """As it was deployed again while its grace was to end."""
    newest = Version(2, "t", "", "onnxruntime", 2, True, "m", "c", 5.0)
    older = replace(newest, number=1, drop_at=500.0)
    state = StateFile(tmp_path / "state.json")
    state.commit("m", ModelRecord("m", "m", "f", (newest, older), ""))
    graces = Graces(state, lambda record: True)
    assert graces.has("m", 1)
    again = ModelRecord("m", "m", "g", (replace(older, drop_at=None),), "")
    state.commit("m", again)
    graces.end(10.0, lambda _: True)
    assert state.records()["m"] == again


def test_one_that_is_removed_by_then_is_forgotten(tmp_path: Path) -> None:
    newest = Version(2, "t", "", "onnxruntime", 2, True, "m", "c", 5.0)
    older = replace(newest, number=1, drop_at=500.0)
    record = ModelRecord("m", "m", "f", (newest, older), "")
    state = StateFile(tmp_path / "state.json")
    state.commit("m", record)
    graces = Graces(state, lambda record: True)
    assert graces.has("m", 1)
    state.commit("m", None)
    graces.end(10.0, lambda _: True)
    assert "m" not in state.records()
    # One of that name and number that comes later has a grace of its own.
    state.commit("m", record)
    graces.end(20.0, lambda _: True)
    assert state.records()["m"] == record
