"""Versions are proven through a real Triton before it serves them under their own name."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.serving import FIELDS, Serving, preprocess_of, serving, write_bundle
from tests.engine.test_service import IDS, answers, ready
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from transformer_serving.contract.stack_line import MARK
from transformer_serving.engine.controller.proving.prover import PROOF_MODEL
from transformer_serving.engine.controller.triton.server import Triton
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.proof.parity_set import ParitySet
from transformer_serving.engine.proof.verdict import Infer, Proof, prove

# Code that is not ours asks whatever version 1 is, and may have its endpoint's calls made smaller.
STOCK = "class Preprocess: ...\n"


@pytest.fixture
def one(triton_server: TritonServer, tmp_path: Path):  # type: ignore[no-untyped-def]
    with serving(triton_server, tmp_path) as running:
        yield running


def index(server: TritonServer, state: str = "READY") -> set[str]:
    rows = server.client().get_model_repository_index().models
    return {row.name for row in rows if row.state == state}


def proofs(folder: Path) -> str:
    path = folder / "proofs.json"
    return path.read_text() if path.is_file() else ""


def test_a_bundle_is_proven_and_then_served(one: Serving, tmp_path: Path) -> None:
    model = write_bundle(tmp_path / "a", 101, parity=True)
    one.control_plane.add("proven", model, preprocess_of(101))
    row = one.wait("proven", ready=True, proof="proven", proof_of=101)
    assert row["largest_difference"] < 1e-3
    assert row["proof_seconds"] > 0
    assert answers(one.server, "proven", 101, 1.0)
    assert PROOF_MODEL not in index(one.server)
    assert not (one.server.repository / PROOF_MODEL).exists()
    assert one.page is not None
    page = one.page.text()
    state = 'transformer_serving_engine_proof{endpoint="proven",bundle="101",state='
    assert f'{state}"proven"}} 1\n' in page
    assert f'{state}"failed"}} 0\n' in page
    # Without a parity set, or without a manifest, nothing says what is right.
    one.control_plane.add("bare", write_bundle(tmp_path / "b", 102), preprocess_of(102))
    one.wait("bare", ready=True, proof="unproven")


def test_a_bundle_whose_calls_the_endpoint_makes_smaller_is_proven_by_such(
    one: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parity set has batches of eight, which Triton would refuse."""
    fields = dataclasses.replace(FIELDS, auxiliary={"max_batch_size": 4})
    model = write_bundle(tmp_path / "a", 101, parity=True)
    one.control_plane.add("smaller", model, STOCK, fields=fields)
    row = one.wait("smaller", ready=True, proof="proven", proof_of=101)
    assert row["largest_difference"] < 1e-3
    assert one.server.client().get_model_config("smaller").config.max_batch_size == 4
    # One that is wrong is found in them as well, and the way back names the stack.
    monkeypatch.setenv(MARK, "/w/stack")
    wrong = write_bundle(tmp_path / "b", 202, parity=True, wrong_at=16)
    one.control_plane.add("smaller", wrong, STOCK, fields=fields)
    row = one.wait_reason("smaller", "bundle 101 serves on")
    assert "at 16 tokens, any batch" in row["reason"]
    assert "'transformer-serving rollback smaller --state /w/stack'" in row["reason"]


def test_what_is_wrong_at_one_length_is_never_served(one: Serving, tmp_path: Path) -> None:
    """First without a version before it, then as an update, while clients ask without a pause."""
    plane, client = one.control_plane, one.server.client()
    stop, seen = threading.Event(), set()

    def ask() -> None:
        tensors = []
        for name in ("input_ids", "attention_mask"):
            tensor = triton.InferInput(name, IDS.shape, "INT32")
            tensor.set_data_from_numpy(IDS)
            tensors.append(tensor)
        while not stop.is_set():
            for version in ("202", ""):
                try:
                    answer = client.infer("checked", tensors, model_version=version)
                    seen.add(answer.get_response().model_version)
                except InferenceServerException:
                    stop.wait(0.002)

    asking = threading.Thread(target=ask)
    asking.start()
    wrong = write_bundle(tmp_path / "wrong", 202, scale=2.0, parity=True, wrong_at=16)
    plane.add("checked", wrong, preprocess_of(202))
    row = one.wait_reason("checked", "nothing is served")
    assert (row["ready"], row["proof"], row["proof_of"]) == (False, "failed", 202)
    assert "at 16 tokens, any batch" in row["reason"]
    assert "convert it again on this kind of processor" in row["reason"]

    def refused() -> list[str]:
        return [line for line in plane.reports if f"refused model {wrong}: bundle 202" in line]

    # It is told after it is shown.
    wait_until(refused, 20)
    assert len(refused()) == 1
    right = write_bundle(tmp_path / "right", 101, parity=True)
    plane.add("checked", right, preprocess_of(101))
    one.wait("checked", ready=True, reason=None, proof="proven", proof_of=101)
    plane.add("checked", wrong, preprocess_of(202))
    row = one.wait_reason("checked", "bundle 101 serves on")
    assert (row["ready"], row["bundle_version"], row["proof"]) == (True, 101, "failed")
    assert answers(one.server, "checked", 101, 1.0)
    assert not ready(one.server, "checked", 202)
    stop.set()
    asking.join()
    assert seen == {"101"}


def test_a_restart_runs_no_proof_and_another_machine_does(tmp_path: Path) -> None:
    with running_triton(tmp_path / "t") as server:
        good = write_bundle(tmp_path / "a", 101, parity=True)
        with serving(server, tmp_path) as one:
            one.control_plane.add("kept", good, preprocess_of(101))
            one.wait("kept", ready=True, proof="proven")
            before = proofs(tmp_path)
            one.finish()
            server.kill()
            server.start()
            one.start()
            one.wait("kept", ready=True, proof="proven")
            assert proofs(tmp_path) == before
            # As if the folder had come from another machine.
            one.finish()
            server.kill()
            (tmp_path / "proofs.json").write_text(before.replace('"key": "', '"key": "other'))
            server.start()
            one.start()
            one.wait("kept", ready=True, proof="proven")
            assert proofs(tmp_path) != before


def test_a_state_whose_engine_is_wrong_on_this_machine_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was proven elsewhere: here its proof is made to say so, and then is gone."""
    with running_triton(tmp_path / "t") as server:
        wrong = write_bundle(tmp_path / "a", 101, parity=True, wrong_at=32)
        with monkeypatch.context() as elsewhere:
            prover = "transformer_serving.engine.controller.proving.prover.Prover"
            elsewhere.setattr(f"{prover}.require", lambda *_: None)
            elsewhere.setattr(f"{prover}.unproven", lambda *_: frozenset())
            with serving(server, tmp_path) as one:
                one.control_plane.add("moved", wrong, preprocess_of(101))
                one.wait("moved", ready=True)
        plane = one.control_plane
        with serving(server, tmp_path, control_plane=plane) as one:
            row = one.wait_reason("moved", "at 32 tokens, any batch")
            assert "nothing is served" in row["reason"]
            one.wait("moved", ready=False, proof="failed")
            assert not ready(server, "moved", 101)


def test_what_a_crash_left_of_a_proof_is_unloaded_and_deleted(
    triton_server: TritonServer, tmp_path: Path
) -> None:
    model = write_bundle(tmp_path / "a", 101, parity=True)
    left = triton_server.repository / PROOF_MODEL
    left.mkdir()
    (left / "101").symlink_to(model)
    (left / "config.pbtxt").write_text((model / "config.pbtxt").read_text())
    triton_server.client().load_model(PROOF_MODEL)
    assert PROOF_MODEL in index(triton_server)
    with serving(triton_server, tmp_path) as one:
        wait_until(lambda: PROOF_MODEL not in index(triton_server), 30)
        assert not left.exists()
        one.control_plane.add("after", model, preprocess_of(101))
        one.wait("after", ready=True, proof="proven")


def test_a_model_that_does_not_go_is_told_with_the_fix(
    one: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.control_plane.add("stays", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    one.wait("stays", ready=True)
    assert one.triton is not None
    monkeypatch.setattr(Triton, "unload", lambda *_: None)
    monkeypatch.setattr("transformer_serving.engine.controller.triton.server._UNLOADED_S", 0.0)
    with pytest.raises(EngineError, match="did not unload 'stays' within 0 s; .* restart"):
        one.triton.unload_wholly("stays")


def test_a_triton_that_dies_in_a_proof_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the engine: the proof is begun anew when Triton is back."""
    died = threading.Event()

    def held(parity_set: ParitySet, ask: Infer) -> Proof:
        # So small an engine is proven before anybody has looked.
        assert died.wait(60)
        return prove(parity_set, ask)

    monkeypatch.setattr("transformer_serving.engine.controller.proving.prover.prove", held)
    with running_triton(tmp_path / "t") as server, serving(server, tmp_path) as one:
        model = write_bundle(tmp_path / "a", 101, parity=True)
        one.control_plane.add("again", model, preprocess_of(101))
        one.wait("again", 30, ready=False, proof="proving", proof_of=None)
        wait_until(lambda: PROOF_MODEL in index(server), 30)
        server.kill()
        died.set()
        server.start()
        one.wait("again", 60, ready=True, proof="proven")
        assert PROOF_MODEL not in index(server)
