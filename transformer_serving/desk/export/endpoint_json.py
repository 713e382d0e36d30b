"""endpoint.json of a converted model: what preprocess must know, from source and graph.

Tested by tests/export/test_onnx.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from transformer_serving.contract.endpoint import Endpoint, InputTensor, Limits, Tokens
from transformer_serving.contract.meanings import Classification, Embedding, Masks
from transformer_serving.desk.export.onnx import GraphTensors
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.config import LONGEST_UNASKED
from transformer_serving.desk.source.model import NO_MASK, ModelSource
from transformer_serving.desk.source.sentence import has_modules

LIMITS = Limits(max_texts=1024, max_characters=200_000, max_tokens=262_144, max_batch_size=64)
# As many as OpenAI takes: of texts each gives one vector, for whose numbers answers have a bound of
# their own (preprocess/answers/embedding.py), met at a width of 4,096.
_MANY_TEXTS = dict.fromkeys(("sentence-embedding", "sentence-similarity"), 2048)
# Where no file of the model says how long a text may be.
_LONGEST_UNSAID = 512
# Whose references refuse or fail where a text is too long.
_UNCUT_TASKS = ("text-classification", "fill-mask", "feature-extraction")
# Whose references cut where the tokenizer says, and nowhere where it does not; the others' cut.
TASKS_CUT_BY_TOKENIZER = ("token-classification", "zero-shot-classification")


def limits_of(task: str, limits: Limits = LIMITS) -> Limits:
    """Those of the task, where nobody has said others."""
    if limits.max_texts != LIMITS.max_texts:
        return limits
    return replace(limits, max_texts=_MANY_TEXTS.get(task, limits.max_texts))


def cuts_unasked(task: str, own_limit: int | None, longest: int) -> bool:
    """Whether the task's reference cuts a text of more than `longest` tokens there, or before.

    `own_limit` is the tokenizer's, in tokens, None where it says none.
    """
    if task in TASKS_CUT_BY_TOKENIZER:
        return own_limit is not None and own_limit <= longest
    return task not in _UNCUT_TASKS


def ending_at(longest: int, buckets: Iterable[int]) -> tuple[int, ...]:
    """Those of `buckets` below the longest text, in order, and itself."""
    return (*sorted({size for size in buckets if 0 < size < longest}), longest)


def tokens_of(source: ModelSource, max_length: int | None, buckets: Sequence[int]) -> Tokens:
    """Lengths and padding of the endpoint. Raises ConversionRefused for a max_length too long, or
    without room for a text."""
    longest = max_length or min(source.max_length or _LONGEST_UNSAID, LONGEST_UNASKED)
    tokenizer = source.tokenizer
    tokenizer.check_longest(longest, source.max_length, source.head)
    return Tokens(
        max_length=longest,
        buckets=ending_at(longest, buckets),
        pad_id=tokenizer.pad_id,
        pad_token=tokenizer.pad_token,
        pad_type_id=tokenizer.pad_type_id,
        # Whatever the tokenizer says, which is meant for generating: positions count from the left
        # and heads read the first token, or find the last one by the mask.
        padding_side="right",
        truncate=cuts_unasked(source.task, tokenizer.max_length, longest),
        truncation_side=tokenizer.truncation_side,
        unk_id=tokenizer.unk_id,
        cls_id=tokenizer.cls_id,
        question_first=tokenizer.padding_side == "right",
        split_special_tokens=tokenizer.split_special_tokens,
        known_ids=tokenizer.known_ids(source.vocabulary),
    )


def remarks_of(source: ModelSource, tokens: Tokens, asked: int | None) -> tuple[str, ...]:
    """What the owner is to know of the lengths of the endpoint's texts, of a pooling that nobody
    has said, and of a tokenizer that may be another model's; `asked` is --max-length."""
    found = (
        source.tokenizer.remark_of_fewer(source.vocabulary),
        _pooled_unsaid(source),
        _shorter_than_the_model(source, tokens, asked),
        remark_of_uncut(source.task, source.tokenizer.max_length, tokens),
    )
    return tuple(remark for remark in found if remark)


def remark_of_uncut(task: str, own_limit: int | None, tokens: Tokens) -> str | None:
    """What is said where others of the kind cut, and this one's reference does not; `own_limit` as
    of cuts_unasked."""
    if task not in TASKS_CUT_BY_TOKENIZER or tokens.truncate:
        return None
    longer = (
        "says no longest text (model_max_length)"
        if own_limit is None
        else f"cuts at {own_limit} tokens"
    )
    return (
        f"texts of more than {tokens.max_length} tokens are refused with 413 and not cut, unless "
        f"a request says truncate: the tokenizer {longer}, so the reference would not cut them "
        f"there; where they are to be cut, set model_max_length to {tokens.max_length} in the "
        "tokenizer_config.json of a copy of the model"
    )


def _pooled_unsaid(source: ModelSource) -> str | None:
    if source.head != "vector" or has_modules(source.folder):
        return None
    if source.sentence is not None and source.sentence.pooling is not None:
        return None
    return (
        "the model has no modules.json, which would say how it pools: a text's vector is what "
        "sentence-transformers takes then, the mean of its tokens', of a …ForCausalLM its last "
        "token's; --pooling says otherwise"
    )


def _shorter_than_the_model(source: ModelSource, tokens: Tokens, asked: int | None) -> str | None:
    """What is said of an endpoint whose texts are shorter than its model's without being asked."""
    if asked is not None or tokens.max_length == source.max_length:
        return None
    fate = "cut" if tokens.truncate else "refused with 413"
    if source.max_length is None:
        return (
            f"no file of the model says how long a text may be: the endpoint takes up to "
            f"{tokens.max_length} tokens; longer ones are {fate}; --max-length N takes longer "
            "ones, as far as parity finds them answered alike"
        )
    return (
        f"the endpoint takes texts of up to {tokens.max_length} tokens, the model up to "
        f"{source.max_length}; longer ones are {fate}; --max-length {source.max_length} takes "
        "them all, with gigabytes for the attention over one"
    )


def endpoint_of(
    source: ModelSource,
    graph: GraphTensors,
    tokens: Tokens,
    limits: Limits,
    golden: dict[str, Any] | None = None,
) -> Endpoint:
    """endpoint.json of the graph, its version and hash still empty.

    Raises ConversionRefused when the graph's columns are not the labels.
    """
    width = graph.outputs[0].dims[-1]
    return Endpoint(
        bundle_version=0,
        bundle_hash="",
        task=source.task,
        head=source.head,
        inputs=tuple(InputTensor(name, role=name, dtype="INT32") for name in graph.inputs),
        outputs=graph.outputs,
        tokens=tokens,
        limits=limits,
        classification=_classification(source, width),
        embedding=_embedding(source, width),
        masks=_masks(source, width) if source.head == "masks" else None,
        golden=golden,
    )


def _classification(source: ModelSource, columns: int) -> Classification | None:
    given = source.classification
    if given is not None and columns != len(given.labels):
        raise ConversionRefused(
            f"the model has {columns} columns and id2label {len(given.labels)} names; correct "
            "config.json"
        )
    return given


def _embedding(source: ModelSource, width: int) -> Embedding | None:
    if source.sentence is None:
        return None
    return Embedding(
        pooling="engine",
        # The graph has normalized already where the model does.
        normalize=False,
        dimensions=min(width, source.sentence.dimensions or width),
        similarity=source.sentence.similarity,
        prompts=source.sentence.prompts,
        default_prompt=source.sentence.default_prompt,
    )


def _masks(source: ModelSource, best: int) -> Masks:
    tokenizer = source.tokenizer
    if tokenizer.mask_id is None or tokenizer.mask_token is None:
        raise ConversionRefused(NO_MASK)
    return Masks(tokenizer.mask_token, tokenizer.mask_id, best, tokenizer.cleans_up_spaces)
