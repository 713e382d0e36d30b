"""OpenAI's list of models, and one of them, which KServe's V1 clients ask whether it is ready.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformer_serving.gateway.descriptions.description import KIT, Question
from transformer_serving.gateway.keys import endpoint_url

_OPERATIONS = frozenset({"openai.embeddings", "openai.completions"})


def _row(name: str) -> dict[str, Any]:
    # A bundle has no date, so that the same model makes the same bundle.
    return {"id": name, "object": "model", "created": 0, "owned_by": KIT}


async def models(question: Question) -> tuple[int, Any]:
    """Those that /v1/embeddings or /v1/completions can be asked of, canary routes among them."""
    cards = await question.cards.all(question.key)
    cards |= await question.cards.routed(question.key)
    return 200, list_of(
        [
            name
            for name, card in sorted(cards.items())
            if not _OPERATIONS.isdisjoint(card["operations"])
        ]
    )


def list_of(names: Sequence[str]) -> dict[str, Any]:
    return {"object": "list", "data": [_row(name) for name in names]}


async def model(question: Question) -> tuple[int, Any]:
    """Any endpoint; 503 where its last golden request was not answered as it should."""
    ready = await question.is_ready()
    name = endpoint_url(question.endpoint)
    return 200 if ready else 503, {**_row(name), "name": name, "ready": ready}
