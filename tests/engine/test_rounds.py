"""What goes wrong in a round of the controller neither ends it nor keeps its other work."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.rounds import Rounds
from tests.engine.serving import FIELDS, preprocess_of, write_bundle
from tests.engine.text_models import write_onnx
from tests.engine.triton_server import wait_until
from tests.stand_in import names as naming, nvidia_smi
from transformer_serving.contract.gate.server_facts import Gpu
from transformer_serving.engine.controller import failures, figures, look, state
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.deployment import Deployment
from transformer_serving.engine.controller.failures import FailedChanges
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.first_loads import TRITON_AWAY
from transformer_serving.engine.controller.proving.prover import PROOF_MODEL
from transformer_serving.engine.controller.records import REMOVAL, Pauses
from transformer_serving.engine.controller.triton.server import BackendDied, TritonAway
from transformer_serving.engine.errors import EngineError, NotWanted
from transformer_serving.engine.model_config import from_text


@pytest.fixture
def one(tmp_path: Path) -> Rounds:
    """A controller that serves the model m."""
    rounds = Rounds(tmp_path / "controller")
    rounds.plane.add("m", write_onnx(tmp_path / "m"))
    rounds.until(lambda: rounds.row("m").get("ready"))
    return rounds


def test_the_control_plane_is_asked_once_what_was_served_is_back(one: Rounds) -> None:
    """At once, and not only with the next tick: `up` waits for the answer."""
    one.triton.ready.clear()

    def is_back() -> bool:
        one.service._wake.clear()
        one.service.round()
        return one.service._head_start_ends == 0.0

    with one.held("load"):
        one.restart()
        assert not is_back()
    wait_until(is_back, 30)
    assert one.triton.ready
    assert one.service._wake.is_set()


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_once_and_keeps_nothing_else(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with monkeypatch.context() as patch:
        patch.setattr(state, "replace_file", full)
        # A new row that cannot be written, and a record neither.
        one.plane.add("n", write_onnx(tmp_path / "n"))
        one.until(lambda: 'endpoint="n"' in one.page() and "n" in one.triton.loads)
        os.utime(one.path, (0, 0))
        for _ in range(5):
            one.service.round()
        assert one.path.stat().st_mtime > 0, "the watchdog would end it"
        assert one.row("n") == {}
        assert len([row for row in caplog.records if row.message.startswith("the status")]) == 1
    one.service._failures.over("n", one.plane.served["n"].fingerprint)
    one.until(lambda: one.row("n").get("ready"))


def test_a_folder_that_the_disk_has_no_room_for_is_told_as_a_file_is(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, and of its files only the first."""
    folder = write_bundle(tmp_path / "n", 101)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        one.plane.add("n", folder, preprocess_of(101))
        one.until(lambda: one.row("n").get("reason") not in (None, "loading"))
        assert one.row("n")["reason"] == "OSError: [Errno 28] No space left on device"
    told = [row for row in caplog.records if row.message.startswith("n: OSError")]
    assert told
    assert not any(row.exc_info for row in told)


def test_a_record_that_cannot_be_written_is_none(
    one: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = state.StateFile(one.path)
    before = file.records()
    monkeypatch.setattr(state, "replace_file", full)
    for record in (None, before["m"]):
        with pytest.raises(OSError, match="No space left"):
            file.commit("m" if record is None else "other", record)
        assert file.records() == before


def test_a_fetch_that_nobody_waits_for_any_more_is_no_failure(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end may come before the loop knows that its endpoint is gone."""

    asked: list[str] = []

    @contextlib.contextmanager
    def unwanted(served: Served) -> Iterator[LocalCopy]:
        asked.append(served.model)
        raise NotWanted("played")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(one.plane, "model", unwanted)
        one.plane.add("n", write_onnx(tmp_path / "n"))
        one.until(lambda: len(asked) > 1)
        assert one.row("n")["reason"] == "loading"
    one.until(lambda: one.row("n").get("ready"))


def test_a_load_that_cannot_be_written_down_leaves_nothing_in_triton(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its endpoint may be removed before it is tried again: nobody would unload it then."""
    one.plane.add("other", write_onnx(tmp_path / "other"))
    with monkeypatch.context() as patch:
        patch.setattr(state, "replace_file", full)
        one.until(lambda: "other" in one.triton.loads)
        one.until(lambda: "other" not in one.triton.ready)
    one.plane.remove("other")
    one.until(lambda: set(one.triton.ready) == {"m"})


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("end_stuck_loads", psutil.AccessDenied(1)),
        ("unload_dead", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")),
        ("unload_dead", EngineError("Triton refused it")),
    ],
)
def test_what_fails_beside_a_look_is_told_and_the_look_counts(
    one: Rounds, name: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    raised = 0

    def fail() -> None:
        nonlocal raised
        raised += 1
        raise error

    one.triton.before[name] = fail
    one.until(lambda: raised > 3)
    assert one.row("m")["ready"]
    assert len([row for row in caplog.records if row.levelno == logging.ERROR]) == 1


def test_what_clearml_is_not_told_is_in_the_log_once(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []

    def refuse(text: str) -> None:
        refused.append(text)
        raise EngineError("this account may create no task")

    monkeypatch.setattr(one.plane, "report", refuse)
    monkeypatch.setattr(one.plane, "report_figures", refuse)
    monkeypatch.setattr(figures, "read_page", lambda url, timeout_s: "")
    monkeypatch.setattr(figures, "_EVERY_S", 0.0)
    one.service._figures = figures.TritonFigures("of nobody", lambda: frozenset())
    for name in ("n", "o"):
        one.plane.add(name, write_onnx(tmp_path / name))
    one.until(lambda: sum(map(bool, refused)) > 1 and refused.count("") > 1)
    told = sorted(row.message for row in caplog.records if "may create no task" in row.message)
    assert [line.partition(":")[0] for line in told] == [
        "the figures for ClearML",
        "the report to ClearML",
    ]


@pytest.mark.parametrize("error", [EngineError("Triton refused it"), TritonAway("away")])
def test_a_triton_that_does_not_say_what_it_has_is_asked_again(
    one: Rounds, error: Exception
) -> None:
    def fail() -> None:
        raise error

    one.triton.before["loaded"] = fail
    one.until(lambda: one.row("m")["reason"] == TRITON_AWAY)
    del one.triton.before["loaded"]
    one.until(lambda: one.row("m")["ready"])
    assert one.triton.loads == ["m"]


def test_a_load_that_fails_is_a_figure_while_the_version_before_serves(
    one: Rounds, tmp_path: Path
) -> None:
    """A proof was the only failure that any figure told of."""

    def fail() -> None:
        raise EngineError("Triton refused it")

    failed = '\ntransformer_serving_engine_load_failed{endpoint="m",kind="refused"}'
    assert f"{failed} 0\n" in one.page()
    one.triton.before["load"] = fail
    one.plane.add("m", write_onnx(tmp_path / "after", scale=2.0))
    one.until(lambda: f"{failed} 1\n" in one.page())
    assert one.row("m")["ready"]


def test_a_grace_that_cannot_be_ended_holds_back_no_reload(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk: what lies there can be loaded all the same."""
    load = one.triton.load

    def both(model: str, version: int) -> None:
        load(model, version)
        one.triton.ready[model] = frozenset({101, version})

    monkeypatch.setattr(one.triton, "load", both)
    monkeypatch.setattr(Deployment, "retire", full)
    monkeypatch.setattr(failures, "FAILED", Pauses(600.0, 1, 600.0))
    one.plane.add("m", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    one.until(lambda: one.row("m")["bundle_version"] == 101)
    one.plane.add("m", write_bundle(tmp_path / "b", 202), preprocess_of(202))
    one.until(lambda: "No space left" in (one.row("m")["reason"] or ""))
    assert one.row("m")["ready"]
    one.triton.ready = {}
    one.until(lambda: not one.row("m")["ready"])
    one.until(lambda: one.row("m")["ready"])


@pytest.mark.parametrize("is_bundle", [True, False])
def test_files_that_are_damaged_here_are_fetched_though_the_endpoint_alone_has_changed(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bundle: bool
) -> None:
    """Of a bundle its manifest tells, of any other file Triton does."""
    monkeypatch.setattr(failures, "FAILED", Pauses(0.0, 1, 0.0))
    source = write_bundle(tmp_path / "n", 101) if is_bundle else write_onnx(tmp_path / "n")
    code = preprocess_of(101 if is_bundle else None)
    one.plane.add("n", source, code)
    one.until(lambda: one.row("n").get("ready") and not one.service._jobs)
    [served] = (one.folder / "models" / "n").glob("*/model.onnx")
    good = served.read_bytes()
    served.write_bytes(good[:-1])

    def read() -> None:
        if served.read_bytes() != good:
            raise EngineError("Triton cannot read it")

    one.triton.before["load"] = read
    fields = dataclasses.replace(FIELDS, auxiliary=None if is_bundle else {"max_batch_size": 4})
    one.plane.add("n", source, code, fields=fields)
    wanted = one.plane.served["n"].fingerprint
    one.until(lambda: one.service._state.records()["n"].fingerprint == wanted)
    assert served.read_bytes() == good


def test_what_serves_is_put_back_while_its_update_is_on_its_way(
    one: Rounds, tmp_path: Path
) -> None:
    served = one.folder / "models" / "m" / "1" / "model.onnx"
    before, after = served.read_bytes(), write_onnx(tmp_path / "after", scale=2.0)
    with one.downloads_held() as asked:
        one.plane.add("m", after)
        one.until(asked.is_set)
        # As after a Triton that was started again.
        one.triton.ready = {}
        one.until(lambda: not one.row("m")["ready"])
        one.until(lambda: one.row("m")["ready"])
        assert served.read_bytes() == before
    one.until(lambda: served.read_bytes() == after.read_bytes())
    one.until(lambda: len(list((one.folder / "models" / ".versions" / "m").iterdir())) == 1)


def test_what_serves_is_put_back_while_its_update_is_proven(one: Rounds, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "after", 202, parity=True)
    with one.held("infer") as asked:
        one.plane.add("m", bundle, preprocess_of(202))
        one.until(asked.is_set)
        # As of a model whose process died.
        del one.triton.ready["m"]
        one.until(lambda: not one.row("m")["ready"])
        one.until(lambda: one.row("m")["ready"])
        assert one.row("m")["bundle_version"] is None
        assert one.triton.loads == ["m", PROOF_MODEL, "m"]
    one.until(lambda: one.row("m")["bundle_version"] == 202 and not one.service._jobs)
    assert one.triton.loads == ["m", PROOF_MODEL, "m", "m"]
    assert one.row("m")["ready"]
    assert one.state()["failures"] == []


def test_what_serves_is_put_back_while_its_update_waits_for_its_turn(
    one: Rounds, tmp_path: Path
) -> None:
    turns = one.service._deployment._at_work
    after = write_onnx(tmp_path / "after", scale=2.0)
    with turns, turns:
        one.plane.add("m", after)
        one.until(lambda: one.service._jobs)
        one.triton.ready = {}
        one.until(lambda: not one.row("m")["ready"])
        one.until(lambda: one.row("m")["ready"])
    one.until(lambda: len(one.triton.loads) == 3 and not one.service._jobs)
    served = one.folder / "models" / "m" / "1" / "model.onnx"
    assert served.read_bytes() == after.read_bytes()


@pytest.mark.parametrize("wants_another", [True, False])
def test_what_nobody_asks_for_any_more_is_not_loaded_when_its_turn_comes(
    one: Rounds, tmp_path: Path, caplog: pytest.LogCaptureFixture, wants_another: bool
) -> None:
    """It would take the place of what serves, which the workers ask for."""
    turns = one.service._deployment._at_work
    third = write_onnx(tmp_path / "third", scale=3.0)
    with turns, turns:
        one.plane.add("m", write_onnx(tmp_path / "second", scale=2.0))
        one.until(lambda: one.service._jobs)
        if wants_another:
            one.plane.add("m", third)
        else:
            one.plane.remove("m")
        one.until(lambda: one.service._sync.wanted == one.plane.served)
    store = one.folder / "models" / ".versions" / "m"
    if wants_another:
        one.until(lambda: len(one.triton.loads) > 1 and not one.service._jobs)
        served = one.folder / "models" / "m" / "1" / "model.onnx"
        assert served.read_bytes() == third.read_bytes()
        assert len(list(store.iterdir())) == 1
    else:
        one.until(lambda: "m" not in one.triton.ready and not one.service._jobs)
        assert not store.exists()
    assert one.triton.loads == ["m"] * (1 + wants_another)
    assert one.state()["failures"] == []
    assert not [row for row in caplog.records if row.levelno >= logging.ERROR]


def test_a_proof_is_kept_for_others_where_nobody_asks_for_its_own_model_any_more(
    one: Rounds, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "after", 202, parity=True)
    before = one.plane.served["m"]
    with one.held("infer") as asked:
        one.plane.add("m", bundle, preprocess_of(202))
        one.until(asked.is_set)
        one.plane.add("n", bundle, preprocess_of(202))
        one.until(lambda: "n" in one.service._jobs._updates)
        one.plane.add("m", Path(before.model_id))
        one.until(lambda: one.service._sync.wanted == one.plane.served)
    one.until(lambda: one.row("n").get("ready") and not one.service._jobs)
    assert one.triton.loads == ["m", PROOF_MODEL, "n"]
    assert one.service._state.records()["m"].fingerprint == before.fingerprint
    assert one.row("m")["ready"]
    assert one.row("m")["reason"] is None
    assert one.state()["failures"] == []
    assert len(list((one.folder / "models" / ".versions" / "m").iterdir())) == 1


def test_what_nobody_asks_for_any_more_is_not_proven_when_its_turn_comes(
    one: Rounds, tmp_path: Path
) -> None:
    before = one.plane.served["m"]
    bundle = write_bundle(tmp_path / "after", 202, parity=True)
    with one.service._prover._turn:
        one.plane.add("m", bundle, preprocess_of(202))
        one.until(lambda: one.service._prover.proving)
        one.plane.add("m", Path(before.model_id))
        one.until(lambda: one.service._sync.wanted == one.plane.served)
    one.until(lambda: not one.service._jobs)
    assert one.triton.loads == ["m"]
    assert one.row("m")["reason"] is None
    assert len(list((one.folder / "models" / ".versions" / "m").iterdir())) == 1


def test_an_update_that_is_proven_waits_for_what_is_put_back(one: Rounds, tmp_path: Path) -> None:
    """Neither of the two ever sees what the other has half done."""
    bundle = write_bundle(tmp_path / "after", 202, parity=True)
    with contextlib.ExitStack() as reloading:
        with one.held("infer") as asked:
            one.plane.add("m", bundle, preprocess_of(202))
            one.until(asked.is_set)
            loading = reloading.enter_context(one.held("load"))
            del one.triton.ready["m"]
            one.until(loading.is_set)
        one.until(lambda: one.row("m")["proof"] != "proving")
        assert PROOF_MODEL not in one.triton.ready
        assert [path.name for path in sorted((one.folder / "models" / "m").glob("[0-9]*"))] == ["1"]
        assert one.triton.loads == ["m", PROOF_MODEL, "m"]
    one.until(lambda: one.row("m")["bundle_version"] == 202 and not one.service._jobs)
    assert one.triton.loads == ["m", PROOF_MODEL, "m", "m"]
    assert one.row("m")["ready"]


def without_its_first_thread(monkeypatch: pytest.MonkeyPatch, pool: str) -> list[threading.Thread]:
    """The system has none for it, once; what it had none for."""
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(pool) and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


def test_a_model_is_put_back_once_there_is_a_thread_for_it(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool keeps what it found none for, and comes to it with the next one's."""
    refused = without_its_first_thread(monkeypatch, "load")
    one.triton.ready = {}
    one.until(lambda: refused)
    one.until(lambda: one.row("m")["ready"] and not one.service._jobs)
    assert one.triton.loads == ["m", "m"]
    assert one.state()["failures"] == []
    one.plane.add("m", write_onnx(tmp_path / "after", scale=2.0))
    one.until(lambda: len(one.triton.loads) == 3 and not one.service._jobs)


def test_an_update_without_a_thread_is_fetched_again_and_leaves_nothing(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first update took a thread of the pool.
    one.restart()
    refused = without_its_first_thread(monkeypatch, "take")
    one.plane.add("m", write_onnx(tmp_path / "after", scale=2.0))
    one.until(lambda: refused)
    one.until(lambda: len(one.triton.loads) == 2 and not one.service._jobs)
    assert len(list((one.folder / "models" / ".versions" / "m").iterdir())) == 1


def test_what_is_not_proven_here_is_not_proven_again_before_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, where it answers otherwise; and the way out of that is to deploy."""
    one = Rounds(tmp_path / "controller")
    one.plane.add("m", write_bundle(tmp_path / "before", 101, parity=True), preprocess_of(101))
    one.until(lambda: one.row("m").get("ready") and not one.service._jobs)
    (one.folder / "proofs.json").unlink()
    one.triton.ready = {}
    right = one.triton.infer

    def infer(config: Any, version: int, tensors: Any, wanted: Any) -> dict[str, Any]:
        found = right(config, version, tensors, wanted)
        return {name: array + (version == 101) for name, array in found.items()}

    monkeypatch.setattr(one.triton, "infer", infer)
    one.restart()
    one.until(lambda: one.row("m").get("proof") == "failed")
    held, before = threading.Event(), one.triton.before

    def only_of_the_update() -> None:
        if one.triton.ready.get(PROOF_MODEL) == frozenset({202}):
            held.set()
            assert free.wait(60)

    free = threading.Event()
    before["infer"] = only_of_the_update
    one.plane.add("m", write_bundle(tmp_path / "after", 202, parity=True), preprocess_of(202))
    one.until(held.is_set)
    begun = len(one.triton.loads)
    # Its pause is over.
    failed = one.service._failures._failed
    failed.update({key: dataclasses.replace(one, retry_at=0.0) for key, one in failed.items()})
    for _ in range(5):
        one.service.round()
    free.set()
    one.until(lambda: one.row("m")["ready"] and not one.service._jobs)
    assert one.triton.loads[begun:] == ["m"]
    assert one.row("m")["bundle_version"] == 202


def serving_a_bundle_whose_load_ends_triton(
    folder: Path, error: type[EngineError]
) -> tuple[Rounds, list[list[int]]]:
    """Bundle 101, which Triton has lost; and the versions of each load of m from then on."""
    one = Rounds(folder / "controller")
    one.plane.add("m", write_bundle(folder / "before", 101, parity=True), preprocess_of(101))
    one.until(lambda: one.row("m").get("ready") and not one.service._jobs)
    loads: list[list[int]] = []

    def end_triton() -> None:
        if one.triton.loads[-1] == "m":
            text = (one.folder / "models" / "m" / "config.pbtxt").read_text()
            loads.append(sorted(from_text(text).version_policy.specific.versions))
            if 101 in loads[-1]:
                one.triton.ready.clear()
                raise error("no memory")

    one.triton.before["load"] = end_triton
    one.triton.ready.clear()
    one.until(lambda: loads == [[101]] and not one.service._jobs)
    return one, loads


@pytest.mark.parametrize("error", [TritonAway, BackendDied])
def test_a_bundle_that_cannot_be_loaded_any_more_is_replaced(
    tmp_path: Path, error: type[EngineError]
) -> None:
    """Its load, as with less memory than before, would end that of the new one beside it."""
    one, loads = serving_a_bundle_whose_load_ends_triton(tmp_path, error)
    one.plane.add("m", write_bundle(tmp_path / "after", 202, parity=True), preprocess_of(202))
    one.until(lambda: any(202 in versions for versions in loads))
    assert next(versions for versions in loads if 202 in versions) == [202]
    one.until(lambda: one.row("m")["ready"] and not one.service._jobs)
    assert (one.row("m")["bundle_version"], one.row("m")["reason"]) == (202, None)


def test_what_took_triton_along_is_not_put_back_beside_its_update(tmp_path: Path) -> None:
    one, loads = serving_a_bundle_whose_load_ends_triton(tmp_path, TritonAway)
    with one.held("infer") as asked:
        one.plane.add("m", write_bundle(tmp_path / "after", 202, parity=True), preprocess_of(202))
        one.until(asked.is_set)
        begun = len(loads)
        failed = one.service._failures._failed
        failed.update({key: dataclasses.replace(one, retry_at=0.0) for key, one in failed.items()})
        for _ in range(5):
            one.service.round()
        assert not one.service._jobs._others
        assert len(loads) == begun
    one.until(lambda: one.row("m")["ready"] and not one.service._jobs)
    assert loads[begun:] == [[202]]


def test_an_update_that_was_just_loaded_is_not_put_back_by_an_old_look(
    one: Rounds, tmp_path: Path
) -> None:
    """The answer says what was there before the update was let in."""
    loading, free = threading.Event(), threading.Event()

    def hold() -> None:
        if one.triton.loads[-1] == "m":
            loading.set()
            assert free.wait(60)

    one.triton.before["load"] = hold
    one.plane.add("m", write_bundle(tmp_path / "after", 202, parity=True), preprocess_of(202))
    one.until(loading.is_set)
    update, _ = one.service._jobs._updates["m"]

    def ended_meanwhile() -> None:
        free.set()
        wait_until(update.done, 30)

    one.triton.before["loaded"] = ended_meanwhile
    one.service.round()
    del one.triton.before["loaded"], one.triton.before["load"]
    one.until(lambda: not one.service._jobs)
    for _ in range(3):
        one.service.round()
    assert one.triton.loads == ["m", PROOF_MODEL, "m"]


def test_a_proven_update_needs_no_second_turn_where_the_old_version_is_lost(
    tmp_path: Path,
) -> None:
    """The two cannot share a configuration, so it gave its turn up for the workers to know."""
    one = Rounds(tmp_path / "controller")
    one.plane.add("m", write_bundle(tmp_path / "before", 101, parity=True), preprocess_of(101))
    one.until(lambda: one.row("m").get("ready") and not one.service._jobs)
    turns = one.service._deployment._at_work
    others = dataclasses.replace(FIELDS, auxiliary=None)
    after = write_bundle(tmp_path / "after", 202, parity=True, batch=0)
    with turns:
        with one.held("infer") as asked:
            one.plane.add("m", after, preprocess_of(202), fields=others)
            one.until(asked.is_set)
        # As soon as the update gives it up.
        one.until(lambda: turns.acquire(blocking=False))
        one.triton.ready.pop("m")
        one.until(lambda: one.row("m")["bundle_version"] == 202 and not one.service._jobs)
        turns.release()
    # Each turn is there again.
    assert turns.acquire(blocking=False)
    assert turns.acquire(blocking=False)


def test_what_is_being_loaded_is_not_put_back_beside_it(one: Rounds, tmp_path: Path) -> None:
    with one.held("load") as loading:
        one.plane.add("m", write_onnx(tmp_path / "after", scale=2.0))
        one.until(loading.is_set)
        one.triton.ready = {}
        one.until(lambda: not one.row("m")["ready"])
        for _ in range(5):
            one.service.round()
        assert one.triton.loads == ["m", "m"]
    one.until(lambda: one.row("m")["ready"])
    assert one.triton.loads == ["m", "m"]


def test_an_update_that_came_too_late_leaves_nothing(one: Rounds, tmp_path: Path) -> None:
    with one.downloads_held() as asked:
        one.plane.add("m", write_onnx(tmp_path / "after", scale=2.0))
        one.until(asked.is_set)
        one.plane.add("m", tmp_path / "m" / "model.onnx")
        one.until(lambda: one.service._sync.wanted == one.plane.served)
    one.until(lambda: not one.service._fetches.coming("m"))
    one.until(lambda: len(list((one.folder / "models" / ".versions" / "m").iterdir())) == 1)
    assert one.row("m")["reason"] is None
    assert one.triton.loads == ["m"]


def test_what_came_as_its_endpoint_was_removed_is_fetched_again(
    one: Rounds, tmp_path: Path
) -> None:
    """The endpoint is there again by the next sync, and its files went with the removal."""
    with one.downloads_held() as asked:
        one.plane.add("n", write_onnx(tmp_path / "n"))
        one.until(asked.is_set)
        served = one.plane.served.pop("n")
        one.until(lambda: "n" not in (one.service._sync.wanted or {}))
        _, coming = one.service._fetches._coming["n"]
        # What the next round hears of.
        wait_until(lambda: one.service._sync._asked is None or one.service._sync._asked.done(), 30)
    wait_until(coming.done, 30)
    one.plane.served["n"] = served
    one.service.round()
    assert one.service._jobs._others["n"][1] == REMOVAL
    one.until(lambda: one.row("n").get("ready") and not one.service._jobs)
    assert (one.folder / "models" / "n" / "1" / "model.onnx").is_file()


def ended_as_it_loads(one: Rounds) -> None:
    """Triton dies of the load, and its container goes with it; the next one starts."""
    loading, gone = threading.Event(), threading.Event()

    def die() -> None:
        loading.set()
        assert gone.wait(60)
        raise TritonAway("Triton went away while it loaded the model")

    one.triton.before["load"] = die
    one.triton.ready = {}
    one.until(loading.is_set)
    one.restart()
    one.triton.before.clear()
    gone.set()


def test_a_load_that_ends_the_container_is_tried_after_growing_pauses(one: Rounds) -> None:
    pauses = []
    for tries in range(1, 5):
        ended_as_it_loads(one)
        loads = len(one.triton.loads)
        for _ in range(3):
            one.service.round()
        assert len(one.triton.loads) == loads == tries + 1, "tried again at once"
        assert "the controller ended meanwhile" in one.row("m")["reason"]
        state = one.state()
        [failure] = state["failures"]
        pauses.append(round(failure["retry_at"] - failure["at"]))
        # As if it were over.
        failure["retry_at"] = 0.0
        one.path.write_text(json.dumps(state))
        one.restart()
    assert pauses == [2, 4, 8, 16]
    one.until(lambda: one.row("m")["ready"])
    assert one.state()["failures"] == []


def begun(one: Rounds) -> set[str]:
    """The models whose loads the next controller would count as failed."""
    return {str(failure["model"]) for failure in one.state()["failures"]}


def test_a_load_that_ends_the_container_costs_none_that_waits_a_pause(
    one: Rounds, tmp_path: Path
) -> None:
    """Of twelve that a Triton has lost four are put back at a time."""
    names = {"m", *(f"m{number}" for number in range(11))}
    for name in names - {"m"}:
        one.plane.add(name, tmp_path / "m" / "model.onnx")
    one.until(lambda: all(one.row(name).get("ready") for name in names) and not one.service._jobs)
    one.triton.loads.clear()
    loading, gone = threading.Barrier(5), threading.Event()

    def die() -> None:
        loading.wait(60)
        assert gone.wait(60)
        raise TritonAway("Triton went away while it loaded the model")

    one.triton.before["load"] = die
    one.triton.ready = {}
    one.until(lambda: len(one.service._jobs) == len(names))
    loading.wait(60)
    first = set(one.triton.loads)
    assert len(first) == 4
    assert begun(one) == first
    ended = one.service
    one.triton.before.clear()
    one.restart()
    assert {model for model, _ in one.service._failures.now} == first
    one.until(lambda: all(one.row(name)["ready"] for name in names - first))
    ended._jobs._for_others.shutdown(wait=False, cancel_futures=True)
    gone.set()


def add_bundles(one: Rounds, folder: Path, names: Sequence[str]) -> None:
    """Each with a parity set, so that each is proven first."""
    for number, name in enumerate(names):
        bundle = write_bundle(folder / name, 201 + number, parity=True)
        one.plane.add(name, bundle, preprocess_of(201 + number))


def unproven(one: Rounds, folder: Path, count: int) -> list[str]:
    """The names of so many that serve and were proven on another kind of machine."""
    names = [f"a{number}" for number in range(count)]
    add_bundles(one, folder, names)
    one.until(lambda: all(one.row(name).get("ready") for name in names) and not one.service._jobs)
    (one.folder / "proofs.json").unlink()
    return names


def comes_before(one: Rounds, model: str, names: Sequence[str]) -> None:
    """A controller that begins anew puts the model back while these wait for their proofs."""
    one.triton.ready = {}
    one.restart()
    with one.held("infer") as asked:
        one.until(asked.is_set)
        one.until(lambda: one.row(model)["ready"])
        assert not any(one.row(name)["ready"] for name in names)
    one.until(lambda: all(one.row(name)["ready"] for name in names))


def test_a_proof_that_ends_the_container_costs_none_that_waits_for_its_turn_a_pause(
    one: Rounds, tmp_path: Path
) -> None:
    """On another kind of machine each is proven before it is put back, one at a time."""
    names = unproven(one, tmp_path, 4)
    dying, gone = threading.Event(), threading.Event()

    def die() -> None:
        if one.triton.loads[-1] == PROOF_MODEL:
            dying.set()
            assert gone.wait(60)
            raise TritonAway("Triton went away while it loaded the model")

    one.triton.before["load"] = die
    one.triton.ready = {}
    one.restart()
    one.until(dying.is_set)

    def begun_proofs() -> set[str]:
        # The model m needs none, and may be loaded beside it.
        return begun(one) & set(names)

    one.until(lambda: len(one.service._prover.proving) == len(names) or len(begun_proofs()) > 1)
    assert len(begun_proofs()) == 1
    gone.set()
    for pool in (one.service._jobs._for_others, one.service._jobs._for_proofs):
        pool.shutdown(cancel_futures=True)


def test_what_is_proven_stays_so_where_the_gpus_cannot_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's next start is greeted anew."""
    nvidia_smi(tmp_path, naming(Gpu("NVIDIA A10", "560.35.03", "8.6")))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    one = Rounds(tmp_path / "controller")
    add_bundles(one, tmp_path, ["m"])
    one.until(lambda: one.row("m").get("ready") and not one.service._jobs)
    nvidia_smi(tmp_path, "exit 255")
    starts = one.service._look.starts

    def away() -> None:
        del one.triton.before["loaded"]
        raise TritonAway("Triton does not answer")

    one.triton.before["loaded"] = away
    one.until(lambda: one.service._look.starts > starts)
    assert one.service._prover.unproven(one.service._state.records().values()) == frozenset()
    one.until(lambda: one.row("m")["ready"])
    # So is the one that serves by the controller's next start.
    one.restart()
    one.until(lambda: one.row("m")["ready"] and one.service._prover.machine is not None)
    assert one.service._prover.unproven(one.service._state.records().values()) == frozenset()
    assert one.triton.loads == [PROOF_MODEL, "m"]


def test_what_needs_no_proof_is_put_back_while_others_wait_for_theirs(
    one: Rounds, tmp_path: Path
) -> None:
    """On another kind of machine there are more of these than are put back at a time."""
    comes_before(one, "m", unproven(one, tmp_path, 5))


def test_what_an_earlier_kit_took_is_checked_and_put_back_while_others_wait_for_their_proof(
    one: Rounds, tmp_path: Path
) -> None:
    """A new image may have both another machine's key and other rules."""
    names = unproven(one, tmp_path, 5)
    state = one.state()
    del state["models"]["m"]["versions"][0]["rules"]
    one.path.write_text(json.dumps(state))
    comes_before(one, "m", names)


def test_an_update_without_a_proof_is_loaded_while_others_wait_for_theirs(
    one: Rounds, tmp_path: Path
) -> None:
    names = [f"a{number}" for number in range(3)]
    with one.held("infer") as asked:
        add_bundles(one, tmp_path, names)
        one.until(lambda: asked.is_set() and len(one.service._jobs) == len(names))
        one.plane.add("n", write_onnx(tmp_path / "n"))
        one.until(lambda: one.row("n").get("ready"))
        assert not any(one.row(name)["ready"] for name in names)
    one.until(lambda: all(one.row(name)["ready"] for name in names))


def test_an_update_that_waits_for_its_turn_has_not_begun(one: Rounds, tmp_path: Path) -> None:
    turns = one.service._deployment._at_work
    with turns, turns:
        one.plane.add("n", tmp_path / "m" / "model.onnx")
        one.until(lambda: one.service._jobs)
        assert begun(one) == set()
        loading = contextlib.ExitStack()
        asked = loading.enter_context(one.held("load"))
    with loading:
        one.until(asked.is_set)
        assert begun(one) == {"n"}
    one.until(lambda: one.row("n")["ready"] and not one.service._jobs)
    assert begun(one) == set()


def test_a_load_that_ended_with_its_controller_is_no_failure_where_triton_has_it(
    one: Rounds,
) -> None:
    file = state.StateFile(one.path)
    file.publish({"endpoints": []})
    record, failed = file.records()["m"], FailedChanges(file, 0.0)
    failed.begin("m", record.fingerprint, time.time())
    one.restart()
    one.until(lambda: one.state()["failures"] == [] and one.row("m")["reason"] is None)
    assert one.triton.loads == ["m"]


def test_a_suspect_that_takes_long_keeps_no_look(one: Rounds, tmp_path: Path) -> None:
    with one.held("unload_dead") as asked:
        one.until(asked.is_set)
        one.plane.add("n", write_onnx(tmp_path / "n"))
        one.until(lambda: one.row("n").get("ready"))
        assert one.row("m")["ready"]


def test_a_late_look_keeps_what_was_seen_for_a_while(
    one: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "_LOOK_S", 0.0)
    monkeypatch.setattr(look, "_KEPT_S", 600.0)
    with one.held("loaded") as asked:
        one.until(asked.is_set)
        for _ in range(3):
            one.service.round()
        assert one.row("m")["ready"]
        monkeypatch.setattr(look, "_KEPT_S", -1.0)
        one.service.round()
        assert one.row("m")["reason"] == TRITON_AWAY
    one.until(lambda: one.row("m")["ready"])


def test_a_triton_that_comes_again_is_counted(one: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its lives may be too short for an alert that waits."""
    name = "\ntransformer_serving_engine_triton_starts_total"
    assert f"{name} 1\n" in one.page()

    def away() -> dict[str, frozenset[int]]:
        raise TritonAway("away")

    for starts in (2, 3):
        with monkeypatch.context() as patch:
            patch.setattr(one.triton, "loaded", away)
            one.until(lambda: one.row("m")["reason"] == TRITON_AWAY)
        one.until(lambda: one.row("m")["ready"])
        assert f"{name} {starts}\n" in one.page()


def test_a_triton_that_runs_on_is_no_start_of_another_one(one: Rounds) -> None:
    """Of 0 and then 1, after each start of a controller, Prometheus makes a growth."""
    name = "\ntransformer_serving_engine_triton_starts_total"
    assert f"{name} 1\n" in one.page()
    one.restart()
    assert f"{name} " not in one.page()
    one.until(lambda: one.row("m")["ready"])
    assert f"{name} 1\n" in one.page()


def test_a_late_look_loads_nothing_twice(one: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for before the load ended, and says that the model is not there."""
    monkeypatch.setattr(look, "_LOOK_S", 0.0)
    monkeypatch.setattr(look, "_KEPT_S", 600.0)
    with contextlib.ExitStack() as load:
        loading = load.enter_context(one.held("load"))
        one.triton.ready = {}
        one.until(loading.is_set)
        with one.held("loaded") as asked:
            one.until(asked.is_set)
            load.close()
            one.until(lambda: one.triton.ready and not one.service._jobs)
            one.service.round()
    one.until(lambda: one.row("m")["ready"])
    assert one.triton.loads == ["m", "m"]


def test_a_proof_model_that_does_not_go_holds_back_only_what_is_to_be_proven(
    one: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof whose own it was counts."""
    monkeypatch.setattr(failures, "FAILED", Pauses(0.0, 1, 0.0))

    def stay() -> None:
        raise EngineError(f"Triton did not unload '{PROOF_MODEL}'")

    def add(name: str, version: int) -> None:
        bundle = write_bundle(tmp_path / name, version, parity=True)
        one.plane.add(name, bundle, preprocess_of(version))

    one.triton.before["load"] = lambda: one.triton.before.update(unload_wholly=stay)
    add("n", 101)
    one.until(lambda: one.row("n").get("ready"))
    assert one.row("n")["proof"] == "proven"
    assert PROOF_MODEL in one.triton.ready
    add("o", 102)
    one.plane.add("p", write_onnx(tmp_path / "p"))
    one.until(lambda: f"did not unload '{PROOF_MODEL}'" in (one.row("o").get("reason") or ""))
    one.until(lambda: one.row("p").get("ready"))
    assert [one.row(name)["ready"] for name in ("m", "n", "o")] == [True, True, False]
    one.triton.before.clear()
    one.until(lambda: one.row("o")["ready"] and one.triton.ready.keys() == {"m", "n", "o", "p"})
    # What was wrong before stands until its proof, which serves it already, has ended.
    one.until(lambda: (one.row("o")["proof"], one.row("o")["reason"]) == ("proven", None))
