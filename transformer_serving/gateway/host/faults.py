"""Three faults of clearml-serving 1.3.5's live configuration, fenced off.

A service with only auto-update endpoints divides by zero while it draws a plot, which ends the sync
thread. An auto-update endpoint whose name has a '/' raises inside the update lock, after which no
request is ever answered; such an endpoint is left out, and the log says so. The versions of one
that was removed would be served on.

Tested by tests/stack/test_host_traps.py.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

from transformer_serving.contract.naming import AUTO_UPDATED, name_fault

log = logging.getLogger("transformer_serving.gateway")


def fence(processor_class: Any) -> None:
    """Wrap the two methods of ModelRequestProcessor."""
    plot = processor_class._update_serving_plot
    update = processor_class._update_monitored_models
    told: set[str] = set()

    @wraps(plot)
    def update_serving_plot(self: Any) -> None:
        try:
            plot(self)
        except ZeroDivisionError:
            log.info("clearml-serving cannot draw a service without static endpoints")

    @wraps(update)
    def update_monitored_models(self: Any) -> Any:
        slashed = [name for name in self._model_monitoring if name_fault(name, AUTO_UPDATED)]
        for name in slashed:
            del self._model_monitoring[name]
        if set(slashed) - told:
            told.update(slashed)
            log.error(
                "an auto-update endpoint's name must not have a '/'; %d such are not served",
                len(slashed),
            )
        for name in set(self._model_monitoring_versions) - set(self._model_monitoring):
            del self._model_monitoring_versions[name]
            self._model_monitoring_update_request = True
        return update(self)

    processor_class._update_serving_plot = update_serving_plot
    processor_class._update_monitored_models = update_monitored_models
