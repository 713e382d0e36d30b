"""A Triton that was killed while its model's process could not notice."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.engine import triton_server
from tests.engine.serving import FIELDS, Serving, preprocess_of, serving, write_bundle
from tests.engine.test_service import answers
from tests.engine.text_models import write_onnx
from tests.engine.triton_server import TritonServer, running_triton, shared_memory, wait_until
from tests.free_ports import free_ports
from transformer_serving.engine.orphans import STUB, end_orphans, model_of, server_of
from transformer_serving.engine.shared_memory import area_prefix, close_areas
from transformer_serving.engine.triton_process import LOOPBACK, TritonAddresses

BOUND_S = 60


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Serving]:
    with running_triton(tmp_path / "t") as server, serving(server, tmp_path) as running:
        yield running


def stubs(server: TritonServer) -> list[psutil.Process]:
    assert server.process is not None
    family = psutil.Process(server.process.pid).children(recursive=True)
    return [process for process in family if process.name().startswith(STUB)]


def listens(address: tuple[str, int] | str) -> bool:
    """Triton opens HTTP after gRPC."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as probe:
        return probe.connect_ex(address) == 0


def test_a_server_whose_start_fails_does_not_outlive_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_in_time(*_: object) -> None:
        raise AssertionError("not within 120 s")

    monkeypatch.setattr(triton_server, "wait_until", not_in_time)
    with pytest.raises(AssertionError, match="120 s"), running_triton(tmp_path):
        pytest.fail("it has started")
    assert server_of(tmp_path / "models") is None


@pytest.mark.parametrize("relative", [False, True], ids=["whole", "from where it runs"])
def test_a_process_is_known_by_what_it_names(tmp_path: Path, relative: bool) -> None:
    """A version is a link out of its model's folder, as the controller makes it."""
    run, repository = tmp_path / "a blank" / "run", tmp_path / "a blank" / "models"
    program = repository / ".files" / "a" / "t" / "wait.py"
    for folder in (run, program.parent, repository / "a"):
        folder.mkdir(parents=True)
    program.write_text("import time; time.sleep(60)")
    (repository / "a" / "7").symlink_to("../.files/a/t")
    named = Path("../models") if relative else repository
    file = str(named / "a" / "7" / "wait.py")
    command = [sys.executable, file, f"--model-repository={named}"]
    with subprocess.Popen(command, cwd=run) as started:
        try:
            process = psutil.Process(started.pid)
            # Its words are there a moment after its program is.
            wait_until(process.cmdline, 20)
            assert model_of(process, repository) == "a"
            assert model_of(process, tmp_path / "another") == ""
            assert server_of(repository) == process
            assert server_of(tmp_path / "another") is None
        finally:
            started.kill()


def test_a_connection_ends_with_its_server(one: Serving, tmp_path: Path) -> None:
    address = ("127.0.0.1", one.server.addresses.http_port)
    wait_until(lambda: listens(address), BOUND_S)
    with socket.create_connection(address, timeout=BOUND_S) as kept:
        kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: t\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        one.control_plane.add("a", write_bundle(tmp_path / "a", 101), preprocess_of(101))
        one.wait("a", BOUND_S, ready=True)
        (stub,) = stubs(one.server)
        assert stub.net_connections("inet") == []
        stub.suspend()
        try:
            one.server.kill()
            with contextlib.suppress(ConnectionResetError):
                assert kept.recv(4096) == b""
        finally:
            stub.kill()


def test_a_connection_to_a_socket_of_the_stack_ends_with_its_server(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as short:
        (port,) = free_ports(1)
        addresses = TritonAddresses(
            host=f"unix:{short}/triton", metrics_host=LOOPBACK, metrics_port=port
        )
        path = addresses.http.removeprefix("unix:")
        with (
            running_triton(tmp_path / "t", addresses=addresses) as server,
            serving(server, tmp_path) as one,
            socket.socket(socket.AF_UNIX) as kept,
        ):
            wait_until(lambda: listens(path), BOUND_S)
            kept.settimeout(BOUND_S)
            kept.connect(path)
            kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: t\r\n\r\n")
            assert kept.recv(4096).startswith(b"HTTP/1.1 200")
            one.control_plane.add("a", write_bundle(tmp_path / "a", 101), preprocess_of(101))
            one.wait("a", BOUND_S, ready=True)
            # By a stub that has none of the server's sockets.
            assert answers(server, "a", 101, 1.0)
            (stub,) = stubs(server)
            stub.suspend()
            try:
                server.kill()
                with contextlib.suppress(ConnectionResetError):
                    assert kept.recv(4096) == b""
            finally:
                stub.kill()


def test_what_a_killed_server_left_is_ended(one: Serving, tmp_path: Path) -> None:
    plane, repository = one.control_plane, one.server.repository
    plane.add("a", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    plane.add("file", write_onnx(tmp_path / "file"), fields=FIELDS)
    for name in ("a", "file"):
        one.wait(name, BOUND_S, ready=True)
    left = stubs(one.server)
    assert len(left) == 2
    assert {model_of(stub, repository) for stub in left} == {"a", "file"}
    assert one.server.process is not None
    areas = shared_memory(one.server.process.pid)
    assert len(areas) == 2
    assert all(area.name.startswith(area_prefix(repository)) for area in areas)
    assert end_orphans(repository) == 0
    assert all(area.exists() for area in areas)
    for process in left:
        process.suspend()
    one.server.kill()
    assert end_orphans(tmp_path / "of another") == 0
    assert all(area.exists() for area in areas)
    assert end_orphans(repository) == 2
    assert not any(area.exists() for area in areas)
    assert not any(process.is_running() for process in left)
    one.server.start()
    for name in ("a", "file"):
        one.wait(name, BOUND_S, ready=True)
    wait_until(lambda: len(stubs(one.server)) == 2, BOUND_S)
    assert end_orphans(repository) == 0


_FOREIGN = """class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def test_what_crosses_shared_memory_is_for_this_user_alone(one: Serving, tmp_path: Path) -> None:
    """Of a backend too that has nothing of ours, as vLLM's."""
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "model.py").write_text(_FOREIGN)
    fields = dataclasses.replace(FIELDS, auxiliary={"backend": '"python"', "max_batch_size": 8})
    one.control_plane.add("python", folder, fields=fields)
    one.control_plane.add("a", write_bundle(tmp_path / "a", 101), preprocess_of(101))
    for name in ("python", "a"):
        one.wait(name, BOUND_S, ready=True)
    assert one.server.process is not None
    areas = shared_memory(one.server.process.pid)
    assert len(areas) == 2
    assert {oct(area.stat().st_mode) for area in areas} == {"0o100600"}


def test_areas_of_others_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_serving.engine.shared_memory.FOLDER", tmp_path)
    prefix, aim = area_prefix(tmp_path), tmp_path / "aim"
    for path in (aim, tmp_path / f"{prefix}own", tmp_path / "triton_0123456789abcdef_another"):
        path.touch(0o644)
    (tmp_path / f"{prefix}link").symlink_to(aim)
    close_areas(tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert [name for name, mode in modes.items() if mode == 0o600] == [f"{prefix}own"]
