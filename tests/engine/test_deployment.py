"""What serves beside a new version, for how long, and what a failed step leaves behind."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.engine.serving import FIELDS, preprocess_of, write_bundle
from tests.engine.test_repository import MACHINE, Machine, versions_on
from transformer_serving.engine.controller.control_plane.verification import Refused
from transformer_serving.engine.controller.records import ModelRecord
from transformer_serving.engine.controller.triton.server import LoadFailed


class Triton:
    """What the machine's Triton accepts: all, but for the next load of a `refused` version.

    `blamed` are the versions that it says are at fault.
    """

    def __init__(self) -> None:
        self.refused: int | None = None
        self.blamed: frozenset[int] = frozenset()

    def accepts(self, version: int) -> bool:
        if version != self.refused:
            return True
        self.refused = None
        raise LoadFailed("bad", self.blamed)


@pytest.fixture
def triton() -> Triton:
    return Triton()


@pytest.fixture
def machine(tmp_path: Path, triton: Triton) -> Machine:
    """Its controller waits for no worker."""
    made = Machine(tmp_path, triton.accepts)
    made.steps = dataclasses.replace(made.steps, sleep=lambda _: None)
    return made


def taken(machine: Machine, number: int, *, parity: bool = False, scale: float = 1.0) -> Path:
    source = machine.folder / f"{number} {scale}"
    write_bundle(source, number, parity=parity, scale=scale)
    machine.prepare(source / "model", preprocess_of(number))
    return source / "model"


def record_of(machine: Machine) -> ModelRecord:
    return machine.state.records()["m"]


def stored(machine: Machine) -> set[str]:
    """The copies of the model's files, by their tokens."""
    return {path.name for path in machine.repository.store("m").iterdir()}


def test_what_triton_has_lost_is_not_loaded_beside_the_new_one(machine: Machine) -> None:
    taken(machine, 101)
    machine.triton.ready = {}
    before = len(machine.photographs)
    taken(machine, 202)
    assert all(versions_on(disk) == {"202"} for disk in machine.photographs[before:])
    assert record_of(machine).numbers == {202}


def test_one_that_is_unproven_on_this_machine_does_not_serve_beside_the_new_one(
    machine: Machine,
) -> None:
    taken(machine, 101, parity=True)
    machine.prover.on(dataclasses.replace(MACHINE, features="others"))
    taken(machine, 202, parity=True)
    assert record_of(machine).numbers == {202}
    taken(machine, 303, parity=True)
    assert record_of(machine).numbers == {303, 202}


def test_a_grace_ends_when_it_was_to_end_however_often_others_come(machine: Machine) -> None:
    taken(machine, 101)
    taken(machine, 202)
    ends = record_of(machine).versions[1].drop_at
    assert ends is not None
    taken(machine, 202, scale=2.0)
    current, old = record_of(machine).versions
    assert (current.number, current.drop_at) == (202, None)
    assert (old.number, old.drop_at) == (101, ends)


@pytest.mark.parametrize("blamed", [{202}, {101, 202}, set()], ids=["new", "both", "none"])
def test_a_new_one_that_cannot_be_loaded_is_not_tried_alone(
    machine: Machine, triton: Triton, blamed: set[int]
) -> None:
    """Only where the old one alone was at fault: else the old one would go for nothing."""
    taken(machine, 101)
    before = record_of(machine)
    triton.refused, triton.blamed = 202, frozenset(blamed)
    with pytest.raises(LoadFailed):
        taken(machine, 202)
    assert record_of(machine) == before
    assert versions_on(machine.disk) == {"101"}
    # Nothing holds the copy of what failed any more.
    assert stored(machine) == {before.current.token}


def test_a_new_one_beside_which_the_old_one_cannot_be_loaded_comes_alone(
    machine: Machine, triton: Triton
) -> None:
    taken(machine, 101)
    triton.refused, triton.blamed = 202, frozenset({101})
    taken(machine, 202)
    assert record_of(machine).numbers == {202}


def test_a_refused_bundle_leaves_no_copy(machine: Machine) -> None:
    taken(machine, 101)
    source = write_bundle(machine.folder / "other", 202)
    with pytest.raises(Refused, match="deploy them together"):
        machine.prepare(source, preprocess_of(303))
    assert stored(machine) == {record_of(machine).current.token}


def test_the_same_content_is_not_fetched_again(machine: Machine) -> None:
    source = taken(machine, 101)
    before = record_of(machine)
    shutil.rmtree(source)
    machine.prepare(source, preprocess_of(101), fields=dataclasses.replace(FIELDS, auxiliary=None))
    after = record_of(machine)
    assert after.fingerprint != before.fingerprint
    assert after.current.token == before.current.token


def test_the_same_files_under_another_name_have_served_since_they_came(machine: Machine) -> None:
    source = taken(machine, 101)
    before = record_of(machine)
    loads = len(machine.photographs)
    again = shutil.copytree(source, machine.folder / "again")
    machine.prepare(again, preprocess_of(101))
    after = record_of(machine)
    assert after.fingerprint != before.fingerprint
    assert after.versions == (
        dataclasses.replace(before.current, content=after.current.content, model_id=str(again)),
    )
    # Both are of the state that was written: Triton was asked for nothing.
    assert len(machine.photographs) == loads + 2


@pytest.mark.parametrize("by", ["rollback", "another upload", "a tagged model"])
def test_the_bundle_before_is_there_again_without_a_load(machine: Machine, by: str) -> None:
    """Within its grace it serves on, and workers have gone back to it by then: were it fetched and
    loaded anew, what goes wrong with that would end in its grace's end with it."""
    source = taken(machine, 101)
    old = record_of(machine).current
    taken(machine, 202)
    new, before = record_of(machine), len(machine.photographs)
    again = source
    if by == "another upload":
        again = shutil.copytree(source, machine.folder / "again")
    elif by == "a tagged model":
        shutil.rmtree(source)
    machine.plane.add("m", again, preprocess_of(101))
    if by == "a tagged model":
        tag(machine)
    else:
        served, record = machine.plane.served["m"], record_of(machine)
        machine.steps.take(served, record, machine.steps.fetch(served, record))
    after = record_of(machine)
    assert len(machine.photographs) == before + 2
    assert after.fingerprint == machine.plane.served["m"].fingerprint
    assert after.served_config == new.served_config
    current, beside = after.versions
    assert (current.number, current.token, current.drop_at) == (101, old.token, None)
    assert current.since > new.current.since
    assert (beside.number, beside.token) == (202, new.current.token)
    assert beside.drop_at is not None
    assert stored(machine) == {old.token, new.current.token}


def test_the_bundle_before_is_loaded_again_where_triton_has_lost_it(machine: Machine) -> None:
    source = taken(machine, 101)
    taken(machine, 202)
    machine.triton.ready = {"m": frozenset({202})}
    before = len(machine.photographs)
    machine.prepare(source, preprocess_of(101))
    assert record_of(machine).current.number == 101
    assert len(machine.photographs) > before + 2
    assert machine.triton.ready["m"] == {101, 202}


def tag(machine: Machine) -> None:
    """As `deploy` and people do with a model of the registry."""
    served = machine.plane.served["m"]
    machine.plane.served["m"] = tagged = dataclasses.replace(
        served, fingerprint=f"{served.fingerprint} tagged", content=f"{served.content} tagged"
    )
    record = record_of(machine)
    machine.steps.take(tagged, record, machine.steps.fetch(tagged, record))


def test_a_bundle_whose_model_was_tagged_is_not_fetched_again(machine: Machine) -> None:
    source = taken(machine, 101)
    before, loads = record_of(machine), len(machine.photographs)
    shutil.rmtree(source)
    tag(machine)
    after = record_of(machine)
    assert after.fingerprint != before.fingerprint
    assert after.versions == before.versions
    assert len(machine.photographs) == loads + 2


def test_a_tagged_bundle_of_which_files_are_damaged_here_is_fetched(machine: Machine) -> None:
    source = taken(machine, 101)
    token = record_of(machine).current.token
    damaged = machine.repository.files("m", token) / "model.onnx"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    tag(machine)
    assert record_of(machine).current.token != token
    served = machine.repository.files("m", record_of(machine).current.token) / "model.onnx"
    assert served.read_bytes() == (source / "model.onnx").read_bytes()


def test_a_model_that_is_uploaded_before_its_preprocess_is_fetched_once_that_comes(
    machine: Machine,
) -> None:
    """Until then what lies here is what the one of before states."""
    taken(machine, 101)
    machine.plane.sources["m"] = write_bundle(machine.folder / "b", 202, scale=2.0)
    tag(machine)
    assert record_of(machine).current.number == 101
    served = machine.plane.served["m"]
    machine.plane.served["m"] = dataclasses.replace(served, fingerprint="with its preprocess.py")
    machine.plane.code["m"] = preprocess_of(202)
    served, record = machine.plane.served["m"], record_of(machine)
    machine.steps.take(served, record, machine.steps.fetch(served, record))
    assert record_of(machine).current.number == 202


def test_a_bundle_whose_model_the_registry_has_no_longer_is_told(machine: Machine) -> None:
    """It serves on, but nobody else could fetch it."""
    taken(machine, 101)
    served, record = machine.plane.served["m"], record_of(machine)
    served = dataclasses.replace(served, fingerprint="without its model", content="")
    machine.plane.error = Refused("not registered")
    with pytest.raises(Refused, match="not registered"):
        machine.steps.fetch(served, record)


@pytest.mark.parametrize("code", ["", "class Preprocess: ...\n"])
def test_what_states_no_bundle_is_fetched_where_its_model_looks_new(
    machine: Machine, code: str
) -> None:
    """Its bytes may be others: only their time in the registry tells."""
    source = write_bundle(machine.folder / "a", 101) / ("" if code else "model.onnx")
    machine.prepare(source, code)
    other = write_bundle(machine.folder / "b", 101, scale=2.0) / ("" if code else "model.onnx")
    machine.plane.sources["m"] = other
    tag(machine)
    [served] = (machine.disk / "models" / "m").glob("1/model.onnx")
    assert served.read_bytes() == (machine.folder / "b" / "model" / "model.onnx").read_bytes()


def test_a_retirement_that_triton_refuses_leaves_the_files_as_they_were(
    machine: Machine, triton: Triton
) -> None:
    taken(machine, 101)
    taken(machine, 202)
    before = record_of(machine)
    triton.refused, triton.blamed = 202, frozenset({202})
    with pytest.raises(LoadFailed):
        machine.steps.retire(before, now=1e12)
    assert record_of(machine) == before
    assert versions_on(machine.disk) == {"101", "202"}
    config = machine.disk / "models" / "m" / "config.pbtxt"
    assert config.read_text() == before.served_config
