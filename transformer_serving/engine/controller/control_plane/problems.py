"""What the serving task names that is no endpoint, or no endpoint's own model, and why.

Tested by tests/engine/test_lost_adds.py, tests/engine/test_clearml.py and
tests/stack/test_host_traps.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from transformer_serving.contract.naming import AUTO_UPDATED, name_fault
from transformer_serving.engine.controller.control_plane.lost_adds import LostAdds
from transformer_serving.engine.controller.control_plane.served import Problem

if TYPE_CHECKING:
    from clearml import Task
    from clearml_serving.serving.endpoints import ModelEndpoint

_LOST = (
    "another writer at the same time undid its last 'clearml-serving model add'; add it again, "
    "only one writer at a time"
)
_REPLACED = (
    "its model and a later one have one address, so the later upload replaced its bytes; upload it "
    "again with a --destination of its own, and add the endpoint with that"
)


def found_problems(
    task: Task, found: Mapping[str, ModelEndpoint], uris: Mapping[str, str], lost_adds: LostAdds
) -> list[Problem]:
    """Of the serving task as it was read last, and its endpoints by address; `uris` are where the
    bytes of their models are, by the models' ids, the newest model last.
    """
    watched = task.get_configuration_object_as_dict("model_monitoring") or {}
    plain = {ep.serving_url.strip("/"): ep.model_id or "" for ep in found.values()}
    versioned = [ep.serving_url.strip("/") for ep in found.values() if ep.version]
    entries = {row.name: row.model for row in (task.data.models and task.data.models.input) or ()}
    others = [name.strip("/") for name in watched]
    lost = lost_adds.look(entries, plain, versioned, others)
    # Of several models of one address the bytes are those of the latest upload.
    latest = {uri: model for model, uri in uris.items()}
    replaced = {model: latest[uri] for model, uri in uris.items() if latest[uri] != model}
    return [
        *(
            Problem(f"{name} (lost)", "", model, _LOST, beside=name in plain)
            for name, model in lost
        ),
        *(
            Problem(
                f"{url} (overwritten)",
                "",
                endpoint.model_id,
                _REPLACED,
                replaced_by=replaced[endpoint.model_id],
                beside=True,
            )
            for url, endpoint in found.items()
            if endpoint.model_id in replaced
        ),
        *(
            Problem(name, "", "", fault)
            for name in watched
            if (fault := name_fault(name, AUTO_UPDATED))
        ),
    ]
