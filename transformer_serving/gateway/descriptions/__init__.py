"""The table of what is said of this worker and its endpoints in other dialects, one row each.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from transformer_serving.gateway.descriptions import openai, ours, tei, tgi, v2
from transformer_serving.gateway.descriptions.description import Description, nothing

DESCRIPTIONS: dict[str, Description] = {
    "ours.endpoints": ours.endpoints,
    "ours.openapi": ours.openapi,
    "openai.models": openai.models,
    "v2.server": v2.server,
    "v2.live": v2.live,
    "v2.ready": v2.ready,
    "v2.model": v2.model,
    "v2.model_ready": v2.model_ready,
    "v2.config": v2.config,
    "openai.model": openai.model,
    "tei.info": tei.info,
    "tei.health": tei.health,
    "tei.metrics": tei.metrics,
    "tgi.health": tei.health,
    "tgi.info": tgi.info,
    "tgi.models": tgi.models,
    "hf.health": tei.health,
    "hf.info": tgi.of_an_inference_endpoint,
    # Of paths that are near those of a dialect (gateway/routes.py).
    "openai.nothing": nothing,
    "cohere.nothing": nothing,
    "v2.nothing": nothing,
    "tei.nothing": nothing,
    "tgi.nothing": nothing,
    "hf.nothing": nothing,
}
