"""Pieces together are what decoding everything at once gives, and none has half a character."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from preprocess.generation.detokenizer import BROKEN, Detokenizer, token_text

CORPUS = [
    "the quick brown fox 狐狸 跳过 the lazy dog",
    "Ünïcödé, naïve café – ‘tea’ 👩‍👩‍👧 🎉🎉 ok",
]
SPECIAL = ["<s>", "</s>"]
CLEANED = "clean_up_tokenization_spaces"
TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("ab  狐👩🎉é\u200d\n")), max_size=60
)


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def sentence_piece() -> Tokenizer:
    """As Llama's: a space before the text, bytes for what the vocabulary lacks."""
    pieces = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "t", "h", "e", "▁t", "▁th", "▁the", "狐", "q", "▁q"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "q")]
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    made = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    made.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return made


TOKENIZERS = {"byte-level": byte_level(), "SentencePiece": sentence_piece()}


def pieces_of(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*(detokenizer.step(token) for token in tokens), detokenizer.rest()]


def decoded(tokenizer: Tokenizer, tokens: list[int]) -> str:
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=150)
def test_pieces_of_any_text_are_the_whole(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(data.draw(TEXTS), add_special_tokens=False).ids
    for at in data.draw(st.lists(st.integers(0, len(tokens)), max_size=3)):
        tokens.insert(at, data.draw(st.sampled_from([0, 1])))
    cut = data.draw(st.integers(0, len(tokens)))
    # A prompt is a text, and ends with a whole character.
    while decoded(tokenizer, tokens[:cut]).endswith(BROKEN):
        cut -= 1
    pieces = pieces_of(tokenizer, tokens[:cut], tokens[cut:])
    whole = decoded(tokenizer, tokens)
    assert decoded(tokenizer, tokens[:cut]) + "".join(pieces) == whole
    if BROKEN not in whole:
        assert BROKEN not in "".join(pieces)


@given(tokens=st.lists(st.integers(0, 329), max_size=120))
@settings(max_examples=150)
def test_bytes_that_are_no_text_are_given_as_the_whole_has_them(tokens: list[int]) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert "".join(pieces_of(tokenizer, [], tokens)) == decoded(tokenizer, tokens)


@given(tokens=st.lists(st.integers(0, 270), max_size=120))
@settings(max_examples=150)
def test_no_tokens_break_it(tokens: list[int]) -> None:
    """SentencePiece's decoder takes a whole row of bytes back when one of it is wrong."""
    "".join(pieces_of(TOKENIZERS["SentencePiece"], [], tokens)).encode()


def test_a_character_comes_when_it_is_whole() -> None:
    tokenizer = TOKENIZERS["SentencePiece"]
    tokens = tokenizer.encode("a🎉b", add_special_tokens=False).ids
    pieces = pieces_of(tokenizer, [], tokens)
    assert [piece for piece in pieces if piece] == ["a", "🎉", "b"]


def test_the_space_before_the_first_new_word_stays() -> None:
    tokenizer = TOKENIZERS["SentencePiece"]
    the = tokenizer.token_to_id("▁the")
    assert pieces_of(tokenizer, [the], [the])[0] == " the"
    # Behind a special token too, where decoding the new tokens alone would strip it.
    assert pieces_of(tokenizer, [the, 1], [the])[0] == " the"


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100)
def test_a_token_alone_has_the_text_of_its_piece(name: str, data: st.DataObject) -> None:
    """But one that is a part of a character."""
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode("the " + data.draw(TEXTS), add_special_tokens=False).ids
    pieces = pieces_of(tokenizer, tokens[:1], tokens[1:])
    for token, piece in zip(tokens[1:], pieces, strict=False):
        text = token_text(tokenizer, token)
        assert BROKEN in text or text == piece


def test_a_token_alone_keeps_its_space_without_special_tokens_too() -> None:
    made = sentence_piece()
    vocabulary = made.get_vocab()
    bare = Tokenizer(models.WordLevel({"<0x41>": 0, "▁": 1, "▁the": 2}, "▁"))
    bare.decoder = made.decoder
    assert token_text(made, vocabulary["▁the"]) == token_text(bare, 2) == " the"
    assert token_text(made, vocabulary["<0x41>"]) == token_text(bare, 0) == "A"
    assert token_text(made, vocabulary["<0xE7>"]) == BROKEN
    assert token_text(made, 9999) == ""


@pytest.mark.slow
def test_spaces_stay_that_transformers_pipeline_takes_out() -> None:
    """As docs/api.md says of text-generation."""
    from transformers import PreTrainedTokenizerFast, TextGenerationPipeline

    cleaned = signature(TextGenerationPipeline.postprocess).parameters[CLEANED].default
    tokenizer, text = TOKENIZERS["byte-level"], "a != b , then"
    ids = tokenizer.encode(text).ids
    assert "".join(pieces_of(tokenizer, [], ids)) == text
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert theirs.decode(ids, **{CLEANED: cleaned}) == "a!= b, then"


def test_endless_broken_bytes_are_not_held_for_ever() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    broken = tokenizer.token_to_id("Ä")  # 0xC4, the beginning of two bytes
    pieces = pieces_of(tokenizer, [], [broken] * 100)
    assert any(pieces[:40])
    assert "".join(pieces) == BROKEN * 100


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    assert pieces_of(TOKENIZERS["byte-level"], [], [9999]) == ["", ""]


class Prompt(Sequence[int]):
    """So many tokens, and how many of them were looked at."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids
        self.looks = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return self.ids[at]


@pytest.mark.parametrize("made", [byte_level(), sentence_piece()])
def test_of_a_long_prompt_the_end_is_looked_at(made: Tokenizer) -> None:
    """Each of its sequences does so in the event loop."""
    ids = made.encode("the tea " * 1000).ids
    long, short = Prompt(ids), Prompt(ids[-30:])
    new = made.encode("the ab").ids
    said = []
    for prompt in (long, short):
        detokenizer = Detokenizer(made, prompt)
        said.append("".join([*map(detokenizer.step, new), detokenizer.rest()]))
    assert said[0] == said[1] == made.decode([*ids, *new])[len(made.decode(ids)) :]
    assert long.looks < 20
