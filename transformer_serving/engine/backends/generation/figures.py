"""The engine's counts as metrics of Triton's own page, beside the model's other figures.

Tested by tests/engine/test_openvino_generate.py.
"""

from __future__ import annotations

import time
from typing import Any

import triton_python_backend_utils as pb_utils

from transformer_serving.engine.backends.generation.engine import Counts

# Each setting is a message to Triton: once a second, and when nothing runs any more.
_GAP_S = 1.0
_PREFIX = "transformer_serving_generation_"
# By the field of Counts: the metric's name, whether it only rises, and what it says.
_ROWS = {
    "running": ("running", False, "Sequences that each step makes a token of"),
    "waiting": ("waiting", False, "Calls that wait to be let in"),
    "cache_use": ("cache_use", False, "Part of the cache's blocks that is in use, 0 to 1"),
    "prompt_tokens": ("prompt_tokens_total", True, "Tokens of prompts that were let in"),
    "new_tokens": ("tokens_total", True, "Tokens generated"),
    "finished": ("finished_total", True, "Sequences that came to their end"),
    "cancelled": ("cancelled_total", True, "Calls whose caller left before their end"),
    "refused": ("refused_total", True, "Calls refused as too many waited"),
    "failed": ("failed_total", True, "Calls that a fault of the engine ended"),
    "rebuilt": ("rebuilt_total", True, "Times the engine was built again after a fault"),
}


class Figures:
    """The metrics of one model and version; nothing where Triton keeps none."""

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._told = dict.fromkeys(_ROWS, 0.0)
        self._at = 0.0
        self._metrics: dict[str, Any] = {}
        # Kept, as a metric does not outlive its family.
        self._families: list[Any] = []
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
            before = self._told[field]
            if value == before:
                continue
            if _ROWS[field][1]:
                metric.increment(value - before)
            else:
                metric.set(value)
            self._told[field] = value

    def close(self) -> None:
        """Take the model's rows off the page: Triton would show them for as long as it runs."""
        self._metrics.clear()
        self._families.clear()

    def _make(self) -> None:
        for field, (name, rises, says) in _ROWS.items():
            kind = pb_utils.MetricFamily.COUNTER if rises else pb_utils.MetricFamily.GAUGE
            family = pb_utils.MetricFamily(name=_PREFIX + name, description=says, kind=kind)
            self._families.append(family)
            self._metrics[field] = family.Metric(labels=self._labels)
