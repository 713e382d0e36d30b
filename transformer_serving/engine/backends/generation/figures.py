"""The engine's counts as metrics of Triton's own page, beside the model's other figures.

A metric is never taken back. Triton 2.51 counts who uses a row of its page by the process that
declared it: two of one version, as whenever a model is loaded again, share their rows, and the
first that goes would free what the other one writes into (docs/decisions/language-models.md, "Rows
on Triton's page").

Tested by tests/engine/test_openvino_generate.py.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import triton_python_backend_utils as pb_utils

from transformer_serving.engine.backends.generation.counts import Counts

# Each setting is a message to Triton: once a second, and when nothing runs any more.
_GAP_S = 1.0
_PREFIX = "transformer_serving_generation_"
# By the field of Counts: the metric's name, whether it only rises, and what it says.
_ROWS = {
    "running": ("running", False, "Sequences that each step makes a token of"),
    "waiting": ("waiting", False, "Calls that wait to be let in"),
    "cache_use": ("cache_use", False, "Part of the cache's blocks that is in use, 0 to 1"),
    "cache_reserved": (
        "cache_reserved",
        False,
        "Part of the cache's blocks that what runs may come to use, 1 where the next call does not "
        "fit beside it",
    ),
    "prompt_tokens": ("prompt_tokens_total", True, "Tokens of prompts that were let in"),
    "new_tokens": ("tokens_total", True, "Tokens generated"),
    "finished": ("finished_total", True, "Sequences that came to their end"),
    "cancelled": ("cancelled_total", True, "Calls whose caller left before their end"),
    "refused": ("refused_total", True, "Calls refused as too many waited"),
    "failed": ("failed_total", True, "Calls that a fault of the engine ended"),
    "rebuilt": ("rebuilt_total", True, "Times the engine was built again after a fault"),
}


class Figures:
    """The metrics of one model and version; nothing where Triton keeps none, and of a proof's."""

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._told = dict.fromkeys(_ROWS, 0.0)
        self._at = 0.0
        self._metrics: dict[str, Any] = {}
        if model.startswith("."):
            return
        try:
            self._make()
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(f"Triton keeps no figures of {model}: {error}")

    def tell(self, counts: Counts) -> None:
        now = time.monotonic()
        if now - self._at < _GAP_S and counts.running:
            return
        self._at = now
        for field, metric in self._metrics.items():
            value = float(getattr(counts, field))
            if not _ROWS[field][1]:
                # Though it be the same: the process before this one may have set it meanwhile.
                metric.set(value)
            elif value > self._told[field]:
                metric.increment(value - self._told[field])
            self._told[field] = value

    def close(self) -> None:
        """Nothing runs any more; what was counted stays."""
        for field, metric in self._metrics.items():
            if not _ROWS[field][1]:
                metric.set(0.0)

    def _make(self) -> None:
        for field, (name, rises, says) in _ROWS.items():
            kind = pb_utils.MetricFamily.COUNTER if rises else pb_utils.MetricFamily.GAUGE
            family = pb_utils.MetricFamily(name=_PREFIX + name, description=says, kind=kind)
            metric = family.Metric(labels=self._labels)
            for one in (family, metric):
                _keep(one)
            if not rises:
                # Of a process that was killed something else may be left.
                metric.set(0.0)
            self._metrics[field] = metric


def _keep(one: Any) -> None:
    """For as long as the process lives: as it is freed, Triton's part is, too."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
