"""Lays out Triton's --backend-directory: the Python backend and our backends on top of it.

Tested by tests/engine/test_triton_process.py.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transformer_serving.contract.manifest import sha256_of
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.engine.errors import EngineError

BACKENDS = ("openvino_text", "onnxruntime", "torch_text", "openvino_generate")
# Packages beside the modules that all backends share, and of the contract what those import.
_SHARED = ("generation", "packed")
_CONTRACT = (
    *("__init__", "engine_parameters", "error_line", "errors", "fields", "generation"),
    *(f"torch_program/{name}" for name in ("__init__", "graph", "operators", "program")),
)
_ENGINE = Path(__file__).parent
_OURS = _ENGINE.parent
_EXECUTABLE = 0o755
_PLAIN = 0o644


def pytriton_tritonserver() -> Path:
    """The folder of the tritonserver that the nvidia-pytriton wheel carries."""
    for entry in sys.path:
        folder = Path(entry or ".") / "pytriton" / "tritonserver"
        if (folder / "bin" / "tritonserver").is_file():
            return folder.resolve()
    install = pip_line("--no-deps nvidia-pytriton==0.7.0")
    raise EngineError(f"tritonserver was not found; install it: {install}")


def assemble(target: Path, *, pytriton: Path) -> Path:
    """Lay out `target` from the wheel's parts (`pytriton_tritonserver()`) and our backends.

    A target that already holds exactly these files is left alone, so a running Triton is not
    disturbed; otherwise the new layout is built aside and renamed into place.
    """
    wanted = dict(_layout(pytriton))
    if _same(target, wanted):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    for name, (source, mode) in wanted.items():
        path = aside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        path.chmod(mode)
    aside.chmod(_EXECUTABLE)
    _swap(aside, target)
    return target


def add_backend(directory: Path, name: str) -> None:
    """Add one of ours to a Triton's own backends. Raises EngineError where that name is taken."""
    if (directory / name).exists():
        raise EngineError(
            f"backend '{name}' is already in {directory}; choose another name for ours"
        )
    for part, (source, mode) in _backend(name):
        path = directory / part
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        path.chmod(mode)


def _layout(pytriton: Path) -> Iterator[tuple[str, tuple[Path, int]]]:
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = pytriton / "backends" / "python"
    stub = pytriton / "python_backend_stubs" / minor / "triton_python_backend_stub"
    yield "python/libtriton_python.so", (_part(python / "libtriton_python.so"), _PLAIN)
    yield (
        "python/triton_python_backend_utils.py",
        (_part(python / "triton_python_backend_utils.py"), _PLAIN),
    )
    yield "python/triton_python_backend_stub", (_part(stub), _EXECUTABLE)
    for backend in BACKENDS:
        yield from _backend(backend)


def _backend(name: str) -> Iterator[tuple[str, tuple[Path, int]]]:
    """model.py and a copy of the modules it imports, so that the folder works on its own."""
    yield f"{name}/model.py", (_ENGINE / "backends" / name / "model.py", _PLAIN)
    backends, contract = _ENGINE / "backends", _OURS / "contract"
    modules = sorted(backends.glob("*.py"))
    for shared in _SHARED:
        modules += sorted((backends / shared).glob("*.py"))
    modules += [contract / f"{one}.py" for one in _CONTRACT]
    for module in (_OURS / "__init__.py", _ENGINE / "__init__.py", *modules):
        yield f"{name}/{module.relative_to(_OURS.parent).as_posix()}", (module, _PLAIN)


def _part(path: Path) -> Path:
    if not path.is_file():
        raise EngineError(
            f"'{path.name}' is missing below {path.parent}; install nvidia-pytriton==0.7.0 for "
            f"Python {sys.version_info.major}.{sys.version_info.minor}"
        )
    return path


def _same(target: Path, wanted: dict[str, tuple[Path, int]]) -> bool:
    return all(
        (target / name).is_file()
        and (target / name).stat().st_size == source.stat().st_size
        and (not mode & 0o111 or os.access(target / name, os.X_OK))
        and sha256_of(target / name) == sha256_of(source)
        for name, (source, mode) in wanted.items()
    )


def _swap(aside: Path, target: Path) -> None:
    """Put `aside` in the place of `target`; a folder cannot be renamed over a full one."""
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        target.rename(old / target.name)
        aside.rename(target)
        shutil.rmtree(old)
    else:
        aside.rename(target)
