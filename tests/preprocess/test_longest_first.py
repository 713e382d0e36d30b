"""Rows that are cut are the tokenizers library's own, without the windows that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Library, processors

from preprocess.answers import TASKS
from preprocess.request import read_body
from preprocess.rows import pad
from preprocess.tokens import Tokenizer
from tests.preprocess.answers.families import FAMILIES
from tests.preprocess.answers.served import endpoint_of
from tests.preprocess.test_same_tokens import LIMITS, TOKENS
from transformer_serving.contract.endpoint import InputTensor
from transformer_serving.contract.errors import ServingError

WORDS = ["tea", "Zürich", "rain", "🙂", "an", "unheard", "naïve", "[SEP]", "</s>", "\n", "中文"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)


def finished(family: str, finish: Any) -> Callable[[], Library]:
    def make() -> Library:
        library = FAMILIES[family].tokenizer()
        library.post_processor = finish
        return library

    return make


def template(pair: str) -> Any:
    special = [("<s>", 0), ("</s>", 2)]
    return processors.TemplateProcessing("<s> $A </s>", pair, special)


MADE: dict[str, Callable[[], Library]] = {
    # WordPiece, GPT-2's bytes with Roberta's pairs, and Unigram with those of XLM-R.
    **{name: FAMILIES[name].tokenizer for name in ("bert", "roberta", "xlm-roberta")},
    "BERT's own": finished("bert", processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))),
    "second first": finished("xlm-roberta", template("<s> $B </s> $A:1 </s>:1")),
    "without special tokens": finished("roberta", processors.ByteLevel()),
    "bytes and a template": finished(
        "roberta",
        processors.Sequence([processors.ByteLevel(), template("<s> $A </s> </s> $B </s>")]),
    ),
}


def made(kind: str, longest: int, side: str) -> tuple[Tokenizer, Library, Library]:
    """Ours, the library's with its truncation, and the library's without."""
    tokens = replace(TOKENS, max_length=longest, truncation_side=side, buckets=(longest,))
    ours = Tokenizer(MADE[kind]().to_str().encode(), tokens)
    cutting, whole = MADE[kind](), MADE[kind]()
    cutting.enable_truncation(longest, direction=side)
    return ours, cutting, whole


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("longest", [4, 5, 12, 13])
@pytest.mark.parametrize("kind", MADE)
def test_rows_are_the_librarys_own(kind: str, longest: int, side: str) -> None:
    ours, cutting, whole = made(kind, longest, side)

    @settings(max_examples=40, deadline=None)
    @given(TEXTS, TEXTS)
    def check(first: str, second: str) -> None:
        for asked in ((first, second), first or "tea"):
            given = asked if isinstance(asked, tuple) else (asked,)
            wanted, size = cutting.encode(*given), len(whole.encode(*given).ids)
            if size:
                [row] = ours.encode([asked], True, LIMITS)
                assert (row.ids, row.type_ids) == (wanted.ids, wanted.type_ids)
            if size > longest:
                with pytest.raises(ServingError) as caught:
                    ours.encode([asked], False, LIMITS)
                assert (caught.value.limit, caught.value.got) == (longest, size)

    check()


@pytest.mark.parametrize("padded", ["right", "left"])
def test_cut_pairs_are_padded_as_the_library_pads_them(padded: str) -> None:
    ours, cutting, _ = made("bert", 12, "right")
    cutting.enable_padding(direction=padded, length=12)
    pairs = [("tea " * 20, "rain " * 20), ("tea", "rain")]
    roles = ("input_ids", "token_type_ids", "attention_mask")
    inputs = [InputTensor(role, role, "INT32") for role in roles]
    tokens = replace(ours._tokens, padding_side=padded)
    found = pad(ours.encode(pairs, True, LIMITS), 12, inputs, tokens)
    wanted = cutting.encode_batch(pairs)
    for tensor, name in zip(found, ("ids", "type_ids", "attention_mask"), strict=True):
        assert tensor.array.tolist() == [getattr(row, name) for row in wanted]


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each time that the library was asked, how many encodings it made, windows and all."""
    counted: list[int] = []
    own = Tokenizer._encoded

    def encoded(self: Tokenizer, inputs: Any) -> Any:
        rows = own(self, inputs)
        counted.append(sum(1 + len(row.overflowing) for row in rows))
        return rows

    monkeypatch.setattr(Tokenizer, "_encoded", encoded)
    return counted


BOTH_LONG = ("tea " * 300, "rain " * 300)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_a_pair_of_long_texts_is_one_encoding(kind: str, cut: bool, encodings: list[int]) -> None:
    ours, _, _ = made(kind, 16, "right")
    try:
        ours.encode([BOTH_LONG], cut, LIMITS)
    except ServingError:
        assert not cut
    assert encodings == [1]


@pytest.mark.parametrize("pairs", [[("tea", "rain")] * 32, [("tea", "rain " * 50)] * 32])
def test_pairs_are_tokenized_once_whether_they_fit_or_not(
    pairs: list[Any], encodings: list[int]
) -> None:
    ours, _, _ = made("bert", 16, "right")
    ours.encode(pairs, True, LIMITS)
    assert encodings == [32]


BODIES: dict[str, Any] = {
    "text-classification": {"text": [BOTH_LONG[0]] * 3, "text_pair": [BOTH_LONG[1]] * 3},
    "rerank": {"query": BOTH_LONG[0], "texts": [BOTH_LONG[1]] * 3},
    "sentence-similarity": {"source_sentence": BOTH_LONG[0], "sentences": [BOTH_LONG[1]] * 3},
}


@pytest.mark.parametrize("task", BODIES)
def test_every_task_of_pairs_makes_an_encoding_a_pair(task: str, encodings: list[int]) -> None:
    endpoint = endpoint_of(
        FAMILIES["bert"], task, head="sequence", embedding=None,
        classification={
            "labels": ["score"], "problem_type": "single_label", "activation": "sigmoid"
        },
    )  # fmt: skip
    asked = TASKS[task](endpoint)
    request = read_body({**BODIES[task], "truncate": True}, asked, endpoint.limits)
    tokenizer = asked.tokenizer(MADE["bert"]().to_str().encode(), endpoint.tokens)
    work = asked.encode(request, tokenizer)
    assert [len(row.ids) for row in work.encoded] == [endpoint.tokens.max_length] * 3
    assert encodings == [3]
    # The threads count what is tokenized: both texts of every pair.
    assert request.characters >= 3 * sum(map(len, BOTH_LONG))


def test_many_long_texts_are_not_all_held_at_once(encodings: list[int]) -> None:
    ours, _, _ = made("xlm-roberta", 16, "right")
    # The library would make a million windows of each.
    pairs = [("tea " * 6000, "rain " * 2000 + str(at)) for at in range(8)]
    [alone] = ours.encode([BOTH_LONG], True, LIMITS)
    assert ours.encode(pairs, True, LIMITS) == [alone] * 8
    assert encodings == [1, *[2] * 4]
