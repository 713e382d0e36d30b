"""What a graph computes: its inputs beside the tokens, and the axes of its outputs.

Tested by tests/contract/test_endpoint.py.
"""

from __future__ import annotations

from dataclasses import dataclass

TOKEN_ROLES = ("input_ids", "token_type_ids", "attention_mask")
# Inputs of shape [texts, n] with n of the text's own: where its masks stand (counted in its
# unpadded tokens), and which token ids its caller asked the scores of.
EXTRA_ROLES = ("mask_positions", "candidates")
TOKENS = "tokens"


@dataclass(frozen=True)
class Head:
    """`extra_roles` are inputs of their own; `outputs` the axes of each output after the batch.

    An axis named 'tokens' or as an extra role has the text's own size; the others are fixed.
    """

    extra_roles: tuple[str, ...]
    outputs: tuple[tuple[str, ...], ...]


HEADS = {
    "sequence": Head((), (("labels",),)),
    "tokens": Head((), ((TOKENS, "labels"),)),
    # Columns 0 and 1: the logits of an answer's first and last token.
    "spans": Head((), ((TOKENS, "ends"),)),
    # Of each mask: the best scores, their token ids, and the candidates' scores, all softmaxed over
    # the whole vocabulary inside the graph, so that the vocabulary never crosses the wire.
    "masks": Head(
        EXTRA_ROLES,
        (("mask_positions", "best"), ("mask_positions", "best"), ("mask_positions", "candidates")),
    ),
    "vector": Head((), (("width",),)),
    "token_vectors": Head((), ((TOKENS, "width"),)),
    # One sequence a call, answered in a stream: contract.generation.
    "generation": Head((), (("new",), ("new",), ("state",))),
}

# Which heads can answer a task. A first entry of two is what convert exports by default.
TASK_HEADS = {
    "text-classification": ("sequence",),
    "token-classification": ("tokens",),
    "question-answering": ("spans",),
    "fill-mask": ("masks",),
    "zero-shot-classification": ("sequence",),
    "feature-extraction": ("token_vectors",),
    "sentence-embedding": ("vector", "token_vectors"),
    "sentence-similarity": ("vector", "sequence"),
    "rerank": ("sequence", "vector"),
}
TASKS = tuple(TASK_HEADS)
# Its answers come token by token: no rows, no length buckets, and none of the tables above.
GENERATION = "text-generation"
ENDPOINT_TASKS = (*TASKS, GENERATION)
