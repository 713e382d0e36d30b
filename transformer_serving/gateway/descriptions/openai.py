"""OpenAI's list of models.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.gateway.descriptions.description import Question

_OPERATION = "openai.embeddings"
_OWNER = "transformer-serving"


async def models(question: Question) -> tuple[int, Any]:
    """Those that /v1/embeddings can be asked of."""
    cards = await question.cards.all(question.key)
    rows = [
        # A bundle has no date, so that the same model makes the same bundle.
        {"id": name, "object": "model", "created": 0, "owned_by": _OWNER}
        for name, card in cards.items()
        if _OPERATION in card["operations"]
    ]
    return 200, {"object": "list", "data": rows}
