"""What the page at / and the OpenAPI document say of the endpoints.

Tested by tests/gateway/test_page.py and tests/gateway/test_openapi.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.gateway.descriptions.description import Question
from transformer_serving.gateway.keys import endpoint_url
from transformer_serving.gateway.openapi.bodies import example
from transformer_serving.gateway.openapi.document import document


async def endpoints(question: Question) -> tuple[int, Any]:
    """Every endpoint that the key may ask, with its card and a body that it can answer."""
    rows = [
        {"name": name, "card": card, "example": {} if card is None else example(card)}
        for name, card in (await question.cards.listed(question.key)).items()
    ]
    return 200, {"endpoints": rows}


async def openapi(question: Question) -> tuple[int, Any]:
    cards = await question.cards.listed(question.key)
    routed = await question.cards.routed(question.key)
    by_setting = {path: endpoint_url(named) for path, named in question.by_setting.items()}
    host = question.host.app.openapi()
    return 200, document(host, cards, question.key, by_setting, routed)
