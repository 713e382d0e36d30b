"""The numbers of an auto-update endpoint's versions are the service's, and not each worker's own.

clearml-serving 1.3.5 writes the versions that it serves into the serving task, from which the
controller loads them, and never reads them there: a worker counts from 1 when it starts. So one
that came later, or missed a model between two looks, called the same model by another number, and
wrote that; the controller then unloaded what the others still asked for. What was removed while no
worker ran stayed in the task, and loaded, for ever.

Tested by tests/gateway/test_monitored_versions.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import wraps
from typing import Any

from transformer_serving.contract.naming import AUTO_UPDATED, name_fault

log = logging.getLogger("transformer_serving.gateway")
# Where clearml-serving keeps them in the serving task.
_ITEM = "model_monitoring_eps"


def share_versions(processor_class: Any) -> None:
    """Before each look for new models, those of the task are taken over."""
    update = processor_class._update_monitored_models

    @wraps(update)
    def update_monitored_models(self: Any) -> Any:
        rows = None
        try:
            rows = self._task.get_configuration_object_as_dict(_ITEM) or {}
            _take_over(self, rows)
        except Exception as error:
            # The look itself must not miss it: this worker goes on with its own numbers.
            log.warning("versions of monitored models cannot be read: %s", type(error).__name__)
        before = set(self._model_monitoring_endpoints)
        found = update(self)
        # The host has written what is new to it, whatever it answers: faults.py has it say no.
        if rows is not None and self._model_monitoring_endpoints.keys() == before:
            _write_again(self, rows)
        return found

    processor_class._update_monitored_models = update_monitored_models


def _take_over(processor: Any, rows: Mapping[str, Any]) -> None:
    """An endpoint that is not monitored any more, too: it is then seen to be gone.

    What the task has no version of keeps the worker's own: another writer may have undone them.
    """
    numbers: dict[str, dict[int, str]] = {}
    for url, row in rows.items():
        name, _, number = url.rpartition("/")
        if name_fault(name, AUTO_UPDATED):
            # Such an endpoint would raise inside the update lock; faults.py leaves it out.
            continue
        numbers.setdefault(name, {})[int(number)] = row["model_id"]
        own = processor._model_monitoring_endpoints.get(url)
        if own is None or own.model_id != row["model_id"]:
            # No request meets a gap: what is not wanted goes with the next sync.
            processor._model_monitoring_endpoints[url] = _endpoint(row)
            processor._engine_processor_lookup.pop(url, None)
            processor._model_monitoring_update_request = True
    for name, versions in numbers.items():
        own = processor._model_monitoring_versions.get(name, {})
        left = {number: model for number, model in own.items() if number not in versions}
        versions |= {n: model for n, model in left.items() if model not in versions.values()}
        if own != versions:
            processor._model_monitoring_versions[name] = versions
            processor._model_monitoring_update_request = True


def _write_again(processor: Any, rows: Mapping[str, Any]) -> None:
    """What this worker serves and the task has no row of: another writer has undone it, and the
    host writes only what is new to it.
    """
    served = processor._model_monitoring_endpoints
    if served.keys() - rows.keys():
        row_of = {url: row.as_dict(remove_null_entries=True) for url, row in served.items()}
        processor._task.set_configuration_object(name=_ITEM, config_dict=row_of)


def _endpoint(row: Mapping[str, Any]) -> Any:
    """As clearml-serving reads them for the controller."""
    from clearml_serving.serving.endpoints import ModelEndpoint

    known = ModelEndpoint.__attrs_attrs__
    return ModelEndpoint(**{name: value for name, value in row.items() if hasattr(known, name)})
