"""Whether what calls are padded with is what the model takes for padding.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.tokenizer import TokenizerFile

_CLASSIFIER = "ForSequenceClassification"
# Of the families without a masked language model these read no last token by its id.
_OTHERWISE = ("XLNet",)


def check_row(tokenizer: TokenizerFile, vocabulary: int) -> None:
    """A padding token that was only given a name has the id behind the last one. Its row is read
    though nothing looks at it, and some engines make up one that others refuse."""
    if 0 < vocabulary <= tokenizer.pad_id:
        raise ConversionRefused(
            f"the padding token '{tokenizer.pad_token}' has the id {tokenizer.pad_id}, and the "
            f"model's embeddings have {vocabulary} rows; set pad_token in tokenizer_config.json to "
            "a token that the model has, or give it a row: "
            "model.resize_token_embeddings(len(tokenizer))"
        )


def check_last_token(config: Mapping[str, Any], tokenizer: TokenizerFile) -> None:
    """A decoder's classifier reads the last token that is not config.json's padding: with another
    one in its place a text beside longer ones is read at its padding. Raises ConversionRefused."""
    written = config.get("pad_token_id")
    if written == tokenizer.pad_id or not _reads_last_token(config):
        return
    raise ConversionRefused(
        f"config.json's pad_token_id is {written}, and the tokenizer pads with "
        f"'{tokenizer.pad_token}', which is {tokenizer.pad_id}: the model's classifier would read "
        f"padding for a text's last token; set pad_token_id in config.json to {tokenizer.pad_id}"
    )


def _reads_last_token(config: Mapping[str, Any]) -> bool:
    """Whether transformers has the classifier's family as a decoder alone."""
    import transformers

    known = set(dir(transformers))
    first = str(next(iter(config.get("architectures") or ()), ""))
    family = first.removesuffix(_CLASSIFIER)
    if family == first or family in _OTHERWISE or config.get("is_encoder_decoder"):
        return False
    generates = known & {f"{family}ForCausalLM", f"{family}LMHeadModel"}
    return bool(generates) and f"{family}ForMaskedLM" not in known
