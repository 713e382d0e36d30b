"""What text-generation-inference says of its one model, here of an endpoint; an Inference Endpoint,
which is one of its servers or of text-embeddings-inference's, says what that one does.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import GENERATION
from transformer_serving.gateway.cards import Card
from transformer_serving.gateway.descriptions import openai, tei
from transformer_serving.gateway.descriptions.description import Question, kit_version
from transformer_serving.gateway.keys import endpoint_url


async def info(question: Question) -> tuple[int, Any]:
    """As its Info of router/src/lib.rs, with the name that its 2.0 had for the longest prompt."""
    card = await question.cards.of(question.endpoint)
    if card["task"] != GENERATION:
        raise ServingError(
            "refused", "the endpoint generates no text; /tei/NAME/info is told of others",
            got=card["task"],
        )  # fmt: skip
    return 200, _told(endpoint_url(question.endpoint), card)


def _told(name: str, card: Card) -> dict[str, Any]:
    positions = card["max_length"]
    # A token at least is to be generated.
    longest = positions - 1
    return {
        "model_id": name,
        "model_sha": card["bundle_hash"],
        "model_pipeline_tag": card["task"],
        "max_input_tokens": longest,
        "max_input_length": longest,
        "max_total_tokens": positions,
        "max_client_batch_size": card["limits"]["max_texts"],
        "version": kit_version(),
        "sha": None,
        "docker_label": None,
    }


async def models(question: Question) -> tuple[int, Any]:
    """The one that is asked, as /v1/models lists it. Raises ServingError (404)."""
    await question.cards.urls_of(question.endpoint)
    return 200, openai.list_of([endpoint_url(question.endpoint)])


async def of_an_inference_endpoint(question: Question) -> tuple[int, Any]:
    card = await question.cards.of(question.endpoint)
    return await (info if card["task"] == GENERATION else tei.info)(question)
