"""The model repository and what a crash at any moment leaves to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.serving import FIELDS, ListedEndpoints, preprocess_of, write_bundle
from tests.engine.small_parity import small_parity_set
from tests.engine.text_models import expected, write_onnx
from transformer_serving.contract.naming import BUNDLE_FOLDER
from transformer_serving.engine.controller.deployment import Deployment
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.proving.machine import Machine as Hardware
from transformer_serving.engine.controller.proving.proofs import Proofs
from transformer_serving.engine.controller.proving.prover import PROOF_MODEL, ProofFailed, Prover
from transformer_serving.engine.controller.records import ModelRecord
from transformer_serving.engine.controller.service import ControllerSettings, Service
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.triton.server import LoadFailed, TritonAway
from transformer_serving.engine.controller.trust import Trust
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.proof.calls import calls

# What a proof of the small parity set asks.
CALLS = len(list(calls(small_parity_set())))
REPLACE = "transformer_serving.engine.controller.files.repository.replace_file"
MACHINE = Hardware("a processor", "0", "2.51.0", (), (), ())


class FakeTriton:
    """Accepts what `accepts` accepts; tells `watch` before and after each load.

    The versions in `wrong` answer wrongly, the others as the small graph of scale 1.
    """

    def __init__(self, watch: Callable[[], None], accepts: Callable[[int], bool]) -> None:
        self.watch, self.accepts = watch, accepts
        self.wrong: set[int] = set()
        self.ready: dict[str, frozenset[int]] = {}

    def load(self, model: str, version: int) -> None:
        self.watch()
        if not self.accepts(version):
            raise LoadFailed("bad", frozenset({version}))
        self.ready[model] = self.ready.get(model, frozenset()) | {version}
        self.watch()

    def infer(
        self, config: Any, version: int, tensors: Mapping[str, np.ndarray], wanted: Sequence[str]
    ) -> dict[str, np.ndarray]:
        self.watch()
        ids, mask = tensors["input_ids"], tensors["attention_mask"]
        wrong = 5.0 if version in self.wrong else 0.0
        return {wanted[0]: (expected(ids, mask) + [wrong, 0, 0]).astype(np.float32)}

    def loaded(self) -> dict[str, frozenset[int]]:
        return self.ready

    def unload_wholly(self, model: str) -> None:
        self.watch()

    def unload(self, model: str) -> None:
        self.watch()


@dataclasses.dataclass(frozen=True)
class Known:
    """Whether the workers know of what waits for them."""

    all_know: Callable[[], bool]

    def now(self) -> float:
        return 0.0

    def left_s(self, since: float) -> float:
        return since if self.all_know() else since + 30.0


class Machine:
    """A disk that is photographed at every step, and the controller's steps on it."""

    def __init__(self, folder: Path, accepts: Callable[[int], bool]) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.photographs: list[Path] = []
        self.repository = Repository(self.disk / "models")
        self.state = StateFile(self.disk / "state.json")
        self.plane = ListedEndpoints()
        self.triton = FakeTriton(self.photograph, accepts)
        self.proofs = Proofs(self.disk / "proofs.json")
        self.prover = Prover(self.triton, self.repository, self.proofs)  # type: ignore[arg-type]
        self.prover.on(MACHINE)
        self.steps = Deployment(
            self.plane,
            self.triton,  # type: ignore[arg-type]
            self.repository,
            self.prover,
            Trust({}, self.repository),
            self.commit,
            30.0,
            notices=Known(lambda: True),
            is_wanted=lambda served: self.plane.served["m"] == served,
            begins=lambda model, fingerprint: None,
            alone=lambda model: contextlib.nullcontext(self.state.records().get(model)),
        )

    def photograph(self) -> None:
        copy = self.folder / f"photograph{len(self.photographs)}"
        shutil.copytree(self.disk, copy, symlinks=True)
        self.photographs.append(copy)

    def commit(self, model: str, record: ModelRecord | None) -> None:
        self.photograph()
        self.state.commit(model, record)
        self.photograph()

    def prepare(self, source: Path, code: str, **options: Any) -> None:
        self.plane.add("m", source, code, **options)
        served, record = self.plane.served["m"], self.state.records().get("m")
        self.steps.take(served, record, self.steps.fetch(served, record))


def recovered(disk: Path) -> ModelRecord | None:
    """What the next start makes of a disk; checks that it is whole."""
    repository, state = Repository(disk / "models"), StateFile(disk / "state.json")
    nothing: Any = None
    steps = Deployment(
        *(nothing, nothing, repository, nothing, nothing, state.commit, 30.0),
        notices=nothing,
        is_wanted=nothing,
        begins=nothing,
        alone=nothing,
    )
    record = state.records().get("m")
    if record is None:
        return None
    steps.restore(record)
    folder = disk / "models" / "m"
    assert (folder / "config.pbtxt").read_text() == record.served_config
    numbers = {path.name for path in folder.iterdir()} - {"config.pbtxt"}
    assert numbers == {str(number) for number in record.numbers}
    for version in record.versions:
        assert (folder / str(version.number) / "model.onnx").stat().st_size > 100
    tokens = {path.name for path in (disk / "models" / ".versions" / "m").iterdir()}
    assert tokens == {version.token for version in record.versions}
    return record


def service_on(disk: Path) -> Service:
    """The next start, before it has asked anybody anything."""
    repository, state = Repository(disk / "models"), StateFile(disk / "state.json")
    none: Any = None
    settings = ControllerSettings(1.0, 1.0)
    return Service(settings, none, none, repository, state, none, none, none)


def test_a_crash_at_any_moment_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda version: version != 303)
    machine.prepare(write_bundle(tmp_path / "a", 101), preprocess_of(101))
    machine.prepare(write_bundle(tmp_path / "b", 202, scale=2.0), preprocess_of(202))
    with pytest.raises(LoadFailed):
        machine.prepare(write_bundle(tmp_path / "c", 303), preprocess_of(303))
    record = machine.state.records()["m"]
    assert [version.number for version in record.versions] == [202, 101]
    machine.steps.retire(record, now=1e12)
    machine.steps.remove("m")
    seen = [recovered(photograph) for photograph in machine.photographs]
    numbers = [record and record.current.number for record in seen]
    assert numbers == sorted(numbers[:-1], key=lambda n: (n is not None, n or 0)) + [None]
    assert set(numbers) == {None, 101, 202}
    assert not (machine.disk / "models" / "m").exists()


@pytest.mark.parametrize(
    ("meanwhile", "slept_s", "served"),
    [
        (None, 150, 202),
        ("lost", 12, 202),
        ("other", 12, 101),
        ("late", 150, 202),
        ("restarted", 20, 202),
    ],
)
def test_a_version_that_must_come_alone_waits_until_the_workers_know_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    meanwhile: str | None,
    slept_s: float,
    served: int,
) -> None:
    """They ask for the old one until then; others are prepared meanwhile."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        turns = machine.steps._at_work
        assert turns.acquire(blocking=False)
        assert turns.acquire(blocking=False)
        turns.release(2)
        assert machine.state.records()["m"].current.number == 101
        if len(slept) == 12 and meanwhile == "lost":
            machine.triton.ready = {}
        if len(slept) == 12 and meanwhile == "other":
            machine.plane.add("m", first, preprocess_of(101))

    def loaded() -> dict[str, frozenset[int]]:
        if len(slept) == 12 and meanwhile == "late":
            raise TritonAway("it does not answer")
        if 12 <= len(slept) < 20 and meanwhile == "restarted":
            machine.triton.ready = {}
            raise TritonAway("it does not answer")
        return machine.triton.ready

    machine = Machine(tmp_path, lambda version: True)
    monkeypatch.setattr(machine.triton, "loaded", loaded)
    machine.steps = dataclasses.replace(
        machine.steps, notices=Known(lambda: len(slept) == 150), sleep=sleep
    )
    first = write_bundle(tmp_path / "a", 101)
    machine.prepare(first, preprocess_of(101))
    machine.triton.ready = {"m": frozenset({101})}
    assert slept == []
    caplog.set_level("INFO")
    alone = write_bundle(tmp_path / "b", 202, scale=2.0, batch=0)
    # Not to be batched, while the one before is.
    fields = dataclasses.replace(FIELDS, auxiliary=None)
    fault = pytest.raises(EngineError, match="another one was asked for")
    with fault if meanwhile == "other" else contextlib.nullcontext():
        machine.prepare(alone, preprocess_of(202), fields=fields)
    assert sum(slept) == slept_s
    told = [line for line in caplog.messages if "waits until every worker can know" in line]
    assert len(told) == 1
    assert "30 s in which the control plane answers" in told[0]
    assert [version.number for version in machine.state.records()["m"].versions] == [served]
    assert recovered(machine.disk) is not None


def test_a_crash_in_the_middle_of_a_proof_leaves_nothing_of_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_bundle(tmp_path / "a", 101, parity=True), preprocess_of(101))
    machine.triton.wrong = {202}
    with pytest.raises(ProofFailed, match="at every length, any batch.*convert it again"):
        machine.prepare(write_bundle(tmp_path / "b", 202, parity=True), preprocess_of(202))
    assert machine.state.records()["m"].current.number == 101
    asked = [disk for disk in machine.photographs if (disk / "models" / PROOF_MODEL).is_dir()]
    assert len(asked) > 2 * CALLS
    for disk in machine.photographs:
        service_on(disk).recover()
        assert not (disk / "models" / PROOF_MODEL).exists()
        # Nothing that is half of one and half of the other.
        record = recovered(disk)
        assert record is None or record.current.number == 101


def with_grace_over(machine: Machine) -> ModelRecord:
    """202 serves, and the time of 101 beside it was over while nobody could retire it."""
    machine.prepare(write_bundle(machine.folder / "a", 101), preprocess_of(101))
    machine.prepare(write_bundle(machine.folder / "b", 202, scale=2.0), preprocess_of(202))
    record = machine.state.records()["m"]
    current, old = record.versions
    assert record.numbers == {101, 202}
    record = dataclasses.replace(
        record, versions=(current, dataclasses.replace(old, drop_at=current.since))
    )
    machine.state.commit("m", record)
    return record


def versions_on(disk: Path) -> set[str]:
    """What Triton loads of the model."""
    return {path.name for path in (disk / "models" / "m").iterdir() if path.is_symlink()}


def test_a_version_whose_grace_is_over_is_not_loaded_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda version: True)
    record = with_grace_over(machine)
    before = len(machine.photographs)
    machine.steps.reload(record)
    assert [versions_on(disk) for disk in machine.photographs[before:]] == [{"202"}] * 4
    after = recovered(machine.disk)
    assert after is not None
    assert after.numbers == {202}


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_files_of_another_owner_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may write to a volume, but only the owner of a file may set its time."""
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_bundle(tmp_path / "a", 101), preprocess_of(101))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    machine.triton.ready, machine.triton.watch = {}, lambda: None
    monkeypatch.setattr(os, "utime", refuse)
    machine.steps.reload(machine.state.records()["m"])
    assert machine.triton.ready == {"m": frozenset({101})}


def test_a_proof_leaves_the_times_of_what_serves_as_they_are(tmp_path: Path) -> None:
    """Triton would load a version again whose time has grown."""
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_bundle(tmp_path / "a", 101, parity=True), preprocess_of(101))
    current = machine.state.records()["m"].current
    files = machine.repository.files("m", current.token)
    os.utime(files, (1.0, 1.0))
    machine.prover.on(dataclasses.replace(MACHINE, features="others"))
    machine.prover.require("m", current)
    assert machine.prover.passed(current)
    assert files.stat().st_mtime == 1.0


def test_what_triton_has_lost_comes_back_as_it_lies_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, lambda version: True)
    record = with_grace_over(machine)
    machine.triton.ready = {}
    with monkeypatch.context() as patch:
        patch.setattr(REPLACE, no_room)
        machine.steps.reload(record)
    assert machine.triton.ready == {"m": frozenset({202})}
    assert recovered(machine.disk) == record
    # What is not proven on this machine is not put back for want of room.
    old = dataclasses.replace(record.versions[1], subject="a bundle with a parity set")
    record = dataclasses.replace(record, versions=(record.current, old))
    machine.triton.ready = {}
    with monkeypatch.context() as patch:
        patch.setattr(REPLACE, no_room)
        with pytest.raises(OSError, match="No space left"):
            machine.steps.reload(record)
    assert machine.triton.ready == {}


def test_a_version_whose_grace_is_over_does_not_serve_on_beside_other_files(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, lambda version: True)
    with_grace_over(machine)
    before = len(machine.photographs)
    machine.prepare(write_bundle(tmp_path / "c", 202, scale=3.0), preprocess_of(202))
    assert versions_on(machine.photographs[before]) == {"202"}
    assert machine.state.records()["m"].numbers == {202}


def test_a_first_load_that_ends_its_container_leaves_no_copy(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_onnx(tmp_path / "a"), "")
    first = [disk for disk in machine.photographs if not StateFile(disk / "state.json").records()]
    assert first
    for disk in first:
        service_on(disk).recover()
        repository = Repository(disk / "models")
        # It is still known by name, to be unloaded where nobody asks for it any more.
        assert repository.models() == {"m"}
        assert list(repository.store("m").iterdir()) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_full_disk_keeps_no_copy_of_what_no_record_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """Also where there is no room for the configuration that was."""
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_bundle(tmp_path / "a", 101), preprocess_of(101))
    good = machine.state.records()["m"]

    def commit(model: str, record: ModelRecord | None) -> None:
        monkeypatch.setattr(REPLACE, no_room)
        machine.photograph()
        no_room()

    machine.steps = dataclasses.replace(machine.steps, commit=commit)
    with pytest.raises(OSError, match="No space left"):
        machine.prepare(write_bundle(tmp_path / "b", 202, scale=2.0), preprocess_of(202))
    disk = machine.photographs[-1] if restarts else machine.disk
    if restarts:
        assert len(list(Repository(disk / "models").store("m").iterdir())) == 2
        service_on(disk).recover()
    store = Repository(disk / "models").store("m")
    assert [path.name for path in store.iterdir()] == [good.current.token]
    monkeypatch.undo()
    assert recovered(disk) == good


def test_a_proof_is_run_once_for_each_bundle_and_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda version: True)
    source = write_bundle(tmp_path / "a", 101, parity=True)

    def asked() -> int:
        before = len(machine.photographs)
        machine.prepare(source, preprocess_of(101))
        return len(machine.photographs) - before

    first, again = asked(), asked()
    assert first > again + CALLS
    machine.prover.on(dataclasses.replace(MACHINE, features="others"))
    assert asked() > again + CALLS
    # What was passed is known to the next start, too.
    triton: Any = machine.triton
    machine.prover = Prover(triton, machine.repository, Proofs(machine.disk / "proofs.json"))
    machine.prover.on(MACHINE)
    machine.steps = dataclasses.replace(machine.steps, prover=machine.prover)
    assert asked() == again


def test_the_same_version_number_goes_back_to_the_old_files(tmp_path: Path) -> None:
    good = True
    machine = Machine(tmp_path, lambda version: good)
    machine.prepare(write_onnx(tmp_path / "a"), "")
    before = (machine.disk / "models" / "m" / "1" / "model.onnx").read_bytes()
    good = False
    with pytest.raises(LoadFailed):
        machine.prepare(write_onnx(tmp_path / "b", scale=9.0), "")
    assert (machine.disk / "models" / "m" / "1" / "model.onnx").read_bytes() == before
    assert recovered(machine.disk) is not None


@pytest.mark.parametrize(
    ("name", "framework", "lands"),
    [
        ("any.onnx", "", "model.onnx"),
        ("any.plan", "", "model.plan"),
        ("engine", "TensorRT", "model.plan"),
        ("weights", "ONNX", "model.onnx"),
        ("weights", "custom", "model.bin"),
    ],
)
def test_a_single_file_lands_under_the_name_that_triton_looks_for(
    tmp_path: Path, name: str, framework: str, lands: str
) -> None:
    repository = Repository(tmp_path / "models")
    source = tmp_path / name
    source.write_bytes(b"x")
    token = repository.stage("m", source, framework)
    assert [path.name for path in repository.files("m", token).iterdir()] == [lands]
    assert source.is_file()
    with pytest.raises(EngineError, match="'gone' is not there"):
        repository.stage("m", tmp_path / "gone", "")


@pytest.mark.parametrize("has_link", [False, True])
def test_what_is_ours_is_moved_and_a_folder_with_links_copied(
    tmp_path: Path, has_link: bool
) -> None:
    repository, source = Repository(tmp_path / "models"), tmp_path / "source"
    (source / BUNDLE_FOLDER).mkdir(parents=True)
    (source / "folder").mkdir()
    (source / "folder" / "weights").write_bytes(b"x")
    if has_link:
        (tmp_path / "outside").write_bytes(b"y")
        (source / "link").symlink_to(tmp_path / "outside")
    inode = (source / "folder" / "weights").stat().st_ino
    files = repository.files("m", repository.stage("m", source, "", ours=True))
    assert (files / "folder" / "weights").read_bytes() == b"x"
    assert ((files / "folder" / "weights").stat().st_ino == inode) is not has_link
    assert not (files / BUNDLE_FOLDER).exists()
    assert source.exists() is has_link
    assert not (files / "link").is_symlink()
    single = tmp_path / "model.plan"
    single.write_bytes(b"x")
    assert repository.has_files("m", repository.stage("m", single, "", ours=True))
    assert not single.exists()


def test_a_pipe_in_a_model_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """An archive may hold one, and nobody would ever write into it."""
    repository, source = Repository(tmp_path / "models"), tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "model.onnx")
    with pytest.raises(OSError, match="named pipe"):
        repository.stage("m", source, "", ours=True)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_folder_that_nobody_may_write_to_is_copied(tmp_path: Path) -> None:
    """As an archive gives its top folder; root alone could rename it."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.onnx").write_bytes(b"x")
    (tmp_path / "models").mkdir()
    for path in (source / "model.onnx", source, tmp_path / "models", tmp_path):
        os.chown(path, 65534, 65534)
    source.chmod(0o555)
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from transformer_serving.engine.controller.files.repository import Repository\n"
        "os.setgid(65534)\nos.setuid(65534)\nos.chdir(sys.argv[1])\n"
        "repository = Repository(Path('models'))\n"
        "token = repository.stage('m', Path('source'), '', ours=True)\n"
        "print((repository.files('m', token) / 'model.onnx').read_bytes())\n"
    )
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("b'x'\n", "")


def test_a_users_own_file_in_a_model_folder_stays(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    source = tmp_path / "any.onnx"
    source.write_bytes(b"x")
    repository.install("m", {1: repository.stage("m", source, "")}, "config")
    own = tmp_path / "models" / "m" / "notes.txt"
    own.write_text("mine")
    repository.remove("m")
    assert [path.name for path in own.parent.iterdir()] == ["notes.txt"]
    assert repository.models() == set()


def test_a_staged_copy_stays_until_it_is_released(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    source = tmp_path / "any.onnx"
    source.write_bytes(b"x")
    served, staged, other = (repository.stage("m", source, "") for _ in range(3))
    repository.release(served)
    repository.keep_only("m", [served])
    assert repository.has_files("m", served)
    assert repository.has_files("m", staged)
    # What a record holds is not what was fetched for nothing.
    repository.discard("m", served)
    repository.discard("m", other)
    assert repository.has_files("m", served)
    assert not repository.has_files("m", other)
    repository.release(staged)
    repository.keep_only("m", [served])
    assert not repository.has_files("m", staged)
    with pytest.raises(EngineError, match="'gone' is not there"):
        repository.stage("m", tmp_path / "gone", "")
    assert [path.name for path in repository.store("m").iterdir()] == [served]


def test_a_link_that_a_kill_left_is_no_model_and_goes(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    source = tmp_path / "any.onnx"
    source.write_bytes(b"x")
    token = repository.stage("m", source, "")
    left = repository.store(".1.0a1b2c")
    left.symlink_to(Path("m") / token)
    repository.store(".config.pbtxt.0a1b2c").write_text("half")
    assert repository.models() == {"m"}
    repository.clear_aside()
    assert [path.name for path in left.parent.iterdir()] == ["m"]
    # A link in the place of a model's folder goes too, and not what it points to.
    repository.store("n").symlink_to("m")
    repository.remove("n")
    assert repository.has_files("m", token)
    assert not repository.store("n").is_symlink()


def test_files_that_cannot_be_deleted_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_onnx(tmp_path / "a"), "")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(EngineError, match="the files of 'm' cannot be deleted; delete /"):
            machine.steps.remove("m")
    machine.steps.remove("m")
    assert machine.repository.models() == set()


@pytest.mark.parametrize("text", ["{", "[]", '{"models": 7}'])
def test_an_unreadable_state_file_is_kept_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    state = StateFile(path)
    assert state.records() == {}
    assert state.may_name("m")
    assert (tmp_path / "state.unreadable").read_text() == text


def test_what_only_another_release_knows_of_a_record_costs_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_onnx(tmp_path / "a"), "")
    path = machine.disk / "state.json"
    values = json.loads(path.read_text())
    values["models"]["m"] |= {"later": 1}
    values["models"]["m"]["versions"][0] |= {"later": 2}
    path.write_text(json.dumps(values))
    assert StateFile(path).records() == machine.state.records()
    service_on(machine.disk).recover()
    assert versions_on(machine.disk) == {"1"}


@pytest.mark.parametrize("row", [None, {"versions": []}, {"versions": [{"number": 1}]}])
def test_a_record_that_cannot_be_read_costs_no_other_and_keeps_its_files(
    tmp_path: Path, row: dict[str, Any] | None
) -> None:
    """A record without a version is none: every step takes it that there is one."""
    machine = Machine(tmp_path, lambda version: True)
    machine.prepare(write_onnx(tmp_path / "a"), "")
    record = machine.state.records()["m"]
    machine.state.commit("other", dataclasses.replace(record, model="other"))
    path = machine.disk / "state.json"
    values = json.loads(path.read_text())
    values["models"]["m"] = row
    path.write_text(json.dumps(values))
    state = StateFile(path)
    assert list(state.records()) == ["other"]
    # It stays as it is for a release that can read it, as often as there is a start.
    state.commit("other", None)
    assert json.loads(path.read_text())["models"] == {"m": row}
    service_on(machine.disk).recover()
    repository = Repository(machine.disk / "models")
    assert repository.has_files("m", record.current.token)
    # Nor with a try to take it anew that fails.
    machine.state = state
    machine.triton.accepts = lambda version: False
    with pytest.raises(EngineError):
        machine.prepare(write_onnx(tmp_path / "b"), "")
    assert repository.models() == {"m"}
    assert [path.name for path in repository.store("m").iterdir()] == [record.current.token]
    state.commit("m", record)
    assert StateFile(path).records() == {"m": record}
    assert not StateFile(path).may_name("m")


def test_a_record_that_cannot_be_read_goes_once_nobody_asks_for_its_model(tmp_path: Path) -> None:
    """It has no files that its removal would begin with."""
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"models": {"gone": {"versions": []}, "m": {"versions": []}}}))
    service = service_on(tmp_path)
    plane = ListedEndpoints()
    plane.add("m", write_onnx(tmp_path / "a"), "")
    service._sync.wanted = dict(plane.served)
    service._forget_what_is_over()
    service._state.publish({"ready": 1})
    assert not service._state.may_name("gone")
    assert list(json.loads(path.read_text())["models"]) == ["m"]


def test_a_status_that_could_not_be_written_is_written_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    one = StateFile(path)
    one.publish({"ready": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("transformer_serving.engine.controller.state.replace_file", full)
        with pytest.raises(OSError, match="No space left"):
            one.publish({"ready": 2})
    one.publish({"ready": 2})
    assert json.loads(path.read_text())["ready"] == 2
