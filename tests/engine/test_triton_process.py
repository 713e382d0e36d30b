"""The backend directory and the command of Triton."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from transformer_serving.engine.backend_directory import BACKENDS, assemble, pytriton_tritonserver
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.libpython import PACKAGE, libpython_folder
from transformer_serving.engine.triton_process import (
    TritonAddresses,
    nameable,
    triton_command,
    triton_environment,
)

ROOT = Path(__file__).parent.parent.parent


def test_the_backend_directory_is_laid_out_once_and_repaired(tmp_path: Path) -> None:
    target = assemble(tmp_path / "backends", pytriton=pytriton_tritonserver())
    stub = target / "python" / "triton_python_backend_stub"
    assert os.access(stub, os.X_OK)
    for backend in BACKENDS:
        assert (target / backend / "model.py").is_file()
        ours = target / backend / "transformer_serving"
        assert (ours / "engine" / "backends" / "executor.py").is_file()
    inode = stub.stat().st_ino
    assemble(target, pytriton=pytriton_tritonserver())
    assert stub.stat().st_ino == inode
    (target / BACKENDS[0] / "model.py").write_text("broken")
    assemble(target, pytriton=pytriton_tritonserver())
    assert "TritonPythonModel" in (target / BACKENDS[0] / "model.py").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["backends"]


def test_a_backends_folder_has_what_its_modules_import(tmp_path: Path) -> None:
    """In Triton's image nothing else of ours is installed."""
    target = assemble(tmp_path / "backends", pytriton=pytriton_tritonserver())
    for backend in BACKENDS:
        files = list((target / backend).rglob("*.py"))
        assert len(files) > 10
        for file in files:
            for name in imported(file):
                place = target / backend / name.replace(".", "/")
                assert place.is_dir() or place.with_suffix(".py").is_file(), f"{file}: {name}"


def imported(file: Path) -> set[str]:
    """Our own modules, also in functions."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.startswith("transformer_serving")}


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"'libtriton_python\.so' is missing.*install nvidia-pyt"):
        assemble(tmp_path / "backends", pytriton=tmp_path)


def test_the_command_loads_only_on_demand_and_listens_at_home() -> None:
    command = triton_command(
        Path("/t/tritonserver"),
        repository=Path("/r"),
        backend_directory=Path("/b"),
        addresses=TritonAddresses(1, 2, 3),
        log_file=Path("/l"),
        extra=["--log-verbose=1"],
    )
    assert command[0] == "/t/tritonserver"
    assert {"--model-control-mode=explicit", "--strict-readiness=false"} <= set(command)
    assert {"--http-address=127.0.0.1", "--grpc-port=2", "--metrics-port=3"} <= set(command)
    assert command[-2:] == ["--log-file=/l", "--log-verbose=1"]


def test_the_stub_finds_this_interpreters_packages_and_libpython() -> None:
    environment = triton_environment({"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/own"})
    assert environment["PATH"] == f"{sys.prefix}/bin:/usr/bin"
    assert environment["LD_LIBRARY_PATH"].endswith(":/own")
    assert "nvidia_pytriton.libs" in environment["LD_LIBRARY_PATH"]


def test_no_libpython_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    with pytest.raises(EngineError, match=r"no shared libpython3\.\d+\.so was found"):
        libpython_folder()


def test_a_python_says_it_before_anything_is_installed(tmp_path: Path) -> None:
    """As `make up` asks the one that it found, without packages."""
    module = "transformer_serving.engine.libpython"
    asked = [sys.executable, "-S", "-m", module]
    assert subprocess.run(asked, check=False, cwd=ROOT).returncode == 0
    script = f"""import runpy, sysconfig
sysconfig.get_config_var = lambda name: None
import ctypes.util
ctypes.util.find_library = lambda name: None
runpy.run_module({module!r}, run_name="__main__")
"""
    lacks = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert lacks.returncode == 2
    assert lacks.stderr.startswith(f"error: no shared {PACKAGE}.so was found")


def test_a_path_with_a_blank_is_named_from_where_triton_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of tests/stack has its stack in such a folder."""
    there = tmp_path / "a blank & more"
    run, models = there / "run", there / "triton" / "models"
    run.mkdir(parents=True)
    (tmp_path / "link to it").symlink_to(there)
    linked = tmp_path / "link to it" / "triton" / "models"
    assert nameable(Path("/models"), run) == Path("/models")
    assert nameable(models, run) == nameable(linked, run) == Path("../triton/models")
    monkeypatch.chdir(run)

    def command() -> list[str]:
        backends = there / "backends"
        return triton_command(Path("tritonserver"), repository=models, backend_directory=backends)

    assert "--model-repository=../triton/models" in command()
    assert "--backend-directory=../backends" in command()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngineError, match="use a folder whose path has only letters"):
        command()
