"""Seven faults of clearml-serving 1.3.5's live configuration, fenced off.

A service with only auto-update endpoints divides by zero while it draws a plot, which ends the sync
thread. An auto-update endpoint whose name has a '/' raises inside the update lock; such an endpoint
is left out, and the log says so. The versions of one that was removed would be served on. A canary
route whose endpoints are left with weights of 0 divides by zero inside the update lock; it is left
out, as one whose endpoints are all gone. And whatever else is raised there, such as ClearML's
refusal of a question, leaves the lock closed, after which no request is ever answered, and takes
the change for done. A refusal of the question for monitored models, or a plot that cannot be drawn,
skips the exchange of the engine objects that the same look's change asked for: the old bundle would
be asked on until the next change. And every new monitored model takes the code out of the engine
objects of all auto-update endpoints, also from below the requests that run, which then answer with
the engine's raw outputs.

A change waits for the requests that run; their counter is shown to those that may run for minutes.

Tested by tests/gateway/test_host_faults.py and tests/stack/test_host_traps.py.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

from transformer_serving.contract.naming import AUTO_UPDATED, name_fault
from transformer_serving.contract.worker.request_counts import request_counts
from transformer_serving.gateway.host.monitored_versions import share_versions

log = logging.getLogger("transformer_serving.gateway")


def fence(processor_class: Any) -> None:
    """Wrap the methods of ModelRequestProcessor."""
    _fence_plot(processor_class)
    _fence_monitoring(processor_class)
    share_versions(processor_class)
    _fence_canaries(processor_class)
    _fence_lock(processor_class)
    _show_counts(processor_class)


def _fence_plot(processor_class: Any) -> None:
    plot = processor_class._update_serving_plot

    @wraps(plot)
    def update_serving_plot(self: Any) -> None:
        try:
            plot(self)
        except ZeroDivisionError:
            log.info("clearml-serving cannot draw a service without static endpoints")
        except Exception as error:
            # A picture: what comes after it in the sync, and the sync itself, must not miss it.
            log.warning("clearml-serving cannot draw the service: %s", type(error).__name__)

    processor_class._update_serving_plot = update_serving_plot


def _fence_monitoring(processor_class: Any) -> None:
    update = processor_class._update_monitored_models
    told: set[str] = set()

    @wraps(update)
    def update_monitored_models(self: Any) -> bool:
        """Always False to the host, which then leaves the engine objects of auto-update alone."""
        _leave_out_slashed(self, told)
        for name in set(self._model_monitoring_versions) - set(self._model_monitoring):
            del self._model_monitoring_versions[name]
            self._model_monitoring_update_request = True
        try:
            found = update(self)
        except Exception as error:
            # A worker that starts must not be ready without them. One that serves goes on with
            # those that it has, and with the change that this look took over.
            if self._sync_daemon_thread is None:
                raise
            log.warning("monitored models stay until the next look: %s", type(error).__name__)
            return False
        if found:
            _take_over_monitored(self)
        return False

    processor_class._update_monitored_models = update_monitored_models


def _leave_out_slashed(processor: Any, told: set[str]) -> None:
    slashed = [name for name in processor._model_monitoring if name_fault(name, AUTO_UPDATED)]
    for name in slashed:
        del processor._model_monitoring[name]
    if set(slashed) - told:
        told.update(slashed)
        log.error(
            "an auto-update endpoint's name must not have a '/'; %d such are not served",
            len(slashed),
        )


def _take_over_monitored(processor: Any) -> None:
    """As the host does, but that nothing is taken from requests that run: they keep the engine
    object that they began with, and new ones do not find those of endpoints that are gone.
    """
    before = processor._last_update_hash
    processor.deserialize(processor._task)
    if processor._last_update_hash != before:
        # It took over a change of the configuration as well, which the host does not look for.
        processor._engine_processor_lookup = {}
    there = {*processor._endpoints, *processor._model_monitoring_endpoints}
    for url in set(processor._engine_processor_lookup) - there:
        processor._engine_processor_lookup.pop(url, None)
    processor._report_text("Model monitoring synced")
    processor._update_serving_plot()


def _fence_canaries(processor_class: Any) -> None:
    update = processor_class._update_canary_lookup

    @wraps(update)
    def update_canary_lookup(self: Any) -> None:
        every = self._canary_endpoints
        there = {*self._endpoints, *self._model_monitoring_endpoints}
        led = {name: row for name, row in every.items() if _leads_somewhere(row, there)}
        if len(led) < len(every):
            log.error(
                "%d canary routes are not served: their endpoints are gone or have no weight",
                len(every) - len(led),
            )
        self._canary_endpoints = led
        try:
            update(self)
        finally:
            self._canary_endpoints = every

    processor_class._update_canary_lookup = update_canary_lookup


def _leads_somewhere(row: Any, there: set[str]) -> bool:
    """Whether what the host divides by is more than 0."""
    if row.load_endpoints:
        pairs = zip(row.weights, row.load_endpoints, strict=False)
        return sum(float(weight) for weight, name in pairs if name in there) > 0
    if not row.load_endpoint_prefix:
        return True
    found = sum(name.startswith(row.load_endpoint_prefix) for name in there)
    return sum(map(float, row.weights[:found])) > 0


def _fence_lock(processor_class: Any) -> None:
    deserialize = processor_class.deserialize

    @wraps(deserialize)
    def deserialize_or_let_go(self: Any, *arguments: Any, **named: Any) -> Any:
        before = self._endpoints
        try:
            return deserialize(self, *arguments, **named)
        except BaseException:
            # What is served now is no longer what the engine objects were built for.
            if self._endpoints is not before:
                self._engine_processor_lookup = {}
            # It is the same thread that closed it. At the next look the change is tried again.
            self._update_lock_flag = False
            self._last_update_hash = None
            raise

    processor_class.deserialize = deserialize_or_let_go


def _show_counts(processor_class: Any) -> None:
    init = processor_class.__init__

    @wraps(init)
    def init_and_show(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        request_counts().append(self._request_processing_state)

    processor_class.__init__ = init_and_show
