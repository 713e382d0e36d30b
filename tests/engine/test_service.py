"""The controller's ways of a model, against a real Triton."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.serving import FIELDS, Serving, preprocess_of, serving, write_bundle
from tests.engine.text_models import expected, write_onnx
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from transformer_serving.engine.controller.first_loads import TRITON_AWAY, awaited
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.endpoint_config import TensorFields

IDS = np.array([[3, 1, 4, 1]], np.int32)


def ask(server: TritonServer, model: str, version: int, ids: np.ndarray = IDS) -> np.ndarray:
    inputs = []
    for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
        tensor = triton.InferInput(name, array.shape, "INT32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    answer = server.client().infer(model, inputs, model_version=str(version)).as_numpy("output")
    assert answer is not None
    return np.asarray(answer)


def answers(server: TritonServer, model: str, version: int, scale: float) -> bool:
    wanted = expected(IDS, np.ones_like(IDS), scale=scale)
    return bool(np.allclose(ask(server, model, version), wanted, atol=1e-4))


def ready(server: TritonServer, model: str, version: int) -> bool:
    return bool(server.client().is_model_ready(model, str(version)))


@pytest.fixture
def one(triton_server: TritonServer, tmp_path: Path):  # type: ignore[no-untyped-def]
    with serving(triton_server, tmp_path) as running:
        yield running


@pytest.fixture
def patient(triton_server: TritonServer, tmp_path: Path):  # type: ignore[no-untyped-def]
    """An old version is kept longer than a slow machine takes to load the next one."""
    with serving(triton_server, tmp_path, grace_s=8) as running:
        yield running


def test_a_bundle_is_loaded_as_its_version_and_updated_with_grace(
    patient: Serving, tmp_path: Path
) -> None:
    one = patient
    plane = one.control_plane
    plane.add("senti/ment", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    row = one.wait("senti/ment", ready=True)
    assert row["model"] == "senti_ment"
    assert row["verified"]
    assert row["versions_loaded"] == [101]
    assert row["backend"] == "onnxruntime"
    assert answers(one.server, "senti_ment", 101, 1.0)

    failed: list[Exception] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            try:
                ask(one.server, "senti_ment", 101)
            except InferenceServerException as error:
                failed.append(error)

    asking = threading.Thread(target=load)
    asking.start()
    plane.add("senti/ment", write_bundle(tmp_path / "b", 202, scale=2.0), preprocess_of(202))
    one.wait("senti/ment", bundle_version=202, versions_loaded=[101, 202])
    stop.set()
    asking.join()
    assert failed == []
    assert answers(one.server, "senti_ment", 101, 1.0)
    assert answers(one.server, "senti_ment", 202, 2.0)
    one.wait("senti/ment", bundle_version=202, versions_loaded=[202])
    assert not ready(one.server, "senti_ment", 101)
    assert [path.name for path in (one.server.repository / "senti_ment").iterdir()].count("202")

    plane.remove("senti/ment")
    wait_until(lambda: not ready(one.server, "senti_ment", 202), 60)
    wait_until(lambda: not (one.server.repository / "senti_ment").exists(), 60)
    assert one.status()["endpoints"] == []


def test_versions_of_other_longest_texts_serve_beside_each_other(
    patient: Serving, tmp_path: Path
) -> None:
    """As where a bundle of before is updated, whose configuration says none, and after that."""
    fields = dataclasses.replace(FIELDS, auxiliary={"backend": '"openvino_text"'})
    longest: dict[int, dict[str, str]] = {
        101: {}, 202: {"max_positions": "8"}, 303: {"max_positions": "4"},
    }  # fmt: skip
    before: list[int] = []
    for number, parameters in longest.items():
        source = write_bundle(
            tmp_path / str(number), number, scale=number, engine="openvino", parameters=parameters
        )
        patient.control_plane.add("text", source, preprocess_of(number), fields=fields)
        patient.wait("text", versions_loaded=[*before, number])
        for version in (*before, number):
            assert answers(patient.server, "text", version, version)
        patient.wait("text", versions_loaded=[number])
        before = [number]
    ask(patient.server, "text", 303, np.ones((1, 4), np.int32))
    with pytest.raises(InferenceServerException, match="positions for 4"):
        ask(patient.server, "text", 303, np.ones((1, 5), np.int32))


def test_a_hand_added_file_is_served_as_version_1_and_stays_where_it_was(
    one: Serving, tmp_path: Path
) -> None:
    source = write_onnx(tmp_path / "mine", file_name="any.onnx")
    one.control_plane.add("hand", source)
    row = one.wait("hand", ready=True)
    assert (row["verified"], row["bundle_version"], row["versions_loaded"]) == (False, None, [1])
    assert source.is_file()
    other = write_onnx(tmp_path / "other", file_name="any.onnx", scale=3.0)
    one.control_plane.add("hand", other)
    wait_until(lambda: answers(one.server, "hand", 1, 3.0), 60)


def test_a_bundle_with_a_stock_preprocess_is_version_1_and_verified(
    one: Serving, tmp_path: Path
) -> None:
    fields = dataclasses.replace(
        FIELDS,
        auxiliary={"max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": 10}},
    )
    source = write_bundle(tmp_path / "a", 77)
    one.control_plane.add("stock", source, "class Preprocess: ...\n", fields=fields)
    row = one.wait("stock", ready=True)
    assert (row["verified"], row["bundle_version"], row["versions_loaded"]) == (True, 77, [1])
    config = one.server.client().get_model_config("stock").config
    assert config.max_batch_size == 4
    assert config.dynamic_batching.max_queue_delay_microseconds == 10


def test_the_same_model_under_another_mark_is_not_loaded_again(
    one: Serving, tmp_path: Path
) -> None:
    """A tag that somebody put on the model makes it look new; Triton serves on as it is."""

    def loads() -> int:
        return one.server.log.read_text().count("successfully loaded 'tagged'")

    def serves_as_asked() -> bool:
        record = StateFile(one.folder / "state.json").records().get("tagged")
        return record is not None and record.fingerprint == plane.served["tagged"].fingerprint

    plane = one.control_plane
    plane.add("tagged", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    one.wait("tagged", ready=True)
    files = one.server.repository / ".versions" / "tagged"
    [before] = files.iterdir()
    assert loads() == 1
    plane.add("tagged", write_bundle(tmp_path / "b", 101), preprocess_of(101))
    wait_until(serves_as_asked, 60)
    assert loads() == 1
    assert list(files.iterdir()) == [before]
    # Unless it is another one, or was lost.
    plane.add("tagged", write_bundle(tmp_path / "c", 101, scale=2.0), preprocess_of(101))
    wait_until(lambda: serves_as_asked() and loads() == 2, 60)
    assert answers(one.server, "tagged", 101, 2.0)
    plane.add("tagged", write_bundle(tmp_path / "d", 101, scale=2.0), preprocess_of(101))
    one.server.client().unload_model("tagged")
    wait_until(lambda: serves_as_asked() and loads() == 3, 60)
    assert answers(one.server, "tagged", 101, 2.0)


def test_a_bad_model_leaves_the_last_good_one_and_its_files(one: Serving, tmp_path: Path) -> None:
    plane = one.control_plane
    plane.add("updated", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    plane.add("same", write_onnx(tmp_path / "good"))
    one.wait("updated", ready=True)
    one.wait("same", ready=True)
    bad = write_bundle(tmp_path / "b", 202)
    (bad / "model.onnx").write_bytes(b"broken")
    plane.add("updated", _remade(bad, 202), preprocess_of(202))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"broken")
    plane.add("same", broken)
    # A bundle's broken file is refused before Triton is touched; a lone file only Triton can judge.
    for endpoint, version, reason in (
        ("updated", 101, "'model/model.onnx' is no whole ONNX model"),
        ("same", 1, "'model.onnx' cannot be loaded by ONNX Runtime"),
    ):
        row = one.wait_reason(endpoint, reason)
        assert row["ready"]
        assert row["reason_since"] <= time.time()
        assert answers(one.server, endpoint, version, 1.0)
        folder = one.server.repository / endpoint
        assert {path.name for path in folder.iterdir()} == {"config.pbtxt", str(version)}
        assert (folder / str(version) / "model.onnx").stat().st_size > 100
    # The good one again ends the matter.
    plane.add("updated", tmp_path / "a" / "model", preprocess_of(101))
    one.wait("updated", reason=None, ready=True)


def _remade(model: Path, version: int) -> Path:
    """The manifest of a broken file that was broken before it was written."""
    from transformer_serving.contract.manifest import entry_of, read_manifest

    manifest = read_manifest((model / "manifest.json").read_bytes())
    listed = [path for path in sorted(model.iterdir()) if path.name != "manifest.json"]
    files = tuple(entry_of(model.parent, path) for path in listed)
    (model / "manifest.json").write_text(dataclasses.replace(manifest, files=files).to_json())
    return model


def test_refusals_name_the_cause(one: Serving, tmp_path: Path) -> None:
    plane = one.control_plane
    plane.add("mismatch", write_bundle(tmp_path / "a", 101), preprocess_of(202))
    tampered = write_bundle(tmp_path / "b", 5)
    weights = bytearray((tampered / "model.onnx").read_bytes())
    weights[len(weights) // 2] ^= 1
    (tampered / "model.onnx").write_bytes(weights)
    plane.add("tampered", tampered, preprocess_of(5))
    plane.add("bare", write_onnx(tmp_path / "c"), preprocess_of(9))
    wrong = dataclasses.replace(
        FIELDS, inputs=TensorFields(["input_ids", "mask"], ["int32"] * 2, [[-1]] * 2)
    )
    plane.add("names", write_bundle(tmp_path / "d", 6), preprocess_of(6), fields=wrong)
    larger = dataclasses.replace(FIELDS, auxiliary={"max_batch_size": 99})
    plane.add("larger", write_bundle(tmp_path / "e", 7), "stock", fields=larger)
    unknown = dataclasses.replace(FIELDS, auxiliary={"max_bach_size": 1})
    plane.add("unknown", write_onnx(tmp_path / "f"), fields=unknown)
    plane.add("a/b", write_onnx(tmp_path / "g"))
    one.wait("a/b", ready=True)
    plane.add("a_b", write_onnx(tmp_path / "h"))
    plane.add("../x", write_onnx(tmp_path / "i"))
    for endpoint, reason in (
        ("mismatch", "preprocess.py is of bundle 202, the model of bundle 101; deploy them toget"),
        ("tampered", "file 'model.onnx' is not the one of the manifest"),
        ("bare", "preprocess.py is of bundle 9, the model has no manifest.json"),
        ("names", "'--input-name' must be input_ids, attention_mask"),
        ("larger", "'max_batch_size' of --aux-config contradicts the bundle"),
        ("unknown", "'max_bach_size' of --aux-config is unknown to Triton"),
        ("../x", "must not begin with '.'"),
        ("a_b", "its Triton model name 'a_b' is taken by endpoint 'a/b'"),
    ):
        assert not one.wait_reason(endpoint, reason)["ready"]
    one.wait("a/b", ready=True)
    # A rollout of pods is not held up by what cannot be loaded.
    assert awaited(one.status()) is None


@pytest.mark.parametrize(
    "name", ["a b", "a(b", "it's", "a&b", "a;touch made", "$(touch made)", "\u00e9"]
)
def test_a_name_that_a_shell_reads_otherwise_reaches_no_shell(
    one: Serving, tmp_path: Path, name: str
) -> None:
    """Triton puts a Python model's folder into a line for bash, unquoted."""
    plane = one.control_plane
    plane.add("first", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    one.wait("first", ready=True)
    assert one.server.process is not None
    pid = one.server.process.pid
    plane.add(name, write_bundle(tmp_path / "b", 202), preprocess_of(202))
    row = one.wait_reason(name, "only the letters a to z, digits and ./_+,:=@%-; add it again")
    assert not row["ready"]
    plane.add("next", write_bundle(tmp_path / "c", 303), preprocess_of(303))
    one.wait("next", ready=True)
    assert one.row("first")["ready"]
    assert one.server.process.pid == pid
    assert not (one.server.repository / name).exists()
    assert list(tmp_path.rglob("made")) == list(one.server.repository.rglob("made")) == []


def test_who_is_served_keeps_its_triton_name(one: Serving, tmp_path: Path) -> None:
    """Whatever the order of the alphabet: the newcomer's callers would get the answers."""
    plane = one.control_plane
    plane.add("a_b", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    one.wait("a_b", ready=True)
    plane.add("a/b", write_bundle(tmp_path / "b", 202, scale=2.0), preprocess_of(202))
    taken = "its Triton model name 'a_b' is taken by endpoint 'a_b'"
    assert not one.wait_reason("a/b", taken)["ready"]
    one.finish()
    one.start()
    since = time.time()
    wait_until(lambda: (one.status()["controller"]["last_sync"] or 0) > since, 60)
    assert taken in one.row("a/b")["reason"]
    assert one.row("a_b")["versions_loaded"] == [101]
    assert answers(one.server, "a_b", 101, 1.0)
    plane.remove("a_b")
    one.wait("a/b", ready=True, bundle_version=202)


def test_a_name_of_what_a_shell_reads_as_it_stands_is_served(one: Serving, tmp_path: Path) -> None:
    plane = one.control_plane
    plane.add("-A+b,c:d=e@f%g.1", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    one.wait("-A+b,c:d=e@f%g.1", ready=True)


def test_nothing_to_serve_is_fine_and_a_stranger_is_left_alone(
    one: Serving, tmp_path: Path
) -> None:
    stranger = one.server.repository / "stranger"
    write_onnx(stranger / "1")
    since = time.time()
    wait_until(lambda: (one.status().get("controller", {}).get("last_sync") or 0) > since, 60)
    assert one.status()["controller"]["last_sync_ok"]
    assert awaited(one.status()) is None
    assert (stranger / "1" / "model.onnx").is_file()


def test_restarts_come_back_with_the_last_good_state_without_a_control_plane(
    tmp_path: Path,
) -> None:
    with running_triton(tmp_path / "t") as server, serving(server, tmp_path, grace_s=600) as one:
        plane = one.control_plane
        plane.add("kept", write_bundle(tmp_path / "a", 101), preprocess_of(101))
        plane.add("file", write_onnx(tmp_path / "c"))
        one.wait("kept", ready=True)
        one.wait("file", ready=True)
        plane.add("kept", write_bundle(tmp_path / "b", 202, scale=2.0), preprocess_of(202))
        one.wait("kept", bundle_version=202, versions_loaded=[101, 202])
        plane.error = ConnectionError("control plane is away")

        server.kill()
        one.wait("kept", ready=False)
        assert not one.status()["controller"]["triton"]["ready"]
        assert awaited(one.status()) == TRITON_AWAY
        server.start()
        one.wait("kept", ready=True, versions_loaded=[101, 202])
        one.wait("file", ready=True)
        assert answers(server, "kept", 101, 1.0)

        one.finish()
        server.kill()
        # As a crash in the middle of a change may leave it.
        (server.repository / "kept" / "config.pbtxt").write_text("broken")
        (server.repository / "file" / "1").unlink()
        server.start()
        before = one.status()["controller"]["started"]
        one.start()
        wait_until(lambda: one.status()["controller"]["started"] != before, 60)
        one.wait("kept", ready=True, versions_loaded=[101, 202])
        one.wait("file", ready=True)
        assert answers(server, "kept", 202, 2.0)
        # The sync runs beside the loading: it may be told of a little later.
        wait_until(lambda: one.status()["controller"]["control_plane_error"] is not None, 60)
        assert "control plane is away" in one.status()["controller"]["control_plane_error"]
        assert one.status()["controller"]["last_sync"] is None
