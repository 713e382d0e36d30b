"""The requests of the parity check: each task's bodies made of the fixed texts.

Tested by tests/parity/test_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformer_serving.contract.endpoint import Endpoint

Body = dict[str, Any]

# Short and plain, so that each is answered in any language and vocabulary.
_SENTENCES = (
    "The room was clean, the staff were kind and breakfast was excellent.",
    "The train left early because of snow.",
    "An old piano stood in a small warm room.",
    "Nobody answered the telephone.",
)
_LABELS = ("travel", "music", "weather")
_QUESTION = "why did the train leave early?"
GOLDEN_TEXT = _SENTENCES[0]


def golden_body(endpoint: Endpoint) -> Body:
    """A short request that the endpoint answers; it is the first of its parity bodies."""
    return _BODIES[endpoint.task](endpoint, (GOLDEN_TEXT,))[0]


def parity_bodies(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    """The golden request, one for each text, and those of the shapes that texts alone lack."""
    return _BODIES[endpoint.task](endpoint, (GOLDEN_TEXT, *texts))


def _classification(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    first, *others = texts
    # Pairs are where token types and the cutting of the longer text show.
    pairs = [
        {"text": text, "text_pair": other}
        for text, other in zip(others[::5], reversed(others[::5]), strict=True)
    ]
    asked = {"truncate": True, "parameters": {"top_k": None}}
    return [{"text": first}, *({**body, **asked} for body in (*_single(others), *pairs))]


def _single(texts: Sequence[str]) -> list[Body]:
    return [{"text": text} for text in texts]


def _labelled_tokens(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    """Every token is asked for: where a model names things it finds nothing to name in most texts,
    and two empty answers are alike whatever was computed."""
    asked: Body = {"parameters": {"ignore_labels": []}}
    return [{**body, **asked} for body in _single(texts)]


def _vectors_of_tokens(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    """The golden answer has a vector a token and stays in the manifest: one word is enough."""
    _, *others = texts
    return [{"text": "ready"}, *({"text": text, "truncate": True} for text in others)]


def _plain(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    return _single(texts)


def _questions(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    return [{"question": _QUESTION, "context": text} for text in texts]


def _masked(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    """The mask stands behind the first word, so that no cutting takes it away."""
    assert endpoint.masks is not None
    mask = endpoint.masks.mask_token
    bodies: list[Body] = []
    for text in texts:
        first, _, rest = text.partition(" ")
        bodies.append({"text": f"{first} {mask} {rest}"})
    golden, *others = bodies
    return [golden, *({**body, "truncate": True} for body in others)]


def _zero_shot(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    return [{"text": text, "candidate_labels": list(_LABELS)} for text in texts]


def _similar(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    asked = [{"source_sentence": text, "sentences": list(_SENTENCES)} for text in texts]
    return [*asked, {"source_sentence": GOLDEN_TEXT, "sentences": _longest(texts)}]


def _ranked(endpoint: Endpoint, texts: Sequence[str]) -> list[Body]:
    asked = [{"query": text, "texts": list(_SENTENCES)} for text in texts]
    return [*asked, {"query": GOLDEN_TEXT, "texts": _longest(texts)}]


def _longest(texts: Sequence[str]) -> list[str]:
    """Where a text is cut that stands beside another shows in none but these."""
    return sorted(texts, key=len)[-len(_SENTENCES) :]


_BODIES: dict[str, Callable[[Endpoint, Sequence[str]], list[Body]]] = {
    "text-classification": _classification,
    "token-classification": _labelled_tokens,
    "question-answering": _questions,
    "fill-mask": _masked,
    "zero-shot-classification": _zero_shot,
    "feature-extraction": _vectors_of_tokens,
    "sentence-embedding": _plain,
    "sentence-similarity": _similar,
    "rerank": _ranked,
}
