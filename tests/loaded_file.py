"""A Python file as a module that sys.modules never sees, as the host and Triton load theirs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
