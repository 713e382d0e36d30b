"""Importing clearml-serving without the frameworks that its other engines would load.

clearml_serving imports torch, scikit-learn, XGBoost and LightGBM wherever they are installed. The
triton engine uses none of them, and torch alone costs about two seconds and 200 MB a process. They
are hidden during the import only; an endpoint of another engine, or a preprocess.py that wants
them, still finds them.

Tested by tests/stack/test_clearml_commands.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

_HIDDEN = frozenset({"torch", "sklearn", "joblib", "xgboost", "lightgbm"})


class _Hide(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _HIDDEN:
            raise ModuleNotFoundError(f"{fullname} is not loaded here", name=fullname)
        return None


@contextmanager
def hidden_frameworks() -> Iterator[None]:
    """Hide the frameworks while the block imports; what was imported before stays."""
    finder = _Hide()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
