from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference, models, pre_tokenizers, processors, trainers

from preprocess.answers import TASKS
from preprocess.request import Request, read_body
from preprocess.threads import OFF_LOOP_CHARACTERS
from preprocess.tokens import (
    _CHARACTERS_AT_ONCE,
    Encoded,
    Tokenizer,
    TokenTotal,
    check_rows,
    shared_tokenizer,
)
from preprocess.windows import Windows
from transformer_serving.contract.endpoint import Limits, read_endpoint
from transformer_serving.contract.errors import ServingError

LIMITS = Limits(max_texts=3, max_characters=100, max_tokens=11, max_batch_size=4)
ROW = Encoded([1], [0])


@pytest.fixture
def tokenizer(tokenizer_json: bytes, endpoint_json: str) -> Tokenizer:
    return Tokenizer(tokenizer_json, read_endpoint(endpoint_json).tokens)


def request_of(body: dict[str, Any], endpoint_json: str) -> Request:
    endpoint = read_endpoint(endpoint_json)
    return read_body(body, TASKS[endpoint.task](endpoint), endpoint.limits)


async def test_ids_are_the_tokenizers_own(
    tokenizer: Tokenizer, tokenizer_json: bytes, endpoint_json: str
) -> None:
    texts = ["the quick fox", "", "tea"]
    request = request_of({"text": texts}, endpoint_json)
    encoded = tokenizer.encode(request.texts, request.truncate, read_endpoint(endpoint_json).limits)
    reference = Reference.from_buffer(tokenizer_json).encode_batch(texts)
    assert [text.ids for text in encoded] == [row.ids for row in reference]


async def test_a_long_text_is_refused_with_its_length_or_cut(
    tokenizer: Tokenizer, tokenizer_json: bytes, endpoint_json: str
) -> None:
    limits = read_endpoint(endpoint_json).limits
    long = "the quick brown fox jumps over the lazy dog " * 10
    with pytest.raises(ServingError) as caught:
        tokenizer.encode([long], None, limits)
    length = len(Reference.from_buffer(tokenizer_json).encode(long).ids)
    assert (caught.value.kind.status, caught.value.limit, caught.value.got) == (413, 32, length)
    cut = tokenizer.encode([long], True, limits)
    assert len(cut[0].ids) == 32
    assert cut[0].ids[-1] == 3  # the closing [SEP] is kept


async def test_a_pair_has_type_ids(tokenizer: Tokenizer, endpoint_json: str) -> None:
    limits = read_endpoint(endpoint_json).limits
    encoded = tokenizer.encode([("tea", "rain")], None, limits)
    assert set(encoded[0].type_ids) == {0, 1}


async def test_too_many_tokens_together(tokenizer: Tokenizer, endpoint_json: str) -> None:
    request = request_of({"text": ["rain on the roof all night " * 4] * 90}, endpoint_json)
    assert sum(map(len, request.texts)) > OFF_LOOP_CHARACTERS  # so this one leaves the loop
    with pytest.raises(ServingError) as caught:
        tokenizer.encode(request.texts, request.truncate, read_endpoint(endpoint_json).limits)
    assert caught.value.limit == 2_000


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        # Special tokens included: two of one text, three of a pair.
        ("tea " * 30, True),
        ("tea " * 31, False),
        (("tea " * 14, "tea " * 15), True),
        (("tea " * 15, "tea " * 15), False),
    ],
    ids=["text", "long text", "pair", "long pair"],
)
def test_a_text_may_have_as_many_tokens_as_the_model_takes(
    tokenizer: Tokenizer, endpoint_json: str, text: str | tuple[str, str], fits: bool
) -> None:
    limits = read_endpoint(endpoint_json).limits
    if fits:
        assert [len(row.ids) for row in tokenizer.encode([text], None, limits)] == [32]
    else:
        with pytest.raises(ServingError) as caught:
            tokenizer.encode([text], None, limits)
        assert (caught.value.kind.code, caught.value.limit, caught.value.got) == (
            *("too_large", 32, 33),
        )


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_is_cut_at_its_side(tokenizer_json: bytes, endpoint_json: str, side: str) -> None:
    endpoint = read_endpoint(endpoint_json)
    made = Tokenizer(tokenizer_json, replace(endpoint.tokens, max_length=6, truncation_side=side))
    text = "rain fell on the roof all night"
    whole = Reference.from_buffer(tokenizer_json).encode(text, add_special_tokens=False).ids
    (row,) = made.encode([text], True, endpoint.limits)
    kept = whole[-4:] if side == "left" else whole[:4]
    assert len(whole) > 4
    assert row.ids == [2, *kept, 3]


@pytest.mark.parametrize("truncate", [False, True])
def test_texts_that_are_read_in_turns_are_all_read_in_their_order(
    tokenizer_json: bytes, endpoint_json: str, truncate: bool
) -> None:
    """Also pairs, and with one text longer than a turn."""
    made = Tokenizer(
        tokenizer_json, replace(read_endpoint(endpoint_json).tokens, max_length=90_000)
    )
    words = ["tea", "rain", "roof", "night"]
    given = [f"{word} " * (_CHARACTERS_AT_ONCE // 12) for word in words * 3]
    given.insert(5, "fox " * (_CHARACTERS_AT_ONCE // 3))
    pairs = [(text, "the quick fox") for text in given]
    limits = replace(LIMITS, max_tokens=1_000_000)
    for inputs in (given, pairs):
        together = made.encode(inputs, truncate, limits)
        assert together == [made.encode([one], truncate, limits)[0] for one in inputs]


def test_as_many_tokens_as_a_request_may_have_are_taken() -> None:
    rows = [Encoded([1] * size, [0] * size) for size in (5, 6)]
    check_rows(rows, LIMITS, None)
    total = TokenTotal(LIMITS)
    assert [total.add(row) for row in rows] == rows
    for more in (lambda: check_rows([*rows, ROW], LIMITS, None), lambda: total.add(ROW)):
        with pytest.raises(ServingError) as caught:
            more()
        assert (caught.value.kind.code, caught.value.limit, caught.value.got) == (
            *("too_large", 11, 12),
        )


def test_a_text_of_no_token_is_refused() -> None:
    """As one that a normalizer empties, where no special token stands around it."""
    empty = Encoded([], [])
    for asked in (
        lambda: check_rows([ROW, empty], LIMITS, None),
        lambda: check_rows([ROW, empty], LIMITS, 5),
        lambda: TokenTotal(LIMITS).add(empty),
    ):
        with pytest.raises(ServingError, match="a text has no tokens") as caught:
            asked()
        assert caught.value.kind.code == "impossible"


def byte_level(trimming: str) -> Reference:
    """A tokenizer whose tokens hold the space before a word, which offsets leave out."""
    reference = Reference(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    reference.train_from_iterator(["a kettle of tea"] * 4, trainer)
    special = [("<s>", 0), ("</s>", 1)]
    reference.post_processor = (
        processors.RobertaProcessing(special[1], special[0])
        if trimming == "roberta"
        else processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=True),
                processors.TemplateProcessing("<s> $A </s>", special_tokens=special),
            ]
        )
    )
    return reference


@pytest.mark.parametrize("trimming", ["roberta", "byte level"])
@pytest.mark.parametrize("kind", [Tokenizer, Windows])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("text", ["a kettle of tea", "a kettle  of tea " * 20])
def test_whole_texts_have_the_librarys_own_offsets(
    trimming: str, kind: type[Tokenizer | Windows], special: bool, text: str, endpoint_json: str
) -> None:
    reference = byte_level(trimming)
    made = kind(reference.to_str().encode(), read_endpoint(endpoint_json).tokens)
    [found] = made.whole([text], special=special)
    wanted = reference.encode(text, add_special_tokens=special)
    assert found.ids == wanted.ids
    assert found.offsets == wanted.offsets
    assert found.special_tokens_mask == wanted.special_tokens_mask


def test_a_whole_text_that_is_long_is_not_cut(tokenizer: Tokenizer) -> None:
    [found] = tokenizer.whole(["tea " * 100], special=True)
    assert (len(found), found.overflowing) == (102, [])


def test_one_tokenizer_serves_every_rebuild(
    tokenizer_json: bytes, endpoint_fields: dict[str, Any]
) -> None:
    tokens = read_endpoint(json.dumps(endpoint_fields)).tokens
    assert shared_tokenizer(Tokenizer, tokenizer_json, tokens) is shared_tokenizer(
        Tokenizer, tokenizer_json, tokens
    )
    endpoint_fields["tokens"]["truncate"] = True
    other = read_endpoint(json.dumps(endpoint_fields)).tokens
    assert shared_tokenizer(Tokenizer, tokenizer_json, tokens) is not shared_tokenizer(
        Tokenizer, tokenizer_json, other
    )


def test_a_tokenizer_that_serves_is_found_however_many_there_are(
    tokenizer_json: bytes, endpoint_json: str
) -> None:
    """The host builds all of them anew in one order, which a list of the latest would never hit."""
    tokens = read_endpoint(endpoint_json).tokens
    made = [replace(tokens, max_length=length) for length in range(10, 40)]
    serving = [shared_tokenizer(Tokenizer, tokenizer_json, one) for one in made]
    rebuilt = [shared_tokenizer(Tokenizer, tokenizer_json, one) for one in made]
    assert all(one is other for one, other in zip(serving, rebuilt, strict=True))
    # Of those that nobody has any more the latest are kept.
    gone = [weakref.ref(one) for one in serving]
    del serving, rebuilt
    gc.collect()
    kept = [ref() is not None for ref in gone]
    assert kept == [False] * 22 + [True] * 8


def test_a_tokenizer_that_is_asked_for_again_is_among_the_latest(
    tokenizer_json: bytes, endpoint_json: str
) -> None:
    tokens = read_endpoint(endpoint_json).tokens
    lengths = [*range(50, 58), 50, 58]
    gone = {
        length: weakref.ref(
            shared_tokenizer(Tokenizer, tokenizer_json, replace(tokens, max_length=length))
        )
        for length in lengths
    }
    gc.collect()
    assert [length for length, ref in gone.items() if ref() is None] == [51]
