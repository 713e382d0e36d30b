"""What the numbers of an engine's output mean, by its head: labels, vectors, fillings of a mask.

Tested by tests/contract/test_endpoint.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields

PROBLEM_TYPES = ("single_label", "multi_label", "regression")
ACTIVATIONS = ("softmax", "sigmoid", "none")
POOLINGS = ("engine", "cls", "mean", "max", "lasttoken")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True)
class Classification:
    """Labels in the order of the output's columns.

    `activation` makes scores of logits where the request does not name a function of its own; for
    a cross-encoder, which has one label, it is the model's own. `entailment` is the column that
    says that a hypothesis follows, for zero-shot-classification (the last where no label is named
    so, as in the pipeline), else None.
    """

    labels: tuple[str, ...]
    problem_type: str
    activation: str
    entailment: int | None = None


@dataclass(frozen=True)
class Embedding:
    """`pooling` is 'engine' when the graph already pools; `dimensions` is the answer's width.

    `normalize` brings the whole vector to length one, before it is cut to `dimensions`; False when
    the graph does it. `prompts` holds texts by name that a request may have put before its own;
    `default_prompt` is the name of the one that is used when it does not say. The task
    rerank puts the prompts 'query' and 'document' before its query and texts, where they exist.
    """

    pooling: str
    normalize: bool
    dimensions: int
    similarity: str
    prompts: dict[str, str]
    default_prompt: str | None


@dataclass(frozen=True)
class Masks:
    """The token that stands for what is to be filled in, and how many fillings the graph gives.

    `cleans_up_spaces` is the tokenizer's clean_up_tokenization_spaces: decoded text then has no
    space before punctuation.
    """

    mask_token: str
    mask_id: int
    best: int
    cleans_up_spaces: bool = False


def read_classification(fields: Fields, task: str) -> Classification:
    inner = fields.inner("classification")
    labels = inner.texts("labels")
    if not labels or len(set(labels)) != len(labels):
        raise ContractError(f"{inner.where}: field 'labels' must be a list of different names")
    if task in ("sentence-similarity", "rerank") and len(labels) != 1:
        raise ContractError(
            f"{inner.where}: field 'labels' must hold one name for task '{task}', got {len(labels)}"
        )
    entailment = None
    if task == "zero-shot-classification":
        entailment = inner.number("entailment", low=0, high=len(labels) - 1)
    return Classification(
        labels,
        inner.choice("problem_type", PROBLEM_TYPES),
        inner.choice("activation", ACTIVATIONS),
        entailment,
    )


def read_embedding(fields: Fields, task: str, head: str) -> Embedding:
    inner = fields.inner("embedding")
    # Tokens' vectors that are themselves the answer are pooled nowhere.
    pooled_here = head == "token_vectors" and task == "sentence-embedding"
    poolings = POOLINGS[1:] if pooled_here else POOLINGS[:1]
    prompts = inner.take("prompts", dict)
    default = inner.optional("default_prompt", str)
    if not all(isinstance(text, str) for text in prompts.values()):
        raise ContractError(f"{inner.where}: field 'prompts' must hold texts by name")
    if default is not None and default not in prompts:
        raise ContractError(f"{inner.where}: field 'default_prompt' must be a name in prompts")
    return Embedding(
        pooling=inner.choice("pooling", poolings),
        normalize=inner.take("normalize", bool),
        dimensions=inner.number("dimensions", low=1, high=1_000_000),
        similarity=inner.choice("similarity", SIMILARITIES),
        prompts=prompts,
        default_prompt=default,
    )


def read_masks(fields: Fields) -> Masks:
    inner = fields.inner("masks")
    return Masks(
        mask_token=inner.take("mask_token", str),
        mask_id=inner.number("mask_id", low=0, high=2**31 - 1),
        best=inner.number("best", low=1, high=65_536),
        cleans_up_spaces=inner.take("cleans_up_spaces", bool, default=False),
    )
