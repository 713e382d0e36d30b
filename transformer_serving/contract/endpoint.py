"""endpoint.json: what preprocess must know about the model it serves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, parse_object
from transformer_serving.contract.generation import Generation, read_generation
from transformer_serving.contract.heads import (
    ENDPOINT_TASKS,
    EXTRA_ROLES,
    GENERATION,
    HEADS,
    TASK_HEADS,
    TOKEN_ROLES,
)
from transformer_serving.contract.meanings import (
    Classification,
    Embedding,
    Masks,
    read_classification,
    read_embedding,
    read_masks,
)

SCHEMA = 1
INPUT_DTYPES = ("INT32", "INT64")
OUTPUT_DTYPES = ("FP32", "FP16", "BF16", "INT32", "INT64")
MAX_VERSION = 2**53 - 1


@dataclass(frozen=True)
class InputTensor:
    """One input of the engine, shape [texts, tokens] or, for an extra role, [texts, n]."""

    name: str
    role: str
    dtype: str


@dataclass(frozen=True)
class OutputTensor:
    """An output of the engine; `dims` without the batch dimension, -1 for an axis of any size.

    What the axes are stands in contract.heads, in the order of the head's outputs.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Tokens:
    """How texts become token ids: lengths in tokens, special tokens included.

    `truncate` says what happens to a longer text when the request does not say: cut, as the
    reference of every task but text-classification, fill-mask and feature-extraction does, or
    refused. `truncation_side` is the end that is cut off. `unk_id` stands for a piece of text that
    the vocabulary lacks, `cls_id` for the token that question-answering may point at when there is
    no answer; None where the tokenizer has no such token. `padding_side` is where calls are padded,
    `question_first` whether question-answering puts the question before its context.
    `split_special_tokens`: special tokens that a text writes out are words as others, not tokens.
    `known_ids` is how many ids the model has rows for, where the tokenizer gives more; None where
    it does not, or nobody knows.
    """

    max_length: int
    buckets: tuple[int, ...]
    pad_id: int
    pad_token: str
    pad_type_id: int
    padding_side: str
    truncate: bool
    truncation_side: str = "right"
    unk_id: int | None = None
    cls_id: int | None = None
    question_first: bool = True
    split_special_tokens: bool = False
    known_ids: int | None = None


@dataclass(frozen=True)
class Limits:
    """What one request may ask for: texts, characters of one text, tokens of all texts.

    `max_batch_size` texts and `max_call_tokens` tokens, padding included, are the most of one
    engine call; None where only the texts count. A single text may have more tokens.
    """

    max_texts: int
    max_characters: int
    max_tokens: int
    max_batch_size: int
    max_call_tokens: int | None = None


@dataclass(frozen=True)
class Recorded:
    """What the endpoint's golden body was seen to answer; numbers may differ by `tolerance`."""

    answer: Any
    tolerance: float


@dataclass(frozen=True)
class Endpoint:
    """endpoint.json, checked. `bundle_version` is the Triton model version to call.

    `classification` is there for heads with labels, `embedding` for those with vectors, `masks`
    for head 'masks', `generation` for task text-generation. `golden` is a body that the endpoint
    must be able to answer, for health and first tries; None: any short `text` will do. `recorded`
    is its answer, which bundles of older kits do not have.
    """

    bundle_version: int
    bundle_hash: str
    task: str
    head: str
    inputs: tuple[InputTensor, ...]
    outputs: tuple[OutputTensor, ...]
    tokens: Tokens
    limits: Limits
    classification: Classification | None
    embedding: Embedding | None
    masks: Masks | None
    golden: dict[str, Any] | None = None
    recorded: Recorded | None = None
    generation: Generation | None = None

    def to_json(self) -> str:
        fields = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def read_endpoint(text: str | bytes, where: str = "endpoint.json") -> Endpoint:
    """Parse and check endpoint.json. Raises ContractError naming field, limit and got."""
    fields = parse_object(text, where)
    fields.number("schema", low=SCHEMA, high=SCHEMA)
    task = fields.choice("task", ENDPOINT_TASKS)
    head = fields.choice("head", TASK_HEADS.get(task, ("generation",)))
    endpoint = Endpoint(
        bundle_version=fields.number("bundle_version", low=1, high=MAX_VERSION),
        bundle_hash=fields.take("bundle_hash", str),
        task=task,
        head=head,
        inputs=tuple(_input(row) for row in fields.rows("inputs")),
        outputs=tuple(_output(row) for row in fields.rows("outputs")),
        tokens=_tokens(fields.inner("tokens")),
        limits=_limits(fields.inner("limits")),
        classification=read_classification(fields, task)
        if head in ("sequence", "tokens")
        else None,
        embedding=read_embedding(fields, task, head)
        if head in ("vector", "token_vectors")
        else None,
        masks=read_masks(fields) if head == "masks" else None,
        golden=fields.optional("golden", dict),
        recorded=_recorded(fields),
        generation=read_generation(fields.inner("generation")) if task == GENERATION else None,
    )
    _check_tensors(endpoint, where)
    return endpoint


def _recorded(fields: Fields) -> Recorded | None:
    if fields.values.get("recorded") is None:
        return None
    inner = fields.inner("recorded")
    return Recorded(inner.values.get("answer"), inner.take("tolerance", float))


def _input(fields: Fields) -> InputTensor:
    return InputTensor(
        fields.take("name", str),
        fields.choice("role", (*TOKEN_ROLES, *EXTRA_ROLES)),
        fields.choice("dtype", INPUT_DTYPES),
    )


def _output(fields: Fields) -> OutputTensor:
    dims: list[Any] = fields.take("dims", list)
    if not dims or not all(type(dim) is int and (dim > 0 or dim == -1) for dim in dims):
        raise ContractError(f"{fields.where}: field 'dims' must be a list of sizes or -1")
    return OutputTensor(
        fields.take("name", str), fields.choice("dtype", OUTPUT_DTYPES), tuple(dims)
    )


def _tokens(fields: Fields) -> Tokens:
    max_length = fields.number("max_length", low=1, high=1_000_000)
    buckets: list[Any] = fields.take("buckets", list)
    if (
        not buckets
        or not all(type(size) is int and size > 0 for size in buckets)
        or buckets != sorted(set(buckets))
        or buckets[-1] != max_length
    ):
        raise ContractError(
            f"{fields.where}: field 'buckets' must rise strictly and end with max_length "
            f"{max_length}"
        )
    side = fields.choice("padding_side", ("right", "left"))
    return Tokens(
        max_length=max_length,
        buckets=tuple(buckets),
        pad_id=fields.number("pad_id", low=0, high=2**31 - 1),
        pad_token=fields.take("pad_token", str),
        pad_type_id=fields.number("pad_type_id", low=0, high=255),
        padding_side=side,
        truncate=fields.take("truncate", bool),
        truncation_side=fields.choice("truncation_side", ("right", "left"), default="right"),
        unk_id=_optional_id(fields, "unk_id"),
        cls_id=_optional_id(fields, "cls_id"),
        # What the reference does with a tokenizer that pads on that side.
        question_first=fields.take("question_first", bool, default=side == "right"),
        split_special_tokens=fields.take("split_special_tokens", bool, default=False),
        known_ids=_optional_number(fields, "known_ids", low=1, high=2**31 - 1),
    )


def _optional_id(fields: Fields, name: str) -> int | None:
    return _optional_number(fields, name, low=0, high=2**31 - 1)


def _optional_number(fields: Fields, name: str, *, low: int, high: int) -> int | None:
    absent = fields.values.get(name) is None
    return None if absent else fields.number(name, low=low, high=high)


def _limits(fields: Fields) -> Limits:
    return Limits(
        max_texts=fields.number("max_texts", low=1, high=1_000_000),
        max_characters=fields.number("max_characters", low=1, high=100_000_000),
        max_tokens=fields.number("max_tokens", low=1, high=100_000_000),
        max_batch_size=fields.number("max_batch_size", low=1, high=65_536),
        max_call_tokens=_optional_number(fields, "max_call_tokens", low=1, high=100_000_000),
    )


def _check_tensors(endpoint: Endpoint, where: str) -> None:
    head = HEADS[endpoint.head]
    roles = [tensor.role for tensor in endpoint.inputs]
    if "input_ids" not in roles or len(set(roles)) != len(roles):
        raise ContractError(f"{where}: field 'inputs' must name input_ids, and no role twice")
    if sorted(set(roles) - set(TOKEN_ROLES)) != sorted(head.extra_roles):
        wanted = ", ".join(head.extra_roles) or "none"
        raise ContractError(
            f"{where}: field 'inputs' must have these roles beside the tokens': {wanted}"
        )
    if [len(tensor.dims) for tensor in endpoint.outputs] != [len(row) for row in head.outputs]:
        wanted = "; ".join(f"[{', '.join(axes)}]" for axes in head.outputs)
        raise ContractError(f"{where}: field 'outputs' must have the axes {wanted}")
