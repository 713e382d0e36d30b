"""The table of what is said of this worker and its endpoints in other dialects, one row each.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from transformer_serving.gateway.descriptions import openai, ours, tei
from transformer_serving.gateway.descriptions.description import Description

DESCRIPTIONS: dict[str, Description] = {
    "ours.endpoints": ours.endpoints,
    "ours.openapi": ours.openapi,
    "openai.models": openai.models,
    "openai.model": openai.model,
    "tei.info": tei.info,
    "tei.health": tei.health,
    "tei.metrics": tei.metrics,
}
