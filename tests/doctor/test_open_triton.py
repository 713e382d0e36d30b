"""A Triton that somebody else started is told as open, for what it is open for."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doctor.conftest import Scene
from tests.doctor.test_faults import having
from tests.engine.triton_server import free_addresses, wait_until
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.triton import check_triton
from transformer_serving.desk.doctor.triton_ports import check_chunks
from transformer_serving.desk.local.health import probe
from transformer_serving.desk.local.open_triton import (
    ANSWERS,
    LOADS,
    OpenTriton,
    open_tritons,
    openness,
)
from transformer_serving.engine.backend_directory import assemble, pytriton_tritonserver
from transformer_serving.engine.triton_process import (
    triton_command,
    triton_environment,
)


@contextlib.contextmanager
def somebodys(folder: Path, *, without: str, more: tuple[str, ...] = ()) -> Iterator[str]:
    """The address of a Triton whose command lacks one of our options."""
    addresses = free_addresses()
    server = pytriton_tritonserver()
    (folder / "models").mkdir(parents=True)
    command = triton_command(
        server / "bin" / "tritonserver",
        repository=folder / "models",
        backend_directory=assemble(folder / "backends", pytriton=server),
        addresses=addresses,
        extra=("--exit-timeout-secs=1", *more),
    )
    kept = [word for word in command if not without or not word.startswith(without)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(kept, env=triton_environment(), stdout=log, stderr=log)
    try:
        wait_until(lambda: probe(addresses.http, "/v2/health/live") == "ok", 60)
        yield addresses.http
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_one_that_takes_models(tmp_path: Path, scene: Scene) -> None:
    with somebodys(tmp_path / "open", without="--http-restricted-api") as address:
        assert openness(address) == LOADS
        named = {"TRANSFORMER_SERVING_TRITON_HTTP": f"http://{address}/, 127.0.0.1:9"}
        told = [OpenTriton(address, LOADS)]
        assert list(open_tritons(named, usual="127.0.0.1:9")) == told
        assert list(open_tritons({}, usual=address)) == told
        subject = having(scene, TRANSFORMER_SERVING_TRITON_HTTP=address)
        # And that a request ends one of this release.
        _, finding = (row for row in check_triton(subject) if row.status == "warning")
        assert f"the Triton at {address} is open: whoever reaches it can load" in finding.why
        assert "--http-restricted-api" in finding.fix
        beside = dataclasses.replace(scene.subject, usual_triton=address)
        assert [row.status for row in check_triton(beside)].count("warning") == 2


@pytest.mark.slow
def test_one_that_takes_none(tmp_path: Path) -> None:
    mode = ("--model-control-mode=none",)
    with somebodys(tmp_path / "none", without="--http-restricted-api", more=mode) as address:
        assert openness(address) == ANSWERS


@pytest.mark.slow
def test_ours_is_closed(tmp_path: Path) -> None:
    with somebodys(tmp_path / "closed", without="") as address:
        assert openness(address) is None


@pytest.mark.parametrize(
    ("address", "version", "is_told"),
    [
        ("127.0.0.1:9", "2.59.0", True),
        ("127.0.0.1:9", "2.59.1", False),
        ("127.0.0.1:9", "2.60.0", False),
        ("unix:/run/triton:8000", "2.51.0", False),
    ],
)
def test_one_that_a_request_ends(
    scene: Scene, address: str, version: str, *, is_told: bool
) -> None:
    found = list(check_chunks(scene.subject, address, version))
    assert [row.status for row in found] == ["warning"] * is_told
    assert all(f"{address} can end it by one request" in row.why for row in found)
    assert all(row.fix.endswith(command_line("versions use RELEASE")) for row in found)


def test_the_stacks_own_is_closed_by_its_next_start(scene: Scene) -> None:
    assert scene.subject.record is not None
    record = dataclasses.replace(scene.subject.record, open_inference=8000)
    own = dataclasses.replace(scene.subject, record=record)
    (found,) = check_chunks(own, record.triton.http, "2.51.0")
    assert found.fix.endswith("then 'up' without --open-inference")


@pytest.mark.parametrize("address", ["127.0.0.1:9", "unix:/nowhere", "nonsense", ""])
def test_where_there_is_none(address: str) -> None:
    assert openness(address) is None
