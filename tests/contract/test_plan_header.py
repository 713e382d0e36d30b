from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.contract.plans import PLANS, Plan, build, container, oldest
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.plan_header import READ_LIMIT, PlanHeader, read_plan_header


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.plan"


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ContractError) as caught:
        read_plan_header(path)
    assert "'model.plan'" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.version)
def test_every_observed_layout_is_read(path: Path, plan: Plan) -> None:
    path.write_bytes(build(plan))
    header = read_plan_header(path)
    assert header.form == ("ftrt" if plan.new else "ptrt")
    assert header.tensorrt == plan.version
    assert header.tensorrt_observed is not plan.new
    assert header.serialization == plan.serialization
    assert header.compute_capability == plan.capability
    assert header.version_compatible is (None if plan.new else False)
    assert header.file_size == path.stat().st_size


def test_sections_are_named(path: Path) -> None:
    path.write_bytes(build(PLANS[2]))
    assert read_plan_header(path).sections == ("ENGN", "WGHT")
    path.write_bytes(build(PLANS[1]))
    assert read_plan_header(path).sections == ("ENGN",)


def test_a_plan_of_tensorrt_7_states_its_version_in_the_records(path: Path) -> None:
    path.write_bytes(oldest())
    header = read_plan_header(path)
    assert (header.form, header.tensorrt, header.serialization) == ("ptrt", "7.1.3.4", 0x61)
    assert header.compute_capability is None


def test_an_unknown_layout_states_no_capability(path: Path) -> None:
    # 9.9 is no compute capability: the records mean something else in that release.
    path.write_bytes(build(Plan("10.6.0.26", 239, "9.9")))
    assert read_plan_header(path).compute_capability is None
    path.write_bytes(container("11.1.0.1", b"another archive", 10))
    header = read_plan_header(path)
    assert (header.tensorrt, header.serialization) == ("11.1.0.1", None)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.version)
@pytest.mark.parametrize("kept", [5, 23, 27, 31, 40, 200, -1])
def test_a_file_cut_short_is_called_that(path: Path, plan: Plan, kept: int) -> None:
    assert "is cut short" in refusal(path, build(plan)[:kept])


def test_what_is_no_plan_says_what_it_is(path: Path) -> None:
    onnx = b"\x08\x0a\x12\x07pytorch\x3a\x02\x0a\x00"
    assert "is an ONNX model" in refusal(path, onnx)
    assert "is empty" in refusal(path, b"")
    assert "starts with neither ftrt nor ptrt" in refusal(path, b"PK\x03\x04 a zip")
    good = build(PLANS[2])
    assert "plan container version 7" in refusal(path, good[:4] + struct.pack("<I", 7) + good[8:])
    assert "something was added" in refusal(path, good + b"x")
    assert "states TensorRT version 0" in refusal(path, good[:24] + b"\0" + good[25:])
    assert "states 0 sections" in refusal(path, good[:8] + bytes(8) + good[16:])


def test_never_more_than_64_kib_are_read_of_a_gigabyte(path: Path) -> None:
    path.write_bytes(build(PLANS[3], weights=0))
    engine = path.read_bytes()[80:]
    size = 1 << 30
    head = b"ftrt" + struct.pack("<IQQ", 0, 2, size) + bytes([10, 15, 1, 29]) + b"rtrt"
    # The engine section at the very end, far beyond the first 64 KiB.
    sections = b"THGW" + struct.pack("<4xQQ", 80, size - 80 - len(engine))
    sections += b"NGNE" + struct.pack("<4xQQ", size - len(engine), len(engine))
    with path.open("wb") as file:
        file.write(head + sections)
        file.seek(size - len(engine))
        file.write(engine)
    header, read = counted(path)
    assert (header.compute_capability, header.serialization) == ("8.6", 240)
    assert read <= READ_LIMIT
    with path.open("r+b") as file:
        file.write(b"ptrt" + bytes(20))
    _, read = counted(path)
    assert read <= READ_LIMIT


def counted(path: Path) -> tuple[PlanHeader, int]:
    """The header and how many bytes the kernel handed out for it."""
    looking = bytes_read()
    before = bytes_read()
    header = read_plan_header(path)
    return header, bytes_read() - before - (before - looking)


def bytes_read() -> int:
    """What this process has read so far; each look itself adds to it."""
    with open("/proc/self/io", "rb", buffering=0) as file:
        text = os.read(file.fileno(), 4096).decode()
    return int(text.split("rchar: ")[1].split()[0])


@settings(max_examples=200)
@given(
    plan=st.sampled_from(PLANS),
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=9)), max_size=4),
    end=st.integers(0, 700),
)
def test_no_damage_raises_anything_but_a_contract_error(
    tmp_path_factory: pytest.TempPathFactory,
    plan: Plan,
    edits: list[tuple[int, bytes]],
    end: int,
) -> None:
    content = bytearray(build(plan, weights=64))
    for place, bytes_ in edits:
        content[place : place + len(bytes_)] = bytes_
    check_damaged(tmp_path_factory.getbasetemp() / "fuzz.plan", bytes(content[:end]))


@settings(max_examples=200)
@given(tag=st.sampled_from([b"ftrt", b"ptrt", b""]), rest=st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_contract_error(
    tmp_path_factory: pytest.TempPathFactory, tag: bytes, rest: bytes
) -> None:
    check_damaged(tmp_path_factory.getbasetemp() / "fuzz.plan", tag + rest)


def check_damaged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        header = read_plan_header(path)
    except ContractError:
        return
    assert header.file_size == len(content)
    assert header.form in ("ftrt", "ptrt")
