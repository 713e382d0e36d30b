"""What costs less gives the library's own tokens, of any text and any tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer as Library,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from preprocess.same_tokens import Beginning, is_plain, plain_library
from preprocess.tokens import Tokenizer
from transformer_serving.contract.endpoint import Limits, Tokens
from transformer_serving.contract.errors import ServingError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LIMITS = Limits(max_texts=9, max_characters=10**6, max_tokens=10**6, max_batch_size=8)
TOKENS = Tokens(8, (8,), 0, "[PAD]", 0, "right", truncate=True)
WORDS = ["Tea", "it's", "kettle", "ΣΑΣ", "café", "e\u0301", "\u0301", "中文", "x1!?", "[MASK]",
         "[mask]", "hot kettle", "w" * 12, "\x1f", "\x00", "🙂", "İ", "한국", "_"]  # fmt: skip
BLANKS = [" ", "  ", "\n", "\t", " \n ", "\n ", "\x1f ", "\u2028 ", "\u3000", "\u00a0 ", "\x85", ""]
PIECES = st.sampled_from(WORDS + BLANKS * 2)
# Lists are mostly short: half of them are to be longer than what a beginning leaves in.
TEXTS = (st.lists(PIECES, max_size=90) | st.lists(PIECES, min_size=40, max_size=90)).map("".join)
PRINTABLE = [chr(number) for number in range(32, 127)]


def finished(library: Library) -> Library:
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    return library


def bert(**options: Any) -> Library:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(**options)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)
    library.train_from_iterator([" ".join(WORDS), "".join(PRINTABLE)] * 3, trainer)
    return finished(library)


def byte_level() -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    library.train_from_iterator([" ".join(WORDS), "tea  \n tea\n\n tea"] * 3, trainer)
    return finished(library)


def unigram() -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
    )
    library.train_from_iterator([" ".join(WORDS), "".join(PRINTABLE)] * 3, trainer)
    return finished(library)


def with_blank(make: Callable[[], Library]) -> Library:
    library = make()
    library.add_tokens(["hot kettle", AddedToken("é", normalized=True)])
    return library


MADE: dict[str, Callable[[], Library]] = {
    "bert": bert,
    "byte level": byte_level,
    "unigram": unigram,
    "blank in a token": partial(with_blank, byte_level),
}


def library_of(kind: str) -> Library:
    library = MADE[kind]()
    library.enable_truncation(8)
    return library


@pytest.mark.parametrize("kind", MADE)
def test_a_texts_beginning_has_the_tokens_that_the_text_is_cut_to(kind: str) -> None:
    library = library_of(kind)
    made = Tokenizer(library.to_str().encode(), TOKENS)
    shortened = 0

    @settings(max_examples=400, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        nonlocal shortened
        shortened += made._beginning.of(text) is not text
        wanted = library.encode(text)
        [row] = made.encode([text], True, LIMITS)
        assert (row.ids, row.type_ids) == (wanted.ids, wanted.type_ids)

    check()
    assert bool(shortened) == (kind in ("bert", "byte level"))


@pytest.mark.parametrize("kind", ["bert", "byte level"])
def test_a_long_texts_beginning_is_enough(kind: str) -> None:
    """Also for one whose words are longer than most, which is read to its end."""
    library = library_of(kind)
    beginning = Beginning(library, TOKENS)
    for text in ("tea " * 1000, "kettle\n\n" * 100 + "tea " * 100, "x" * 100 + " tea"):
        found = beginning.of(text)
        assert text.startswith(found)
        [row] = Tokenizer(library.to_str().encode(), TOKENS).encode([text], True, LIMITS)
        assert row.ids == library.encode(text).ids
    assert len(beginning.of("tea " * 1000)) <= 64
    left = replace(TOKENS, truncation_side="left")
    assert Beginning(library, left).of("tea " * 1000) == "tea " * 1000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("hot tea", "hot tea"),
        ("tea " * 16, "tea " * 16),
        ("tea " * 17, "tea " * 15 + "tea"),
        # Behind the word, and not amid the blanks.
        ("x" * 62 + "  " + "y" * 50, "x" * 62),
        ("x " + "y" * 100, "x"),
        (" " + "y" * 100, " " + "y" * 100),
        ("y" * 100, "y" * 100),
    ],
    ids=range(7),
)
def test_a_beginning_ends_behind_a_word(text: str, found: str) -> None:
    assert Beginning(byte_level(), TOKENS).of(text) == found


def changed(attribute: str, value: Any) -> Library:
    library = byte_level()
    setattr(library, attribute, value)
    return library


@pytest.mark.parametrize(
    "library",
    [
        changed("normalizer", normalizers.NFC()),
        changed("pre_tokenizer", pre_tokenizers.ByteLevel(use_regex=False)),
        changed("pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
        changed("model", models.BPE(dropout=0.1)),
        changed("model", models.WordLevel({"[UNK]": 0}, "[UNK]")),
    ],
    ids=["normalizer", "no words", "other words", "by chance", "other model"],
)
def test_of_a_tokenizer_that_is_not_known_the_whole_text_is_read(library: Library) -> None:
    assert Beginning(library, TOKENS).of("tea " * 1000) == "tea " * 1000


@pytest.mark.parametrize("space", ["\t", "\n", "\u3000"])
def test_a_token_may_go_on_behind_the_blank_that_the_normalizer_makes_of_its_space(
    space: str,
) -> None:
    library = bert()
    library.add_tokens([AddedToken(space.join("a" * 8), normalized=True)])
    library.enable_truncation(8)
    text = f"{'☃' * 12} " * 4 + "a " * 8 + "tea tea"
    wanted = library.encode(text)
    assert wanted.tokens[5] == " ".join("a" * 8)
    [row] = Tokenizer(library.to_str().encode(), TOKENS).encode([text], True, LIMITS)
    assert row.ids == wanted.ids


OPTIONS = list(product((True, False), (True, False), (None, True, False), (True, False)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_plain_texts_have_the_tokens_of_berts_normalizer(options: tuple[Any, ...]) -> None:
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    library = bert(**dict(zip(names, options, strict=True)))
    spaced = AddedToken("Hot Kettle", normalized=True)
    library.add_tokens([spaced, AddedToken("x1", single_word=True)])
    for splits in (False, True):
        library.encode_special_tokens = splits
        plain = plain_library(library, replace(TOKENS, split_special_tokens=splits))
        assert plain is not None
        source = random.Random(7)
        parts = [*PRINTABLE, "[MASK]", " Hot Kettle ", "x1", "tea "]
        for _ in range(100):
            text = "".join(source.choices(parts, k=source.randrange(60)))
            assert is_plain(text)
            one, other = plain.encode(text), library.encode(text)
            assert (one.ids, one.type_ids) == (other.ids, other.type_ids)
            assert one.offsets == other.offsets


def test_a_token_that_may_stand_in_a_plain_text_without_its_accents_forbids_it() -> None:
    library = bert()
    assert plain_library(library, TOKENS) is not None
    library.add_tokens([AddedToken("café", normalized=True)])
    assert plain_library(library, TOKENS) is None
    assert plain_library(byte_level(), TOKENS) is None


@pytest.mark.parametrize("text", ["tea\n", "é", "\x00", "中"])
def test_what_the_normalizer_changes_is_not_plain(text: str) -> None:
    assert not is_plain(text)


@pytest.mark.parametrize("kind", ["bert", "byte level"])
def test_a_text_that_is_refused_is_told_its_length_and_not_read_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = library_of(kind)
    made = Tokenizer(library.to_str().encode(), TOKENS)
    whole = Library.from_str(library.to_str())
    whole.no_truncation()
    read: list[Any] = []
    own = Tokenizer._encoded

    def encoded(self: Tokenizer, inputs: Any) -> Any:
        read.append(inputs)
        return own(self, inputs)

    monkeypatch.setattr(Tokenizer, "_encoded", encoded)
    text, pair = "kettle tea 中文 " * 20, ("tea " * 30, "kettle " * 30)
    for asked in (text, pair):
        with pytest.raises(ServingError) as caught:
            made.encode([asked], False, LIMITS)
        size = len((whole.encode(asked) if isinstance(asked, str) else whole.encode(*asked)).ids)
        assert (caught.value.limit, caught.value.got, len(read)) == (8, size, 1)
        read.clear()
