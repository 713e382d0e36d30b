"""The engine's counts as metrics of Triton's own page, beside the model's other figures.

A metric is never taken back. Triton 2.51 counts who uses a row of its page by the process that
declared it: two of one version, as whenever a model is loaded again, share their rows, and the
first that goes would free what the other one writes into (docs/decisions/language-models.md, "Rows
on Triton's page").

Tested by tests/engine/test_generation_figures.py, on Triton's page by test_openvino_generate.py
beside it.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import triton_python_backend_utils as pb_utils

from transformer_serving.engine.backends.generation.counts import Counts

# Each setting is a message to Triton: gauges once a second, counters then and when nothing runs.
_GAP_S = 1.0
_PREFIX = "transformer_serving_generation_"
# By the field of Counts: the metric's name, whether it only rises, and what it says.
_ROWS = {
    "running": (
        "running",
        False,
        "Sequences that each step makes a token of, the most within a second",
    ),
    "waiting": ("waiting", False, "Calls that wait to be let in, the most within a second"),
    "cache_use": (
        "cache_use",
        False,
        "Part of the cache's blocks that is in use, 0 to 1, the most within a second",
    ),
    "cache_reserved": (
        "cache_reserved",
        False,
        "Part of the cache's blocks that what runs may come to use, 1 where the next call does not "
        "fit beside it, the most within a second",
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
        self._told = {field: 0.0 for field, row in _ROWS.items() if row[1]}
        self._most = {field: 0.0 for field, row in _ROWS.items() if not row[1]}
        self._at = -_GAP_S
        self._metrics: dict[str, Any] = {}
        if model.startswith("."):
            return
        try:
            self._make()
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(f"Triton keeps no figures of {model}: {error}")

    def tell(self, counts: Counts) -> float | None:
        """In how many seconds to be called again, None where all is told.

        A gauge is the most of its second: an engine that rests for a moment of each would say 0,
        or what it began with, for most of the time that it works.
        """
        if not self._metrics:
            return None
        now = time.monotonic()
        current = {field: float(getattr(counts, field)) for field in self._most}
        for field, value in current.items():
            self._most[field] = max(self._most[field], value)
        left = self._at + _GAP_S - now
        if left <= 0 or not counts.running:
            self._count_up(counts)
        if left > 0:
            return left
        told, self._at, self._most = self._most, now, dict.fromkeys(self._most, 0.0)
        for field, value in told.items():
            # Though it be the same: the process before this one may have set it meanwhile.
            self._metrics[field].set(value)
        return None if told == current else _GAP_S

    def _count_up(self, counts: Counts) -> None:
        for field, before in self._told.items():
            value = float(getattr(counts, field))
            if value > before:
                self._metrics[field].increment(value - before)
            self._told[field] = value

    def close(self) -> None:
        """Nothing runs any more; what was counted stays."""
        if self._metrics:
            for field in self._most:
                self._metrics[field].set(0.0)

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
