# This file becomes the head of every generated preprocess.py; preprocess_file.py fills in the
# three constants. It is a module of its own so that it is checked like all code.
#
# clearml-serving loads a single file live after every update, but keeps the old code of a folder,
# even over a restart. So one file carries everything, and its packages are imported under a name
# that holds the hash of their code: old requests finish on old code while new ones start on new.
# No dataclass and no relative import may stand here: the host does not enter the file's module
# into sys.modules.
import base64
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import sys
import threading
import weakref
import zipfile
from types import ModuleType
from typing import Any

CODE_HASH = ""
CODE = ""
DATA = ""

PACKAGE = f"transformer_serving_{CODE_HASH}"
# Each loaded file is a module of its own, and the finalizer of one's Preprocess runs in any thread,
# also within a step of another's here, of which the collector may make its own: one lock for all of
# them, where process_wide.py keeps what a worker has once, and a reentrant one.
_LIVE = "transformer_serving_live"
_live = sys.modules.setdefault(_LIVE, ModuleType(_LIVE)).__dict__
_lock: Any = _live.setdefault("packages_lock", threading.RLock())


def _taken(name: str) -> str:
    """A constant above, which the module no longer holds from then on: most of this file's text.

    The host loads every endpoint's file again at each change of its configuration, and what it
    leaves behind lives on until the next collection of everything.
    """
    if name not in globals():
        raise RuntimeError(f"{name} was taken already: load the file again for another Preprocess")
    text: str = globals().pop(name)
    return text


def _archive(encoded: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(base64.b64decode(encoded)))


class ZipFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one package from a zip held in memory, and counts the endpoints that use it."""

    def __init__(self, package: str, archive: zipfile.ZipFile) -> None:
        self.serving_package = package
        self.users = 0
        self._archive = archive
        self._names = frozenset(archive.namelist())

    def _path(self, name: str) -> str:
        return name[len(self.serving_package) + 1 :].replace(".", "/")

    def is_package(self, fullname: str) -> bool:
        path = self._path(fullname)
        return not path or f"{path}/__init__.py" in self._names

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.serving_package and not fullname.startswith(self.serving_package + "."):
            return None
        package = self.is_package(fullname)
        if not package and f"{self._path(fullname)}.py" not in self._names:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, self, origin=f"<{fullname}>", is_package=package
        )

    def get_source(self, fullname: str) -> str:
        path = self._path(fullname)
        if not path:
            return ""
        name = f"{path}/__init__.py" if self.is_package(fullname) else f"{path}.py"
        return self._archive.read(name).decode()


def _finders() -> list[Any]:
    """Every package of ours in this process, the newest last; made by other copies of this file."""
    return [finder for finder in sys.meta_path if hasattr(finder, "serving_package")]


def _drop(finder: Any) -> None:
    """Forget a package that nobody uses any more, with its modules and connections."""
    package = finder.serving_package
    preprocess = sys.modules.get(f"{package}.preprocess")
    if preprocess is not None:
        preprocess.close()
    _take_out(finder)
    # Of a list: other threads import meanwhile.
    for name in list(sys.modules):
        if f"{name}.".startswith(f"{package}."):
            sys.modules.pop(name, None)


def _take_out(finder: Any) -> None:
    """Also where it is gone: what the collector runs may have dropped it just now."""
    with contextlib.suppress(ValueError):
        sys.meta_path.remove(finder)


def _sweep() -> None:
    """Drop unused packages but the newest: an update that changes no code finds its code warm."""
    for finder in _finders()[:-1]:
        if finder.users == 0:
            _drop(finder)


def _release(finder: Any) -> None:
    with _lock:
        finder.users -= 1
        if finder in sys.meta_path:
            _sweep()


def _acquire() -> Any:
    """The package of this file's code; shared with other files of the same code."""
    code = _taken("CODE")
    with _lock:
        found = [finder for finder in _finders() if finder.serving_package == PACKAGE]
        finder = found[0] if found else ZipFinder(PACKAGE, _archive(code))
        # One that was dropped just now imports its modules anew.
        _take_out(finder)
        sys.meta_path.append(finder)
        _sweep()
        return finder


_finder = _acquire()
_handover: Any = importlib.import_module(f"{PACKAGE}.preprocess.handover")


class Preprocess(_handover.Successor):  # type: ignore[misc]
    """What clearml-serving instantiates, once: the packaged endpoint with this bundle's files."""

    def __init__(self) -> None:
        data = _archive(_taken("DATA"))
        super().__init__(data.read("endpoint.json"), lambda: data.read("tokenizer.json"))
        # On the instance, not the class: the callback's own globals keep the class alive.
        with _lock:
            weakref.finalize(self, _release, _finder)
            _finder.users += 1
