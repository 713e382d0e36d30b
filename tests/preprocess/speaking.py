"""An endpoint of each task without an engine: its rows are made up, from the texts' own tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from preprocess.answers import TASKS
from preprocess.dialects import Conversation
from preprocess.request import read_body
from preprocess.tokens import Encoded
from tests.triton_text import tokenizer
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import HEADS, TASK_HEADS
from transformer_serving.contract.worker.request_context import current_operation

TOKENIZER = tokenizer()
LABELS = ["O", "B-TEA", "I-TEA"]
MASK = "[MASK]"
WIDTH, BEST = 8, 5


def endpoint_of(task: str, **changes: Any) -> Endpoint:
    """endpoint.json of a small model; `changes` replaces whole fields."""
    head = changes.get("head", TASK_HEADS[task][0])
    axes = HEADS[head]
    labels = LABELS[:1] if task in ("rerank", "sentence-similarity") else LABELS
    fields: dict[str, Any] = {
        "schema": 1,
        "bundle_version": 2,
        "bundle_hash": "ab" * 32,
        "task": task,
        "head": head,
        "inputs": [
            {"name": role, "role": role, "dtype": "INT32"}
            for role in ("input_ids", "attention_mask", *axes.extra_roles)
        ],
        "outputs": [
            {"name": f"output_{at}", "dtype": "FP32", "dims": [-1] * len(row)}
            for at, row in enumerate(axes.outputs)
        ],
        "tokens": {
            "max_length": 24, "buckets": [8, 24], "pad_id": 0, "pad_token": "[PAD]",
            "pad_type_id": 0, "padding_side": "right", "truncate": False, "unk_id": 1, "cls_id": 2,
        },
        "limits": {
            "max_texts": 10, "max_characters": 200, "max_tokens": 200, "max_batch_size": 4,
        },
        "classification": {
            "labels": labels, "problem_type": "single_label", "activation": "softmax",
            **({"activation": "sigmoid"} if len(labels) == 1 else {}),
            **({"entailment": 2} if task.startswith("zero") else {}),
        },
        "embedding": {
            "pooling": "engine", "normalize": False,
            "dimensions": WIDTH, "similarity": "dot", "prompts": {"query": "tea "},
            "default_prompt": None,
        },
        "masks": {"mask_token": MASK, "mask_id": 4, "best": BEST},
    }  # fmt: skip
    return read_endpoint(json.dumps({**fields, **changes}))


def row_of(endpoint: Endpoint, row: Encoded) -> tuple[Any, ...]:
    """What an engine could have given for a row, the same each time."""
    random = np.random.default_rng(sum(row.ids) + len(row.ids))
    labels = 1 if endpoint.classification is None else len(endpoint.classification.labels)
    sizes = {
        "labels": labels, "tokens": len(row.ids), "ends": 2, "width": WIDTH, "best": BEST,
        **{role: len(values) for role, values in row.extras.items()},
    }  # fmt: skip
    found: list[Any] = [
        random.random([sizes[axis] for axis in axes], np.float32)
        for axes in HEADS[endpoint.head].outputs
    ]
    if endpoint.head == "masks":
        found[1] = np.arange(BEST)[None].repeat(sizes["mask_positions"], 0) + 10
    return tuple(found)


class Speaker:
    """One endpoint, asked in any dialect; operation None is our own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.task = TASKS[endpoint.task](endpoint)
        self.tokenizer = self.task.tokenizer(TOKENIZER, endpoint.tokens)

    def ask(self, operation: str | None, body: Any) -> Any:
        """Raises ServingError, in the caller's words."""
        token = current_operation.set(None if operation is None else (operation, b""))
        try:
            return self._ask(Conversation(body, self.task, self.endpoint, "named"))
        finally:
            current_operation.reset(token)

    def _ask(self, conversation: Conversation) -> Any:
        try:
            read = conversation.read()
            request = read_body(read, conversation.task, self.endpoint.limits)
            work = conversation.task.encode(request, self.tokenizer)
            rows = [row_of(self.endpoint, row) for row in work.encoded]
            answer = conversation.task.render(rows, work)
            return orjson.loads(conversation.reply(answer, work).body)
        except ServingError as error:
            raise conversation.operation.in_their_words(error, conversation._asked.body) from None


def speaker(task: str, **changes: Any) -> Speaker:
    return Speaker(endpoint_of(task, **changes))
