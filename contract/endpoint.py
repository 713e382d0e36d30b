"""endpoint.json: what preprocess must know about the model it serves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from contract.errors import ContractError
from contract.fields import Fields, parse_object

SCHEMA = 1
TASKS = ("text-classification", "sentence-embedding")
PROBLEM_TYPES = ("single_label", "multi_label")
POOLINGS = ("engine", "cls", "mean", "max", "lasttoken")
INPUT_ROLES = ("input_ids", "token_type_ids", "attention_mask")
INPUT_DTYPES = ("INT32", "INT64")
OUTPUT_DTYPES = ("FP32", "FP16", "BF16")
MAX_VERSION = 2**53 - 1


@dataclass(frozen=True)
class InputTensor:
    """One input of the engine, shape [texts, tokens]; `role` says what the tokenizer puts in."""

    name: str
    role: str
    dtype: str


@dataclass(frozen=True)
class OutputTensor:
    """The output of the engine; `dims` without the batch dimension, -1 for the token axis."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Tokens:
    """How texts become token ids: lengths in tokens, special tokens included.

    `truncate` says what happens to a longer text when the request does not say: cut, or refused.
    """

    max_length: int
    buckets: tuple[int, ...]
    pad_id: int
    pad_token: str
    pad_type_id: int
    padding_side: str
    truncate: bool


@dataclass(frozen=True)
class Limits:
    """What one request may ask for: texts, characters of one text, tokens of all texts."""

    max_texts: int
    max_characters: int
    max_tokens: int
    max_batch_size: int


@dataclass(frozen=True)
class Classification:
    """Labels in the order of the output's columns."""

    labels: tuple[str, ...]
    problem_type: str


@dataclass(frozen=True)
class Embedding:
    """`pooling` is 'engine' when the graph already pools; `dimensions` is the answer's width."""

    pooling: str
    normalize: bool
    dimensions: int


@dataclass(frozen=True)
class Endpoint:
    """endpoint.json, checked. `bundle_version` is the Triton model version to call."""

    bundle_version: int
    bundle_hash: str
    task: str
    inputs: tuple[InputTensor, ...]
    output: OutputTensor
    tokens: Tokens
    limits: Limits
    classification: Classification | None
    embedding: Embedding | None

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def read_endpoint(text: str | bytes, where: str = "endpoint.json") -> Endpoint:
    """Parse and check endpoint.json. Raises ContractError naming field, limit and got."""
    fields = parse_object(text, where)
    fields.number("schema", low=SCHEMA, high=SCHEMA)
    task = fields.choice("task", TASKS)
    endpoint = Endpoint(
        bundle_version=fields.number("bundle_version", low=1, high=MAX_VERSION),
        bundle_hash=fields.take("bundle_hash", str),
        task=task,
        inputs=tuple(_input(row) for row in fields.rows("inputs")),
        output=_output(fields.inner("output")),
        tokens=_tokens(fields.inner("tokens")),
        limits=_limits(fields.inner("limits")),
        classification=_classification(fields) if task == "text-classification" else None,
        embedding=_embedding(fields) if task == "sentence-embedding" else None,
    )
    _check_inputs(endpoint.inputs, where)
    return endpoint


def _input(fields: Fields) -> InputTensor:
    return InputTensor(
        fields.take("name", str),
        fields.choice("role", INPUT_ROLES),
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
    return Tokens(
        max_length=max_length,
        buckets=tuple(buckets),
        pad_id=fields.number("pad_id", low=0, high=2**31 - 1),
        pad_token=fields.take("pad_token", str),
        pad_type_id=fields.number("pad_type_id", low=0, high=255),
        padding_side=fields.choice("padding_side", ("right", "left")),
        truncate=fields.take("truncate", bool),
    )


def _limits(fields: Fields) -> Limits:
    return Limits(
        max_texts=fields.number("max_texts", low=1, high=1_000_000),
        max_characters=fields.number("max_characters", low=1, high=100_000_000),
        max_tokens=fields.number("max_tokens", low=1, high=100_000_000),
        max_batch_size=fields.number("max_batch_size", low=1, high=65_536),
    )


def _classification(fields: Fields) -> Classification:
    inner = fields.inner("classification")
    labels = inner.texts("labels")
    if not labels or len(set(labels)) != len(labels):
        raise ContractError(f"{inner.where}: field 'labels' must be a list of different names")
    return Classification(labels, inner.choice("problem_type", PROBLEM_TYPES))


def _embedding(fields: Fields) -> Embedding:
    inner = fields.inner("embedding")
    return Embedding(
        pooling=inner.choice("pooling", POOLINGS),
        normalize=inner.take("normalize", bool),
        dimensions=inner.number("dimensions", low=1, high=1_000_000),
    )


def _check_inputs(inputs: tuple[InputTensor, ...], where: str) -> None:
    roles = [tensor.role for tensor in inputs]
    if "input_ids" not in roles or len(set(roles)) != len(roles):
        raise ContractError(f"{where}: field 'inputs' must name input_ids, and no role twice")
