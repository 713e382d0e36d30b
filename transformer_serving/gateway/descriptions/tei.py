"""What text-embeddings-inference says of its one model, here of an endpoint.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.cards import Card
from transformer_serving.gateway.descriptions.description import Plain, Question, kit_version
from transformer_serving.gateway.figures.metrics import MEDIA_TYPE
from transformer_serving.gateway.keys import endpoint_url

# Admission is by tokens, and a worker's threads tokenize: what its clients may want to see is 0.
_WITHOUT_COUNTERPART = {"max_concurrent_requests": 0, "tokenization_workers": 0}
# Of its names for a pooling those that are not ours; of what makes no vector of a text it has none.
_POOLINGS = {"lasttoken": "last_token", None: "none"}
_LABELLED = {"text-classification": "classifier", "rerank": "reranker"}


async def info(question: Question) -> tuple[int, Any]:
    """As its Info of router/src/lib.rs."""
    card = await question.cards.of(question.endpoint)
    name = endpoint_url(question.endpoint)
    limits = card["limits"]
    return 200, {
        "model_id": name,
        "model_sha": card["bundle_hash"],
        # Of the answers; what the engine computes in is its bundle's affair.
        "model_dtype": "float32",
        "served_model_name": name,
        "model_type": _model_type(card),
        "max_input_length": card["max_length"],
        "max_batch_tokens": limits["max_tokens"],
        "max_batch_requests": limits["max_batch_size"],
        "max_client_batch_size": limits["max_texts"],
        "auto_truncate": card["truncate"],
        **_WITHOUT_COUNTERPART,
        "version": kit_version(),
        "sha": None,
        "docker_label": None,
    }


def _model_type(card: Card) -> dict[str, Any]:
    kind = _LABELLED.get(card["task"])
    if kind is None or card["labels"] is None:
        pooling = card["pooling"]
        return {"embedding": {"pooling": _POOLINGS.get(pooling, pooling)}}
    labels = card["labels"]
    return {
        kind: {
            "id2label": {str(at): label for at, label in enumerate(labels)},
            "label2id": {label: at for at, label in enumerate(labels)},
        }
    }


async def health(question: Question) -> tuple[int, Any]:
    """200 without a body where the endpoint's requests may be sent here."""
    if not await question.is_ready():
        raise ServingError("unavailable", "the endpoint is not ready")
    return 200, None


async def metrics(question: Question) -> tuple[int, Any]:
    """Those of the endpoint alone: who may ask here need not be who may see the whole gateway's.

    Where there are keys, the front door takes one of /metrics for them.
    """
    names = await question.cards.figures_of(question.endpoint)
    return 200, Plain(await question.metrics.text_of(names), MEDIA_TYPE)
