"""The Open Inference Protocol's health and metadata, of this worker and of an endpoint.

Tested by tests/gateway/test_v2.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.gateway.cards import Card
from transformer_serving.gateway.descriptions.description import KIT, Question, kit_version

_DATATYPES = {"integer": "INT64", "number": "FP32", "boolean": "BOOL", "string": "BYTES"}
# As many as a request has: of texts, and of a parameter that takes a list.
_ANY, _ONE = [-1], [1]


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
    return 200, {
        "name": target.model,
        "versions": question.cards.versions_of(target),
        "platform": KIT,
        "inputs": _inputs(card),
        "outputs": [_output(card)],
    }


async def config(question: Question) -> tuple[int, Any]:
    """The same as Triton's ModelConfig, which its clients ask before they send anything.

    Of an endpoint, not of the model in Triton behind it: a request has a list of texts, so its
    first size is no batch's.
    """
    target = question.endpoint
    card = await question.cards.of(target)
    required = {row["name"]: row["required"] for row in (*card["fields"], *card["parameters"])}
    return 200, {
        "name": target.model,
        "platform": KIT,
        "backend": KIT,
        "max_batch_size": 0,
        "input": [
            _configured(row) | {"optional": not required[row["name"]]} for row in _inputs(card)
        ],
        "output": [_configured(_output(card))],
    }


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    datatype = tensor["datatype"]
    named = "STRING" if datatype == "BYTES" else datatype
    return {"name": tensor["name"], "data_type": f"TYPE_{named}", "dims": tensor["shape"]}


def _inputs(card: Card) -> list[dict[str, Any]]:
    inputs = [
        {"name": field["name"], "datatype": "BYTES", "shape": _ANY if field["many"] else _ONE}
        for field in card["fields"]
    ]
    return inputs + [
        # A parameter that takes a list has no type.
        _tensor(row["name"], row["schema"].get("type"))
        for row in card["parameters"]
    ]


def _tensor(name: str, kind: str | None) -> dict[str, Any]:
    known = _DATATYPES.get(kind or "")
    return {"name": name, "datatype": known or "BYTES", "shape": _ANY if known is None else _ONE}


def _output(card: Card) -> dict[str, Any]:
    """As it comes where the request names it or wants it binary, which who asks for metadata will
    do; feature-extraction's is numbers of one text only.
    """
    numbers = {
        "sentence-embedding": [-1, card["dimensions"] or -1],
        "sentence-similarity": _ANY,
    }
    shape = numbers.get(card["task"])
    datatype = "BYTES" if shape is None else "FP32"
    return {"name": "output", "datatype": datatype, "shape": shape or [-1, 1]}
