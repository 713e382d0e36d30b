"""A task of preprocess with a torch model for its engine, called as the coalescer calls it."""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import orjson
import torch

from preprocess.answers import TASKS
from preprocess.request import read_body
from preprocess.rows import Row, pad, unpad
from preprocess.tensors import Array
from preprocess.tokens import Encoded
from tests.preprocess.answers.families import FAMILIES, LABELS, MAX_LENGTH, Family
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import HEADS, TASK_HEADS

BUCKETS = (8, 16, 24, MAX_LENGTH)
BEST = 12
# Changes the engine's inputs by role, to see a fault noticed.
Fault = Callable[[dict[str, torch.Tensor]], None]


def _nothing(inputs: dict[str, torch.Tensor]) -> None:
    pass


class Served:
    """One endpoint. Every call mixes the request's rows with rows of other lengths."""

    def __init__(self, endpoint: Endpoint, tokenizer_json: bytes, model: torch.nn.Module) -> None:
        self.endpoint = endpoint
        self.model = model
        self.fault: Fault = _nothing
        self.task = TASKS[endpoint.task](endpoint)
        self.tokenizer = self.task.tokenizer(tokenizer_json, endpoint.tokens)
        self._random = random.Random(5)

    def answer(self, body: Any) -> Any:
        """What a caller reads. Raises ServingError."""
        request = read_body(body, self.task, self.endpoint.limits)
        work = self.task.encode(request, self.tokenizer)
        answer = self.task.render(self._rows(work.encoded), work)
        return orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))

    def outcome(self, body: Any) -> Any:
        """The answer, or the error that a caller reads instead."""
        try:
            return self.answer(body)
        except ServingError as error:
            return error

    def _rows(self, encoded: Sequence[Encoded]) -> list[Row]:
        extras = {role: [0] for role in HEADS[self.endpoint.head].extra_roles}
        others = [
            Encoded([2] * size, [0] * size, extras)
            for size in self._random.choices(range(1, MAX_LENGTH + 1), k=2)
        ]
        called = [*enumerate(encoded), *((-1, other) for other in others)]
        self._random.shuffle(called)
        rows: dict[int, Row] = {}
        for start in range(0, len(called), self.endpoint.limits.max_batch_size):
            batch = called[start : start + self.endpoint.limits.max_batch_size]
            outputs = self._call([row for _, row in batch])
            for at, (position, row) in enumerate(batch):
                rows[position] = unpad([output[at] for output in outputs], row, self.endpoint)
        return [rows[position] for position in range(len(encoded))]

    def _call(self, encoded: Sequence[Encoded]) -> list[Array]:
        longest = max(len(row.ids) for row in encoded)
        length = BUCKETS[bisect_left(BUCKETS, longest)]
        tensors = pad(encoded, length, self.endpoint.inputs, self.endpoint.tokens)
        inputs = {tensor.name: torch.from_numpy(tensor.array).long() for tensor in tensors}
        self.fault(inputs)
        with torch.inference_mode():
            outputs = GRAPHS[self.endpoint.head](self.model, inputs)
        return [output.numpy() for output in outputs]


def _sequence(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [model(**inputs).logits]


def _spans(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    outputs = model(**inputs)
    return [torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)]


def _masks(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    positions, candidates = inputs.pop("mask_positions"), inputs.pop("candidates")
    hidden = model.base_model(**inputs).last_hidden_state
    at_masks = torch.gather(hidden, 1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
    decode = model.cls if hasattr(model, "cls") else model.lm_head
    scores = decode(at_masks).softmax(dim=-1)
    best = scores.topk(BEST, dim=-1)
    asked = candidates[:, None, :].expand(-1, positions.shape[1], -1)
    return [best.values, best.indices, scores.gather(2, asked)]


def _token_vectors(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [model(**inputs).last_hidden_state]


def _vector(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """`model` is a SentenceTransformer: what pools and normalizes is part of its graph."""
    encoder, *after = model
    features = {
        "token_embeddings": encoder.auto_model(**inputs).last_hidden_state,
        "attention_mask": inputs["attention_mask"],
    }
    for module in after:
        features = module(features)
    return [features["sentence_embedding"]]


GRAPHS: dict[str, Callable[[Any, dict[str, torch.Tensor]], list[torch.Tensor]]] = {
    "sequence": _sequence,
    "tokens": _sequence,
    "spans": _spans,
    "masks": _masks,
    "token_vectors": _token_vectors,
    "vector": _vector,
}


def endpoint_of(family: Family, task: str, **changes: Any) -> Endpoint:
    """endpoint.json as convert would write it; `changes` replaces whole fields."""
    tokenizer = family.tokenizer()
    head = changes.pop("head", TASK_HEADS[task][0])
    axes = HEADS[head]
    roles = ["input_ids", "attention_mask", *(["token_type_ids"] * family.token_types)]
    pad, unknown, cls, _, mask = family.specials
    fields: dict[str, Any] = {
        "schema": 1,
        "bundle_version": 2,
        "bundle_hash": "",
        "task": task,
        "head": head,
        "inputs": [
            {"name": role, "role": role, "dtype": "INT32" if family.token_types else "INT64"}
            for role in (*roles, *axes.extra_roles)
        ],
        "outputs": [
            {"name": f"output_{at}", "dtype": "FP32", "dims": [-1] * len(row)}
            for at, row in enumerate(axes.outputs)
        ],
        "tokens": {
            "max_length": MAX_LENGTH,
            "buckets": BUCKETS,
            "pad_id": tokenizer.token_to_id(pad),
            "pad_token": pad,
            "pad_type_id": 0,
            "padding_side": family.padding_side,
            "truncate": task not in ("text-classification", "fill-mask", "feature-extraction"),
            "unk_id": tokenizer.token_to_id(unknown),
            "cls_id": tokenizer.token_to_id(cls),
        },
        "limits": {
            "max_texts": 50,
            "max_characters": 3000,
            "max_tokens": 12_000,
            "max_batch_size": 8,
        },
        "classification": {
            "labels": LABELS,
            "problem_type": "single_label",
            "activation": "softmax",
        },
        "embedding": {
            "pooling": "engine",
            "normalize": False,
            "dimensions": 32,
            "similarity": "cosine",
            "prompts": {},
            "default_prompt": None,
        },
        "masks": {
            "mask_token": mask,
            "mask_id": tokenizer.token_to_id(mask),
            "best": BEST,
        },
    }
    return read_endpoint(json.dumps({**fields, **changes}))


def serve(family: Family, task: str, model: torch.nn.Module, **changes: Any) -> Served:
    endpoint = endpoint_of(family, task, **changes)
    return Served(endpoint, family.tokenizer().to_str().encode(), model)


@cache
def pipeline_of(name: str, task: str, model: torch.nn.Module) -> Any:
    """transformers' own, in float32 on the CPU."""
    from transformers import pipeline

    make: Any = pipeline
    return make(task, model=model, tokenizer=FAMILIES[name].fast_tokenizer(), device="cpu")


def plain(value: Any) -> Any:
    """numpy's numbers as JSON would carry them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
