"""clearml-serving's own app, imported without the frameworks that its other engines would load.

Importing clearml_serving.serving.main loads torch, scikit-learn, XGBoost and LightGBM where they
are installed: the triton engine uses none of them, and torch alone costs about two seconds and
200 MB a worker. They are hidden during that one import only; an endpoint of another engine, or a
preprocess.py that wants them, still finds them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_HIDDEN = frozenset({"torch", "sklearn", "joblib", "xgboost", "lightgbm"})


class _Hide(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _HIDDEN:
            raise ModuleNotFoundError(f"{fullname} is not loaded here", name=fullname)
        return None


@contextmanager
def _hidden_frameworks() -> Iterator[None]:
    finder = _Hide()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


with _hidden_frameworks():
    host: Any = importlib.import_module("clearml_serving.serving.main")
