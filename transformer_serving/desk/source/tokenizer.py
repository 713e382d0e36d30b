"""The model's tokenizer as a tokenizer.json for the Rust library: no padding, no cutting.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.error_line import first_line, one_line
from transformer_serving.desk.convert_packages import INSTALL
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.config import check_config
from transformer_serving.desk.source.foreign_code import refuse_own_tokenizer

# A tokenizer without a limit of its own says a number beyond any text.
UNBOUNDED = 1_000_000
_FILE = "tokenizer.json"
_SENTENCEPIECE = "sentencepiece"
# What transformers puts into a vocabulary beside special tokens where it finds no file of one: for
# some families, such as T5, the mark of a word's begin.
_MADE_UP = 1
# Whose rows may have two texts.
_HEADS_OF_PAIRS = ("sequence", "spans")


@dataclass(frozen=True)
class TokenizerFile:
    """tokenizer.json with padding and truncation taken out, and what serving must know beside it.

    `names` are the inputs that the tokenizer fills. `max_length` is its own limit in tokens, ids
    are None for tokens it does not have. `ids` is one more than its highest. `chats` where it has a
    chat template.
    """

    content: bytes
    pad_id: int
    pad_token: str
    pad_type_id: int
    padding_side: str
    truncation_side: str = "right"
    names: tuple[str, ...] = ("input_ids", "token_type_ids", "attention_mask")
    max_length: int | None = None
    unk_id: int | None = None
    cls_id: int | None = None
    mask_id: int | None = None
    mask_token: str | None = None
    cleans_up_spaces: bool = False
    split_special_tokens: bool = False
    ids: int = 0
    chats: bool = False

    def library(self) -> Any:
        """The Rust tokenizer as serving asks it."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_buffer(self.content)
        tokenizer.encode_special_tokens = self.split_special_tokens
        return tokenizer

    def check_longest(self, longest: int, most: int | None, head: str) -> None:
        """Raises ConversionRefused for texts of more than `most` tokens, None where nobody knows,
        and for rows that special tokens fill."""
        special = self.library().num_special_tokens_to_add(head in _HEADS_OF_PAIRS)
        if special < longest <= (most or longest):
            return
        allowed = f"at least {special + 1}" if most is None else f"from {special + 1} to {most}"
        filled = f", of which {special} are special tokens" if longest <= special else ""
        raise ConversionRefused(
            f"--max-length, or the MAX of --seq-len, must be {allowed} for this model, got "
            f"{longest}{filled}"
        )

    def remark_of_fewer(self, rows: int) -> str | None:
        """What is said of a tokenizer that has less than a third of the ids for which the model's
        embeddings have `rows`; those that some models have beyond their tokenizer's are few."""
        if 3 * self.ids >= rows:
            return None
        return (
            f"the tokenizer has {self.ids} tokens, and the model's embeddings have {rows} rows: it "
            "may be another model's, with which every answer would be wrong, and parity does not "
            "see that; compare it with the tokenizer that the model was trained with"
        )

    def known_ids(self, rows: int) -> int | None:
        """`rows` of the model's embeddings where there are ids beyond them; 0 where the model does
        not say."""
        return rows if 0 < rows < self.ids else None


def read_tokenizer(folder: Path, *, lowercases: bool = False, pads: bool = True) -> TokenizerFile:
    """The tokenizer as transformers itself loads it; with `lowercases`, as sentence-transformers
    does where its own settings say that. Without `pads`, as for text that goes on, it may have no
    padding token, whose id is then 0, and put nothing around a text.

    transformers may build a tokenizer from its vocabulary and not from tokenizer.json, so that the
    file alone need not be what the reference uses. Raises ConversionRefused when it cannot be had.
    """
    loaded = load_tokenizer(folder)
    tokenizer = _backend(folder, loaded)
    _check_vocabulary(folder, loaded, tokenizer)
    if pads:
        _check_special(folder, loaded)
    if lowercases:
        _lowercase(folder, tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if pads and (loaded.pad_token is None or loaded.pad_token_id is None):
        raise ConversionRefused(
            "the tokenizer has no padding token, so texts of different lengths cannot share a "
            "call; set pad_token in tokenizer_config.json to a token that the model has"
        )
    return TokenizerFile(
        content=tokenizer.to_str().encode(),
        pad_id=int(loaded.pad_token_id or 0),
        pad_token=str(loaded.pad_token or ""),
        pad_type_id=int(getattr(loaded, "pad_token_type_id", 0) or 0),
        padding_side=str(loaded.padding_side),
        truncation_side=str(loaded.truncation_side),
        names=tuple(loaded.model_input_names),
        max_length=_limit(loaded.model_max_length),
        unk_id=loaded.unk_token_id,
        cls_id=loaded.cls_token_id,
        mask_id=loaded.mask_token_id,
        mask_token=None if loaded.mask_token is None else str(loaded.mask_token),
        cleans_up_spaces=bool(loaded.clean_up_tokenization_spaces),
        # Told to the Rust tokenizer at each call, and no part of its file.
        split_special_tokens=bool(getattr(loaded, "split_special_tokens", False)),
        ids=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        chats=loaded.chat_template is not None,
    )


def load_tokenizer(folder: Path) -> Any:
    """transformers' own object. Raises ConversionRefused where it has none for the folder."""
    from transformers import AutoTokenizer

    refuse_own_tokenizer(folder)
    try:
        # Unless told, the package asks on stdin whether to run the code that comes with the model.
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    # The package raises whatever its parsers do; each means that there is no tokenizer to use.
    except Exception as error:
        _check_sentencepiece(folder)
        check_config(folder)
        raise _unusable(folder, first_line(error) or type(error).__name__) from error


def _unusable(folder: Path, reason: str) -> ConversionRefused:
    return ConversionRefused(
        f"the tokenizer of '{folder.name}' cannot be loaded by transformers ({reason}); copy "
        "the model's tokenizer.json and tokenizer_config.json into the folder (save_pretrained "
        "of its fast tokenizer writes both)"
    )


def _check_vocabulary(folder: Path, loaded: Any, tokenizer: Any) -> None:
    """Without a file of the vocabulary transformers makes a tokenizer of special tokens alone, to
    which every text is the same; the reference would have it too, so that parity agrees. Tokens
    that were added are counted where they stand in tokenizer.json: some have no others, and
    tokenizer_config.json has them without any vocabulary. Raises ConversionRefused."""
    special = set(loaded.all_special_tokens)
    whole = (folder / _FILE).is_file()
    if not whole:
        special.update(map(str, loaded.added_tokens_decoder.values()))
    if len(tokenizer.get_vocab(with_added_tokens=whole).keys() - special) <= _MADE_UP:
        raise _unusable(folder, "it finds no vocabulary there, only special tokens")


def _check_sentencepiece(folder: Path) -> None:
    """Raises ConversionRefused where the package is missing that reads the folder's only file of a
    tokenizer; transformers then says that another one is."""
    found = next(iter(sorted(folder.glob("*.model"))), None)
    if (
        found is not None
        and not (folder / _FILE).is_file()
        and importlib.util.find_spec(_SENTENCEPIECE) is None
    ):
        raise ConversionRefused(
            f"the tokenizer of '{folder.name}' is '{found.name}' without a {_FILE}, which "
            f"transformers reads by the package {_SENTENCEPIECE}; install it "
            f"{INSTALL}"
        )


def _check_special(folder: Path, loaded: Any) -> None:
    """What transformers makes of a SentencePiece file for DeBERTa has a [CLS] and a [SEP], and puts
    nothing around a text, as its own reference then does not. One that puts others there, such as
    T5's, only has them."""
    made = not (folder / _FILE).is_file()
    ends = (loaded.cls_token_id, loaded.sep_token_id)
    if not made or None in ends:
        return
    try:
        ids = loaded("a")["input_ids"]
    # The Rust library's errors have no type of their own.
    except Exception as error:
        raise _unusable(folder, first_line(error) or type(error).__name__) from error
    if not set(ids) & (set(loaded.all_special_ids) - {loaded.unk_token_id}):
        raise ConversionRefused(
            f"the tokenizer of '{folder.name}' has no {_FILE}, and the one that transformers makes "
            f"of its vocabulary does not put {loaded.cls_token} and {loaded.sep_token} around a "
            f"text; copy a {_FILE} into the folder that does, such as save_pretrained of "
            "transformers 4 writes for its fast tokenizer"
        )


def _backend(folder: Path, loaded: Any) -> Any:
    """A copy of the Rust tokenizer inside."""
    from tokenizers import Tokenizer

    inner = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(inner, Tokenizer):
        raise ConversionRefused(
            f"the tokenizer of '{folder.name}' ({type(loaded).__name__}) is written in Python and "
            "has no tokenizer.json, which serving needs; use a model with a fast tokenizer"
        )
    return Tokenizer.from_str(inner.to_str())


def _limit(length: Any) -> int | None:
    return int(length) if isinstance(length, int) and 0 < length < UNBOUNDED else None


def _lowercase(folder: Path, tokenizer: Any) -> None:
    """Before all else, where the tokenizer does not lowercase anyway. Raises ConversionRefused for
    an added token that a tokenizer read from a file then finds in lower case, and the reference,
    which normalized its tokens before, nowhere."""
    from tokenizers import normalizers

    given = tokenizer.normalizer
    steps = list(given) if isinstance(given, normalizers.Sequence) else [given] if given else []
    if any(isinstance(step, normalizers.Lowercase) for step in steps):
        return
    lowered = normalizers.Sequence([normalizers.Lowercase(), *steps])
    for token in tokenizer.get_added_tokens_decoder().values():
        before = given.normalize_str(token.content) if given else token.content
        if token.normalized and lowered.normalize_str(token.content) != before:
            raise ConversionRefused(
                f"the tokenizer of '{folder.name}' has the added token "
                f"'{one_line(token.content, 60)}', which no text has once it is lowercased "
                "(do_lower_case in sentence_bert_config.json); set do_lower_case to false, or "
                "the token's normalized to false in tokenizer.json, in a copy of the folder"
            )
    tokenizer.normalizer = lowered
