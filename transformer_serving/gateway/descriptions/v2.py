"""The Open Inference Protocol's health and metadata, of this worker and of an endpoint.

Tested by tests/gateway/test_v2.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.gateway.descriptions.description import KIT, Question, kit_version

_DATATYPES = {"integer": "INT64", "number": "FP32", "boolean": "BOOL", "string": "BYTES"}
# As many as a request has: of texts, and of a parameter that takes a list.
_ANY = [-1]


async def server(question: Question) -> tuple[int, Any]:
    return 200, {"name": KIT, "version": kit_version(), "extensions": ["binary_tensor_data"]}


async def live(question: Question) -> tuple[int, Any]:
    return 200, {"live": True}


async def ready(question: Question) -> tuple[int, Any]:
    is_ready = question.health.not_ready() is None
    return 200 if is_ready else 503, {"ready": is_ready}


async def model_ready(question: Question) -> tuple[int, Any]:
    is_ready = await question.is_ready()
    name = question.endpoint.model
    return 200 if is_ready else 503, {"name": name, "ready": is_ready}


async def model(question: Question) -> tuple[int, Any]:
    """The tensors that it takes: the body's fields, and the task's parameters."""
    target = question.endpoint
    card = await question.cards.of(target)
    inputs = [_tensor(field["name"], "string") for field in card["fields"]]
    # Cards of older kits have no schema of a parameter.
    inputs += [
        _tensor(row["name"], row.get("schema", {}).get("type", "string"))
        for row in card["parameters"]
    ]
    return 200, {
        "name": target.model,
        "versions": [] if target.version is None else [target.version],
        "platform": KIT,
        "inputs": inputs,
        "outputs": [{"name": "output", "datatype": "BYTES", "shape": [-1, 1]}],
    }


def _tensor(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "datatype": _DATATYPES.get(kind, "BYTES"), "shape": _ANY}
