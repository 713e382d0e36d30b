"""The table of what is said of this worker and its endpoints in other dialects, one row each.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from transformer_serving.gateway.descriptions import openai
from transformer_serving.gateway.descriptions.description import Description

DESCRIPTIONS: dict[str, Description] = {
    "openai.models": openai.models,
}
