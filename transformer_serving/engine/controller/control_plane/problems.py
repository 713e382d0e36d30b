"""What the serving task names that is no endpoint, or no endpoint's own model, and why.

Tested by tests/engine/test_clearml.py and tests/stack/test_host_traps.py.
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
_DOUBLED = (
    "its model and another endpoint's have one address, so the later upload replaced the earlier "
    "one's bytes; upload them again, each with a --destination of its own"
)


def found_problems(
    task: Task, found: Mapping[str, ModelEndpoint], uris: Mapping[str, str], lost_adds: LostAdds
) -> list[Problem]:
    """Of the serving task as it was read last, and its endpoints by address; `uris` are where the
    bytes of their models are, by the models' ids.
    """
    watched = task.get_configuration_object_as_dict("model_monitoring") or {}
    plain = {ep.serving_url.strip("/"): ep.model_id or "" for ep in found.values()}
    versioned = [ep.serving_url.strip("/") for ep in found.values() if ep.version]
    entries = {row.name: row.model for row in (task.data.models and task.data.models.input) or ()}
    others = [name.strip("/") for name in watched]
    lost = lost_adds.look(entries, plain, versioned, others)
    # Two models of one address: the bytes are those of the later upload.
    addresses: dict[str, list[str]] = {}
    for model, uri in uris.items():
        addresses.setdefault(uri, []).append(model)
    doubled = {model for ids in addresses.values() if len(ids) > 1 for model in ids}
    return [
        *(Problem(f"{name} (lost)", "", model, _LOST) for name, model in lost),
        *(
            Problem(f"{url} (overwritten)", "", endpoint.model_id, _DOUBLED)
            for url, endpoint in found.items()
            if endpoint.model_id in doubled
        ),
        *(
            Problem(name, "", "", fault)
            for name in watched
            if (fault := name_fault(name, AUTO_UPDATED))
        ),
    ]
